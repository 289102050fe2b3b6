"""The parts of a recorded graph: slots of memory, and nodes that work on them."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from kernel_dsl.boundary import public
from kernel_dsl.compiled import LaunchAttributes, ScalarParam
from kernel_dsl.dtypes import DType
from kernel_dsl.launch_plan import ConstantParam, LaunchStep, slot
from kernel_dsl.target import Target
from kernel_dsl.variables import evaluate

from ..arrays.array_view import ArrayView
from ..devices.device import Dims, Loaded
from ..devices.launch import check_attributes
from ..devices.params import own_bytes, scalar_bytes
from ..errors import ArgumentTypeError, ArgumentValueError, RunError
from ..plan.checks import check_overlaps
from .plan import MemoryBlock


class GraphError(RunError, RuntimeError):
    """An impossible request to record or replay a graph."""

    code = "graph"


@dataclass(eq=False)
class MemorySlot:
    """Memory that nodes address by offset, so that it can move between replays.

    `kind`: "input" (nodes read it and none writes it), "result" (an array that a call made, or was given to write),
    "fixed" (any other array of the user), "scratch" (the graph's own). `home` is the user's array, None for scratch.
    `low` is the lowest address while recording, `base` its address now.
    """

    kind: str
    low: int
    nbytes: int
    home: ArrayView | None = None
    array: Any = None
    given: bool = False  # a result in memory that the user gave
    alignment: int = 1
    base: int = 0
    block: MemoryBlock | None = None  # its place in the graph's memory, if it lies there
    shift: int = 0  # bytes from the block's place to `low`
    users: set[int] = field(default_factory=set[int])
    current: ArrayView | None = None  # the user's present array: `home` unless it is replaced

    def at(self, view: ArrayView, place: tuple[str, int]) -> ArrayView:
        """A recorded view of this slot, at the slot's present address."""
        return dataclasses.replace(view, address=self.base + view.address - self.low, device=place)


@dataclass(eq=False)
class NodeOperand:
    """An array of a node: `view` as recorded, in `slot`."""

    slot: MemorySlot
    view: ArrayView
    read: bool
    written: bool
    shift: int = 0  # in a nested graph: the distance from the address that its call uses

    @property
    def offset(self) -> int:
        """The number of bytes from the slot's lowest address to the array's first element."""
        return self.view.address - self.slot.low


# --- what a node does -----------------------------------------------------------------------------


@dataclass(eq=False)
class LaunchWork:
    """A kernel by its plan. Operands: the plan's arrays, then on a GPU its scratch, which other nodes fill."""

    loaded: Loaded
    scalars: list[Any]
    fresh: Sequence[int]  # the operands that are uninitialised before it

    @property
    def step(self) -> LaunchStep:
        step = self.loaded.plan.launch
        assert step is not None  # an empty grid has no node
        return step

    @property
    def name(self) -> str:
        return self.loaded.plan.name

    @property
    def attributes(self) -> LaunchAttributes:
        return self.step.attributes


@dataclass(eq=False)
class CopyWork:
    """Copy operand 1 to operand 0, element by element."""

    name: str = "copy"
    attributes: None = None


@dataclass(eq=False)
class FillWork:
    """Every element of operand 0 becomes `value`."""

    value: Any
    name: str = "fill"
    attributes: None = None


Work = LaunchWork | CopyWork | FillWork


@dataclass(eq=False)
class Made:
    """An output of a repeated call: `view` as recorded, with the variables at their largest, and its present shape.
    `shift`: in a nested graph, bytes from there to its place in the outer graph. `array`: the object that other
    launches of the same call may read.
    """

    view: ArrayView
    shape: tuple[int, ...]
    shift: int = 0
    array: Any = None


@dataclass(eq=False)
class Held:
    """A stand-in for the array of `made` in the arguments of a call. It has the latest shape."""

    array: Any
    made: Made


@dataclass(eq=False)
class Repeat:
    """A user's call that depends on variables, or on arrays whose shapes do. It is made again if these change.
    `bindings`: the call's values of the graph's variables: themselves, or values from an outer graph. `reads`: arrays
    that other such calls made.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    nodes: list[Node] = field(default_factory=list["Node"])
    outputs: list[list[Made]] = field(default_factory=list[list[Made]])
    reads: list[Held] = field(default_factory=list[Held])
    bindings: dict[str, Any] = field(default_factory=dict[str, Any])
    last: Any = None  # the values and shapes when it was last made; None: not made yet
    nibbles: Any = None  # the `NibbleArrays` of the graph that recorded it

    def now(self, values: Mapping[str, int]) -> tuple[dict[str, int], list[tuple[int, ...]]]:
        """The values and shapes that it depends on, for these values of the graph's variables."""
        return {name: int(evaluate(b, values)) for name, b in self.bindings.items()}, [h.made.shape for h in self.reads]


@public
@dataclass(eq=False)
class Node:
    """One step of a graph. `dependencies`: indices of the nodes that end before it starts."""

    owner: Callable[[], Any]  # a weak reference to its graph, whose memory is freed with the graph's last reference
    index: int
    work: Work
    operands: list[NodeOperand]
    dependencies: tuple[int, ...] = ()
    effects: bool = False  # see `Event`

    @property
    def graph(self) -> Any:
        """Its graph; None after the graph has been deleted."""
        return self.owner()

    @property
    def kind(self) -> str:
        """'kernel', 'copy' or 'fill'."""
        return self.work.name if isinstance(self.work, (CopyWork, FillWork)) else "kernel"

    @property
    def name(self) -> str:
        return self.work.name

    @property
    def grid(self) -> Dims | None:
        """Blocks along x, y, z; None for copies and fills."""
        return self.work.attributes.grid if self.work.attributes else None

    @property
    def block(self) -> Dims | None:
        """Threads (lanes) of a block along x, y, z."""
        return self.work.attributes.block if self.work.attributes else None

    @property
    def cluster(self) -> Dims | None:
        """Blocks of a cluster along x, y, z."""
        return self.work.attributes.cluster if self.work.attributes else None

    @property
    def dynamic_smem(self) -> int:
        """Bytes of dynamic SMEM a block."""
        return self.work.attributes.dynamic_smem if self.work.attributes else 0

    def set_params(self, arrays: Sequence[Any] | None = None, scalars: Sequence[Any] | None = None) -> None:
        """See `Graph.set_params`."""
        self._alive().set_params(self, arrays, scalars)

    def set_launch_dims(
        self,
        grid: Dims | None = None,
        block: Dims | None = None,
        dynamic_smem: int | None = None,
    ) -> None:
        """See `Graph.set_launch_dims`."""
        self._alive().set_launch_dims(self, grid, block, dynamic_smem)

    def _alive(self) -> Any:
        graph = self.graph
        if graph is None:
            raise GraphError(f"the graph of {self!r} was deleted: keep a reference to it")
        return graph

    def __repr__(self) -> str:
        dims = f" grid={self.grid} block={self.block}" if self.grid else ""
        return f"<{self.kind} {self.index}: {self.name}{dims}>"


def check_memory(node: Node, slots: Mapping[int, MemorySlot]) -> None:
    """Raise an error if arrays of a traced kernel now share memory in a way that it was not compiled for."""
    plan = node.work.loaded.plan if isinstance(node.work, LaunchWork) else None
    if plan is not None and plan.traced and slots:
        views = [slots[i].home or o.view if i in slots else _now(o) for i, o in enumerate(node.operands)]
        check_overlaps(plan, views[: len(plan.arrays)])


def _now(operand: NodeOperand) -> ArrayView:
    return operand.slot.at(operand.view, operand.view.device)


def set_scalars(node: Node, scalars: Sequence[Any]) -> None:
    """Give a kernel node other scalars. Raises an error if their number, sizes or kinds differ."""
    work = node.work
    if not isinstance(work, LaunchWork):
        raise ArgumentTypeError(f"{node!r} has no scalars")
    if not work.loaded.plan.traced:
        _set_values(node, work, scalars)
        return
    if len(scalars) != len(work.scalars):
        raise ArgumentValueError(f"{node!r} takes {len(work.scalars)} scalars, and got {len(scalars)}")
    for param in work.step.params:
        if isinstance(param, ScalarParam):
            _check_scalar(node, scalars[param.scalar], param.dtype)
    work.scalars = list(scalars)


def _set_values(node: Node, work: LaunchWork, scalars: Sequence[Any]) -> None:
    """Give a custom kernel other parameters by value: all parameters except addresses."""
    params = list(work.step.params)
    places = [i for i, param in enumerate(params) if isinstance(param, (ConstantParam, ScalarParam))]
    blobs = [own_bytes(value) for value in scalars]
    sizes = [slot(params[i])[0] for i in places]
    if [len(b) for b in blobs] != sizes:
        raise ArgumentValueError(
            f"{node!r} takes scalars of {sizes} bytes, and got {[len(b) for b in blobs]}; NumPy scalars such as "
            "np.int64(1) say their size"
        )
    for place, blob in zip(places, blobs, strict=True):
        params[place] = ConstantParam(blob)
    work.loaded = work.loaded.changed(dataclasses.replace(work.step, params=tuple(params)))


def _check_scalar(node: Node, value: Any, dtype: DType) -> None:
    """Raise unless a kernel compiled for a scalar of `dtype` can take `value`."""
    try:
        kind = "i" if isinstance(value, (int, bytes, bytearray)) else np.asarray(value).dtype.kind
    except (TypeError, ValueError):
        kind = "O"
    if kind in "Oc" or (dtype.is_integer and kind == "f"):  # else None would become NaN, and 1j would become 0
        raise ArgumentTypeError(f"{node!r} was recorded with a scalar of {dtype}, and got {value!r}")
    scalar_bytes(value, dtype)


def set_dims(node: Node, target: Target, **changes: Any) -> None:
    """Give a kernel node another grid, block or amount of dynamic SMEM.

    Raises an error if they exceed the limits of `target`.
    """
    work = node.work
    if not isinstance(work, LaunchWork):
        raise ArgumentTypeError(f"{node!r} has no launch dims")
    given = {k: _dims(k, v) for k, v in changes.items() if v is not None}
    attributes = dataclasses.replace(work.attributes, **given)
    check_attributes(attributes, target, node.name)
    work.loaded = work.loaded.changed(dataclasses.replace(work.step, attributes=attributes))


def _dims(what: str, value: Any) -> Any:
    try:
        if what == "dynamic_smem":
            return operator.index(value)
        x, y, z = map(operator.index, value)
        return x, y, z
    except (TypeError, ValueError):
        wanted = "an integer, in bytes" if what == "dynamic_smem" else "three integers, (x, y, z)"
        raise ArgumentTypeError(f"{what}={value!r} must be {wanted}") from None


def listed(what: str, values: Any) -> Sequence[Any]:
    """The values of a list or tuple; an empty list for None."""
    if values is None:
        return ()
    if not isinstance(values, (list, tuple)):
        raise ArgumentTypeError(f"{what}= must be a list with one value each, not {values!r}")
    return cast("Sequence[Any]", values)
