"""Rearrangement of values."""

from __future__ import annotations

from math import prod

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.layout import LANE_BITS, Layout
from kernel_dsl.ops.shape import Pick, Squeeze, Transpose
from kernel_dsl.refs import strides_of
from kernel_dsl.relabel import picked, renamed, sliced

from ..context import Context, Rules
from ..value import Regs, V
from .access import inside
from .exchange import pass_through, read_view, write_value
from .reduce import choose, shuffle


def lower_same_registers(ctx: Context, op: Squeeze) -> None:
    ctx.values[op.result] = ctx.regs(op.x)


def lower_transpose(ctx: Context, op: Transpose) -> None:
    source = layout_of(op.x)
    names = ctx.regs(op.x)
    back = [op.permutation.index(d) for d in range(source.rank)]
    ctx.values[op.result] = [
        names[source.register_of[tuple(coord[b] for b in back)]] for coord in layout_of(op.result).register_coords
    ]


# --- through SMEM --------------------------------------------------------------------------------


def lower_pick(ctx: Context, op: Pick) -> None:
    dtype: DType = op.x.type.dtype
    shape: tuple[int, ...] = op.x.type.shape
    layout = layout_of(op.result)
    fill = ctx.regs(op.fill) if op.fill is not None else None
    direct = _in_registers(ctx, op, fill)
    if direct is not None:
        ctx.values[op.result] = direct
        return
    strides = [s * dtype.itemsize for s in strides_of(shape)]
    ctx.values[op.result] = pass_through(
        ctx,
        prod(shape) * dtype.itemsize,
        lambda window: write_value(ctx, window, op.x, strides),
        lambda window: read_view(ctx, window, dtype, op.root, op.view, op.offsets, layout, fill),
    )


def _in_registers(ctx: Context, op: Pick, fill: Regs | None) -> Regs | None:
    """The result's registers, if each lane has its own elements, or one lane has those of all."""
    old, new = layout_of(op.x), layout_of(op.result)
    shape: tuple[int, ...] = op.x.type.shape
    zero = ctx.e.literal(0, op.x.type.dtype)
    names = ctx.regs(op.x)
    if op.offsets:
        return None
    if op.root != shape:
        places = renamed(old, new, shape, op.root)
        return None if places is None else [zero if i is None else names[i] for i in places]
    found = sliced(old, op.view)
    if found is None or found.layout != new:
        return None
    places = picked(old, new, op.view)
    if found.mask:
        lane = ctx.lane_sum([(i, 1 << i) for i in range(LANE_BITS) if not found.mask >> i & 1]).plus(found.value)
        taken = {i: shuffle(ctx, names[i], "idx", lane) for i in dict.fromkeys(places) if i is not None}
    else:
        taken = dict(enumerate(names))
    others = [zero] * len(places) if fill is None else fill
    return [
        other if i is None else choose(_within(ctx, op, new, coord), taken[i], other)
        for i, coord, other in zip(places, new.register_coords, others, strict=True)
    ]


def _within(ctx: Context, op: Pick, layout: Layout, coord: tuple[int, ...]) -> V | None:
    """Whether a register's element is below the view's upper limits; None: always.

    No register is below the lower limits.
    """
    predicate: V | None = None
    for limit in op.view.masked:
        for dim, walk in enumerate(op.view.dims):
            if walk.axis == limit.axis and limit.high is not None:
                room = int(limit.high) - op.view.start[limit.axis]
                predicate = ctx.e.both(predicate, inside(ctx, layout, dim, room, coord[dim]))
    return predicate


RULES: Rules = {
    Transpose: lower_transpose,
    Squeeze: lower_same_registers,
    Pick: lower_pick,
}
