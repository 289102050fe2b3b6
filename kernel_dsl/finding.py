"""Finds the compiled kernel for a call among those that the process has, or traces a new one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from . import forking
from .call_inputs import struct_of
from .dataclass import changed, dataclass
from .definition import ArrayInput, Definition, Input, ScalarInput, axes, output_structs
from .loading import load
from .memory import ShapeDtypeStruct
from .scalar_struct import ScalarStruct
from .sizes import Geometry, SizePlan, geometry
from .specialisations import Specialisation, Table, sizeless
from .stages import Stages, target_named
from .tree import unflatten
from .variables import ask, binding_is_active

_KEPT = 4096  # the most signatures, with sizes, whose launches are kept


@dataclass(frozen=True)
class DescribedCall:
    """The arguments of a call, and all that decides which kernel it needs."""

    definition: Definition
    leaves: Sequence[Any]  # arrays and scalars, in the nest `structure`
    structure: Any
    inputs: tuple[Input, ...]  # of the leaves
    given: tuple[ArrayInput, ...] | None  # the arrays of `out=`
    overlaps: tuple[tuple[int, int], ...]
    target: str

    @property
    def key(self) -> tuple[Any, ...]:
        return self.inputs, repr(self.structure), self.given, self.overlaps, self.target


Trace: TypeAlias = "Callable[[DescribedCall, Geometry | None], Stages]"  # for these sizes, or for all


class KernelFinder:
    """The compiled kernels of one body. With `debug` every new one is traced, for its stages to be printed."""

    def __init__(self, debug: bool) -> None:
        self.table: Table = Table()
        self._debug = debug
        self._stages: dict[Any, Stages] = {}
        self._loaded: dict[Any, Any] = {}
        self._asked: dict[Any, tuple[str, ...]] = {}  # by key: the graph's variables whose values the body asks for
        self._by_value: set[Any] = set()  # keys of calls whose outputs or grid depend on scalars' values
        self._lock = forking.lock()

    def decides_by_values(self) -> bool:
        """Whether outputs or the grid of an earlier call depended on scalars' values."""
        return bool(self._by_value)

    def find(self, call: DescribedCall, trace: Trace, device: Any) -> tuple[Any, bool, bool]:
        """The kernel for a call, loaded on a device.

        Also whether no earlier call had its signature, and whether its outputs or grid depend on scalars' values. Raises
        the errors of `trace`.
        """
        key, shapes = call.key, call.definition.shapes
        with self._lock:
            bound = binding_is_active()
            by_value = key in self._by_value or (bound and bool(shapes))
            stages = None
            if bound and not shapes:
                key, stages = self._by_variables((*key, _sizes(call)), call, trace)
            where = (key, device.kind, device.index)
            loaded = self._loaded.get(where) if device.kind == "cuda" and not by_value else None
            if loaded is not None:
                return loaded, False, by_value
            loaded = self._specialised(key, call, trace, device) if stages is None else load(stages, device)
            by_value = by_value or key in self._by_value
            if len(self._loaded) >= _KEPT:
                self._loaded.clear()
            if not by_value:
                self._loaded[where] = loaded
            return loaded, True, by_value

    def _specialised(self, key: tuple[Any, ...], call: DescribedCall, trace: Trace, device: Any) -> Any:
        """The kernel for a call: one whose conditions the call meets, else a new one."""
        definition, inputs, target = call.definition, call.inputs, call.target
        structs = [self._valued(i, x, key) for i, x in zip(inputs, call.leaves, strict=True)]
        made = geometry(definition, unflatten(call.structure, structs))
        made = changed(made, by_value=key in self._by_value)
        sizes = made.sizes(inputs)
        tree = repr(call.structure)
        signature = (sizeless(inputs), tree, sizeless(call.given), call.overlaps, target, repr(made.key()))
        names = self._asked.get(signature, ())
        found = self.table.find((signature, ask(names) if names else ()), sizes, target)
        if found is not None:
            return found.on(device, sizes)
        stages = functools.partial(trace, call, made)
        found = Specialisation(definition.name, target, sizes, stages).known_by(definition.params)
        identity = ""
        if definition.identity and not self._debug:
            what: Any = key
            if definition.shapes is not None:  # extents are the launch's, but for those that no Dim decides
                limits = target_named(target).limits.grid
                what = signature, SizePlan(definition, inputs, call.structure, made, limits).constants
            identity = repr((definition.identity, what))
        loaded = found.on(device, sizes, identity)
        if not identity:  # the body may close over a graph's variables
            names = self._asked[signature] = tuple(sorted({*names, *found.stages.traced.asked}))
        self.table.add((signature, ask(names) if names else ()), found)
        return loaded

    def _valued(self, input: Input, x: Any, key: tuple[Any, ...]) -> ShapeDtypeStruct:
        """The struct of an argument in a call. A scalar's struct notes when its value is read."""
        if not isinstance(input, ScalarInput):
            return input.struct()
        return ScalarStruct(input.dtype, x, lambda: self._by_value.add(key))

    def _by_variables(self, key: tuple[Any, ...], call: DescribedCall, trace: Trace) -> tuple[tuple[Any, ...], Stages]:
        """The key, with the values of the variables that the body asks for, and its stages.

        Only a trace shows which variables these are.
        """
        names = self._asked.get(key, ())
        whole = (*key, names, ask(names))
        if key in self._asked and whole in self._stages:
            return whole, self._stages[whole]
        made = trace(call, _geometry_of_values(call))
        names = self._asked[key] = tuple(sorted({*names, *made.traced.asked}))
        whole = (*key, names, ask(names))
        self._stages[whole] = made
        return whole, made


def _geometry_of_values(call: DescribedCall) -> Geometry | None:
    """The sizes of a call that functions may compute from the values of its scalars; None for a call without scalars."""
    if not any(isinstance(i, ScalarInput) for i in call.inputs):
        return None
    pairs = zip(call.inputs, call.leaves, strict=True)
    name = call.definition.name
    structs = [struct_of(x, name) if isinstance(i, ScalarInput) else i.struct() for i, x in pairs]
    return geometry(call.definition, unflatten(call.structure, structs))


def _sizes(call: DescribedCall) -> Any:
    """Grid, cluster and outputs, which may depend on a graph's variables: they pick a kernel, as arguments do."""
    d = call.definition
    structs = unflatten(call.structure, [struct_of(x, d.name) for x in call.leaves])
    grid, cluster = (axes(sizes, (), word, structs) for sizes, word in ((d.grid, "grid"), (d.cluster, "cluster")))
    return grid, cluster, repr(output_structs(d, structs))
