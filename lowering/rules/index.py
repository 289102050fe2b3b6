"""Grid, cluster and warpgroup indices, and extents."""

from __future__ import annotations

from math import prod

from kernel_dsl.blocks import grid_dims
from kernel_dsl.ops.index import AxisIndex, ExtentOf, GridExtent, MultipleOf

from ..context import Context, Rules
from ..value import V


def lower_axis_index(ctx: Context, op: AxisIndex) -> None:
    if isinstance(op.size, int) and op.size == 1:
        index = ctx.e.i32(0)
    elif op.kind == "thread":
        index = ctx.warpgroup()
    elif op.kind == "cluster":
        index = ctx.cluster_index(op.position)
    else:
        index = _grid_index(ctx, op.position)
    ctx.values[op.result] = [index]


def _grid_index(ctx: Context, position: int) -> V:
    sizes = tuple(a.size for a in ctx.ir.grid)
    register = "clusterid" if _clustered(ctx) else "ctaid"
    from_end = len(sizes) - 1 - position
    # if a size comes from the launch, a condition says that no axis is folded into another
    linear = all(isinstance(n, int) for n in sizes) and grid_dims(sizes, ctx.target.limits.grid)[0] != sizes[-1]
    if not linear and from_end < 2:
        return ctx.special(f"{register}.{'xy'[from_end]}")
    # the rest of the axes share one register, the later ones running faster
    shared = sizes if linear else sizes[:-2]
    value = ctx.special(f"{register}.{'x' if linear else 'z'}")
    if len(shared) == 1:
        return value
    value = value.once // prod(shared[position + 1 :])
    return value.once % sizes[position] if position > 0 else value


def _clustered(ctx: Context) -> bool:
    return prod(a.size for a in ctx.ir.cluster) > 1


def lower_grid_extent(ctx: Context, op: GridExtent) -> None:
    # a condition says that no axis is folded into another
    register = "nclusterid" if _clustered(ctx) else "nctaid"
    ctx.values[op.result] = [ctx.special(f"{register}.{'xyz'[len(ctx.ir.grid) - 1 - op.size.axis]}")]


def lower_extent(ctx: Context, op: ExtentOf) -> None:
    extent = ctx.extent(op.extent)
    ctx.values[op.result] = [extent if op.result.type.dtype.bits == 64 else extent.once.trunc("i32")]


def lower_multiple_of(ctx: Context, op: MultipleOf) -> None:
    ctx.values[op.result] = ctx.regs(op.x)


RULES: Rules = {
    AxisIndex: lower_axis_index,
    GridExtent: lower_grid_extent,
    ExtentOf: lower_extent,
    MultipleOf: lower_multiple_of,
}
