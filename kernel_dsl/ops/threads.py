"""Below and beside the warpgroup: warps on their own, PTX by hand, grids that overlap, and shared buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import dtypes as dt
from ..boundary import called
from ..dtypes import DType
from ..errors import BodyReturned
from ..errors_hopper import WarpUse, WarpValue
from ..facts import Range
from ..ir import ArrayType, Effect, Op, RefType, Region, Value, array_type, attr, operand, operands, region
from ..layout import SCALAR
from ..refs import Ref
from ..target import Feature
from ..trace import current, emit, end_region, into, new_value, resolve
from ..tree import flatten, unflatten
from .cast import as_value

__all__ = [
    "griddepcontrol_launch_dependents",
    "griddepcontrol_wait",
    "optimization_barrier",
    "warp_map",
]


class OptimizationBarrier(Op, name="optimization_barrier", effect=Effect.SYNC):
    """The same values without their facts; the optimiser moves nothing across. No instruction."""

    xs: tuple[Value, ...] = operands()

    def infer(self) -> tuple[Any, ...]:
        return tuple(array_type(x) for x in self.xs)


class InlinePtx(Op, name="inline_ptx", effect=Effect.SYNC):
    """The author's PTX, once for every register of the operands: `$0`, `$1` ... are results, then operands."""

    xs: tuple[Value, ...] = operands()
    template: str = attr()
    dtypes: tuple[DType, ...] = attr()
    pure: bool = attr(False)

    def infer(self) -> tuple[Any, ...]:
        shape: tuple[int, ...] = ()
        layout: Any = SCALAR
        if self.xs:
            t = array_type(self.xs[0])
            shape, layout = t.shape, t.layout
        return tuple(ArrayType(shape, d, layout) for d in self.dtypes)


class GridDependencyWait(Op, name="griddepcontrol_wait", effect=Effect.SYNC, requires=Feature.GRIDDEPCONTROL):
    """Wait until the kernels before this one have finished. PTX `griddepcontrol.wait`."""


class GridDependencyLaunch(Op, name="griddepcontrol_launch", effect=Effect.SYNC, requires=Feature.GRIDDEPCONTROL):
    """Let the kernel after this one start. PTX `griddepcontrol.launch_dependents`."""


class WarpMap(Op, name="warp_map", effect=Effect.SYNC):
    """Run a region once in each of the warpgroup's four warps, on its own; its argument is the warp's number. PTX `bra`."""

    together = True
    body: Region = region()


class AliasSmem(Op, name="alias_smem"):
    """A buffer inside another one, at an offset in bytes. No instruction."""

    ref: Value = operand()
    offset: int = attr()
    type: RefType = attr()

    def infer(self) -> tuple[Any, ...]:
        return (self.type,)


def optimization_barrier(*values: Any) -> Any:
    """The same values, hidden from the optimiser: one, or several as a tuple. They may be pytrees."""
    tree: Any = values[0] if len(values) == 1 else values
    leaves, structure = flatten(tree)
    xs = tuple(as_value(x, "optimization_barrier") for x in leaves)
    for x in xs:
        if x.ndim:
            resolve(x.type.layout)
    return unflatten(structure, list(emit(OptimizationBarrier(xs)).results))


def griddepcontrol_wait() -> None:
    """Wait until the kernels before this one are done.

    A kernel with this op may start earlier. PTX ISA 9.7.13.13 (griddepcontrol).
    """
    current()
    emit(GridDependencyWait())


def griddepcontrol_launch_dependents() -> None:
    """Let the next kernel in the stream start, if it uses `griddepcontrol_wait`. PTX ISA 9.7.13.13 (griddepcontrol)."""
    current()
    emit(GridDependencyLaunch())


def warp_map(f: Callable[[Any], None]) -> None:
    """`@kd.warp_map` above `def _(warp): ...` runs it in each of the warpgroup's 4 warps, with its number (int32).

    Inside there are rank-0 values and Refs: copies, barriers, loops, rank-0 loads and stores. Raises `WarpValue` for an
    array value, and `WarpUse` for wgmma, other operations of a whole warpgroup, and another `warp_map`.
    """
    made = Region()
    trace = current()
    outer = trace.in_warps
    with into(made):
        trace.in_warps = True
        try:
            index = new_value(ArrayType((), dt.int32, SCALAR))
            index.facts = Range(0, 3)
            made.args = (index,)
            if called(f, (index,), "warp_map", "f", "f(warp)") is not None:
                raise BodyReturned(what="the body of `kd.warp_map`", got="a value", hint="store results to Refs")
            end_region(made, ())
        finally:
            trace.in_warps = outer
    _check_scalars(made)
    emit(WarpMap(made))


def _check_scalars(made: Region) -> None:
    for op in made.ops:
        if op.together:  # PTX ISA 9.7.15 and 9.7.19.5: wgmma and setmaxnreg are for all four warps; a warp has no warps
            raise WarpUse(loc=op.loc, op=op.spoken())
        for value in (*op.values(), *op.results):
            if isinstance(value.type, ArrayType) and value.type.shape:
                raise WarpValue(loc=op.loc, what=f"`{op.op_name}` has an operand or result of shape {value.type.shape}")
        for inner in op.region_list():
            _check_scalars(inner)


def alias(ref: Ref, offset: int, type: RefType) -> Ref:
    """A buffer of `type` inside the buffer of `ref`."""
    return Ref(emit(AliasSmem(ref.root, offset, type)).result)
