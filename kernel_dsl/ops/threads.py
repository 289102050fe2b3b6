"""Below and beside the warpgroup: warps on their own, PTX by hand, grids that overlap, and shared buffers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

from .. import dtypes as dt
from ..boundary import called
from ..dtypes import DType, as_dtype
from ..errors import BadArgument, BadArgumentType, BodyReturned
from ..errors_hopper import WarpUse, WarpValue
from ..facts import Range
from ..ir import ArrayType, Effect, Op, RefType, Region, Value, array_type, attr, operand, operands, region
from ..layout import SCALAR
from ..refs import Ref
from ..target import Feature
from ..trace import current, emit, end_region, into, new_value, resolve
from ..tree import flatten, unflatten
from .cast import as_value
from .elementwise import together
from .sync import WarpgroupBarrier

__all__ = [
    "griddepcontrol_launch_dependents",
    "griddepcontrol_wait",
    "inline_ptx",
    "optimization_barrier",
    "warp_map",
]


class OptimizationBarrier(Op, name="optimization_barrier", effect=Effect.SYNC):
    """The same values; nothing is known of them and nothing moves across. No instruction."""

    xs: tuple[Value, ...] = operands()

    def infer(self) -> tuple[Any, ...]:
        return tuple(array_type(x) for x in self.xs)


class InlinePtx(Op, name="inline_ptx", effect=Effect.SYNC):
    """PTX by hand, once for every register of the operands: `$0`, `$1` ... are results, then operands."""

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
    """The values (one, or several as a tuple; pytrees too), hidden from the optimiser."""
    tree: Any = values[0] if len(values) == 1 else values
    leaves, structure = flatten(tree)
    xs = tuple(as_value(x, "optimization_barrier") for x in leaves)
    for x in xs:
        if x.ndim:
            resolve(x.type.layout)
    return unflatten(structure, list(emit(OptimizationBarrier(xs)).results))


_OPERAND = r"\$\$|\$(\d+)|\$"


def inline_ptx(template: str, *args: Any, out_type: Any = None, pure: bool = False, layout: Any = None) -> Any:
    """PTX instructions for every element: `kd.inline_ptx("ex2.approx.f32 $0, $1;", x, out_type=kd.float32)`.

    `$0`, `$1` ... are the results in order of `out_type` (a dtype, several, or None), then the operands, broadcast
    together; `$$` is a dollar. `pure`: the optimiser may move, merge or drop it. Operands and results have 16, 32 or
    64 bits, or are bool (a predicate). What the text does is not checked.

    A Ref, or a view of one, is the address of its first element: 32 bits in SMEM, for `ld.shared` and its kin, and 64 in
    GMEM; SMEM with tiling or swizzle has no such address. The warpgroup's lanes meet before and after.

    Where the template has `$1[0]` or `$1[*]`, it is run once, not once for every element: `$1[j]` is register number j of
    those that a lane holds of operand 1, in the order of its layout, and `$1[*]` all of them with commas between. Elements of
    8 and 16 bits share registers of 32 bits. A result has the shape and the layout of the first array, or those of a
    `kd.ShapeDtypeStruct` in `out_type` and of `layout`, one or one for each result.

    Raises `BadArgument`, `BadArgumentType`.
    """
    op = "inline_ptx"
    from .inline import address_of, inline_registers, uses_registers

    refs = any(isinstance(a, Ref) for a in args)
    args = tuple(address_of(a, op) if isinstance(a, Ref) else a for a in args)
    if refs:
        emit(WarpgroupBarrier())
    try:
        if isinstance(template, str) and uses_registers(template):  # pyright: ignore[reportUnnecessaryIsInstance]
            return inline_registers(template, args, out_type, pure, layout)
        if layout is not None:
            raise BadArgument(op=op, what="a layout for elements", hint="it is for results by registers, as in `$0[*]`")
        return _inline_elements(template, args, out_type, pure)
    finally:
        if refs:
            emit(WarpgroupBarrier())


def _inline_elements(template: str, args: tuple[Any, ...], out_type: Any, pure: bool) -> Any:
    """A template for every element."""
    op = "inline_ptx"
    single = out_type is not None and not isinstance(out_type, (tuple, list))
    given = cast("Sequence[Any]", () if out_type is None else ((out_type,) if single else out_type))
    outs: tuple[DType, ...] = tuple([as_dtype(d) for d in given])
    xs = together([as_value(a, op) for a in args], op) if args else []
    for d in (*outs, *(x.dtype for x in xs)):
        if d.bits == 8 and not d.is_bool:
            raise BadArgumentType(
                op=op, what=f"an operand of {d}", hint="PTX has no 8-bit registers: convert to 16 bits"
            )
    if not isinstance(template, str) or not template.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgumentType(op=op, what=f"template {template!r}", hint="a string of PTX instructions")
    for found in re.finditer(_OPERAND, template):
        if found[0] != "$$" and (found[1] is None or int(found[1]) >= len(outs) + len(xs)):
            what = f"{found[0]!r} in the template, with {len(outs)} results and {len(xs)} operands"
            raise BadArgument(op=op, what=what, hint="results are $0 ..., then operands; write `$$` for a dollar")
    if any(c in template for c in '"\\') or not template.isascii():
        raise BadArgument(op=op, what="a quote, backslash or non-ASCII character", hint="write plain PTX")
    results = emit(InlinePtx(tuple(xs), template, outs, bool(pure))).results
    return None if not outs else results[0] if single else tuple(results)


def griddepcontrol_wait() -> None:
    """Wait until the kernels that this one depends on are done; the launch then lets this one start before that."""
    current()
    emit(GridDependencyWait())


def griddepcontrol_launch_dependents() -> None:
    """Let the next kernel in the stream start, if it was launched so that it may (see `griddepcontrol_wait`)."""
    current()
    emit(GridDependencyLaunch())


def warp_map(f: Callable[[Any], None]) -> None:
    """`@kd.warp_map` above `def _(warp): ...` runs it in each of the warpgroup's 4 warps, with its number (int32).

    Inside there are rank-0 values and Refs: copies, barriers, loops, rank-0 loads and stores. Raises `WarpValue` where
    an array value is made or used, `WarpUse` for wgmma and what else a whole warpgroup does, and for another `warp_map`.
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
