"""The interface of a device: it loads compiled kernels and images, and runs launch plans."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from kernel_dsl.compiled import ArrayAssumption, Assembled, CompiledKernel, LaunchAttributes, PointerParam
from kernel_dsl.launch_plan import AnyParam, ConstantParam, LaunchPlan, LaunchStep
from kernel_dsl.target import Target

from ..arrays.array_view import ArrayView

Dims = tuple[int, int, int]


class Loaded(Protocol):
    """A launch plan whose code a device has loaded."""

    @property
    def plan(self) -> LaunchPlan: ...

    @property
    def device(self) -> Device: ...

    def launch(
        self,
        arrays: Sequence[ArrayView],
        scalars: Sequence[Any],
        stream: int | None = None,
        fresh: Sequence[int] = (),
    ) -> None:
        """Run the plan's steps on scratch, and the kernel.

        `arrays`, inputs then outputs, lie where this device can access them. `fresh` lists the uninitialised arrays: to
        read them before a write is a hazard.
        """
        ...

    def changed(self, step: LaunchStep) -> Loaded:
        """The same code with another launch."""
        ...


class LoadedImage(ABC):
    """One entry of a PTX, cubin or fatbin image."""

    entry: str

    @abstractmethod
    def prepare(self, plan: LaunchPlan) -> Loaded:
        """The entry, loaded for launches by a plan.

        Raises ArgumentTypeError, ArgumentValueError if the plan does not fit.
        """

    def launch(
        self,
        params: Sequence[ArrayView | bytes],
        *,
        grid: Dims,
        block: Dims,
        cluster: Dims = (1, 1, 1),
        dynamic_smem: int = 0,
        stream: int | None = None,
    ) -> None:
        """Launch once with `params` in the entry's order: arrays (passed as addresses) and scalars' bytes."""
        arrays = [p for p in params if isinstance(p, ArrayView)]
        numbers = iter(range(len(arrays)))
        listed: list[AnyParam] = [
            PointerParam(next(numbers)) if isinstance(p, ArrayView) else ConstantParam(bytes(p)) for p in params
        ]
        attributes = LaunchAttributes(grid, block, cluster, dynamic_smem)
        plan = LaunchPlan(
            self.entry,
            tuple(ArrayAssumption(a.shape, a.dtype, False, 1, True, "") for a in arrays),
            len(arrays),
            (),
            (),
            () if 0 in grid else (LaunchStep(self.entry, tuple(listed), attributes),),
            traced=False,
            guarded=False,
        )
        self.prepare(plan).launch(arrays, (), stream)


class Device(Protocol):
    """Where kernels run. `kind` is "cuda" or "interpreter"; `index` counts GPUs."""

    kind: str
    index: int
    target: Target

    def load(self, kernel: CompiledKernel | Assembled) -> Loaded: ...

    def load_image(self, image: bytes | str, entry: str) -> LoadedImage: ...
