"""The compiled kernels of one definition. A call finds its kernel by the sizes that the kernel's code depends on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .blocks import settle
from .boundary import public, unguarded
from .compiled import Condition
from .conditions import holds
from .dataclass import changed
from .extents import GRID
from .loading import load, load_identified
from .sizes import Sizes, exact
from .stages import Stages
from .target import TARGETS


@public
class Specialisation:
    """A kernel compiled for some signature: dtypes, contiguity and alignment of arrays, and conditions on sizes.

    It prints as the shapes of inputs and outputs, with `*` for each extent that no condition fixes; inputs decide those
    of outputs.
    """

    @unguarded
    def __init__(self, name: str, target: str, sizes: Sizes, trace: Callable[[], Stages]) -> None:
        self.name = name
        self.target = target
        self.sizes = sizes  # those of the call that it was compiled for
        self._trace = trace
        self._stages: Stages | None = None
        self._loaded: dict[int, Any] = {}  # by GPU
        self._conditions: tuple[Condition, ...] | None = None

    def __repr__(self) -> str:
        fixed = {c.numbers for c in self.conditions if c.kind == "size"}  # by (array, axis)
        parts = [
            _shown(shape, [(a, i) in fixed for i in range(len(shape))]) for a, shape in enumerate(self.sizes.shapes)
        ]
        axes = [(GRID, i) in fixed for i in range(len(self.sizes.grid))]
        parts += [f"grid {_shown(self.sizes.grid, axes)}"] * any(axes)
        return f"<specialisation of {self.name!r} for {self.target}: {', '.join(parts)}>"

    @property
    def stages(self) -> Stages:
        """The stages: IR, LLVM text, PTX, machine code."""
        if self._stages is None:
            self._stages = self._trace()
        return self._stages

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that another call must meet to run this code."""
        return self.stages.traced.conditions if self._conditions is None else self._conditions

    @unguarded
    def on(self, device: Any, sizes: Sizes, identity: str = "") -> Any:
        """The kernel on a device, for a call of these sizes."""
        if device.kind != "cuda":
            return load(self.stages, device, sizes)
        loaded = self._loaded.get(device.index)
        if loaded is None:
            if identity and self._stages is None:
                params, at = self._params, device
                loaded = load_identified(identity, lambda: self.stages, self.target, params, at)
                self._conditions = loaded.kernel.conditions or exact(self.sizes)
            else:
                loaded = load(self.stages, device)
            self._loaded[device.index] = loaded
        return loaded.settled(settle(loaded.kernel, sizes.shapes, sizes.grid))

    _params: Any = None

    @unguarded
    def known_by(self, params: Any) -> Specialisation:
        """The same, with the options that identify a kernel without a trace."""
        self._params = params
        return self


def _shown(shape: Sequence[int], fixed: Sequence[bool]) -> str:
    """A shape with `*` for the extents that may be others."""
    extents = ", ".join(str(n) if known else "*" for n, known in zip(shape, fixed, strict=True))
    return f"({extents}{',' * (len(shape) == 1)})"


class Table:
    """Specialisations by signature, and by the answers to their conditions."""

    def __init__(self) -> None:
        self._groups: dict[Any, dict[tuple[Condition, ...], dict[tuple[Any, ...], Specialisation]]] = {}
        self.all: list[Specialisation] = []

    def find(self, signature: Any, sizes: Sizes, target: str) -> Specialisation | None:
        """The specialisation whose conditions such a call meets."""
        limits = TARGETS[target].limits.grid
        for conditions, known in self._groups.get(signature, {}).items():
            found = known.get(holds(conditions, sizes.shapes, sizes.grid, limits))
            if found is not None:
                return found
        return None

    def add(self, signature: Any, made: Specialisation) -> None:
        """Add a specialisation that a call has made."""
        conditions, sizes = made.conditions, made.sizes
        answers = holds(conditions, sizes.shapes, sizes.grid, TARGETS[made.target].limits.grid)
        self._groups.setdefault(signature, {}).setdefault(conditions, {})[answers] = made
        self.all.append(made)


def sizeless(inputs: Sequence[Any] | None) -> Any:
    """Inputs without their extents."""
    if inputs is None:
        return None
    return tuple([changed(i, shape=(len(i.shape),)) if hasattr(i, "contiguous") else i for i in inputs])
