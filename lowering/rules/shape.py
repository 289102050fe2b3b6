"""Rearrangement of values."""

from __future__ import annotations

from math import prod

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.layout import Layout
from kernel_dsl.ops.shape import Concatenate, Pick, Squeeze, Transpose
from kernel_dsl.refs import View, ViewDim, strides_of

from ..context import Context, Rules
from ..writer import Regs, V
from .exchange import Window, pass_through, read_view, write_value


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
    names = ctx.regs(op.x)
    dtype: DType = op.x.type.dtype
    shape: tuple[int, ...] = op.x.type.shape
    layout = layout_of(op.result)
    direct = _in_registers(op, layout_of(op.x), layout)
    if direct is not None:
        ctx.values[op.result] = [names[i] for i in direct]
        return
    strides = [s * dtype.itemsize for s in strides_of(shape)]
    fill = ctx.regs(op.fill) if op.fill is not None else None
    ctx.values[op.result] = pass_through(
        ctx,
        prod(shape) * dtype.itemsize,
        lambda window: write_value(ctx, window, op.x, strides),
        lambda window: read_view(ctx, window, dtype, op.root, op.view, op.offsets, layout, fill),
    )


def _in_registers(op: Pick, old: Layout, new: Layout) -> list[int] | None:
    """The source register of each result register, where all elements stay in their lanes."""
    if op.offsets or op.view.masked or op.root != op.x.type.shape or old.rank != new.rank:
        return None
    if any(d.axis != i or d.step != 1 for i, d in enumerate(op.view.dims)) or old.bits != new.bits:
        return None
    out: list[int] = []
    for coord in new.register_coords:
        found = old.register_of.get(tuple(c + s for c, s in zip(coord, op.view.start, strict=True)))
        if found is None:
            return None
        out.append(found)
    return out


def lower_concatenate(ctx: Context, op: Concatenate) -> None:
    shape: tuple[int, ...] = op.result.type.shape
    dtype: DType = op.result.type.dtype
    direct = _joined_registers(ctx, op)
    if direct is not None:
        ctx.values[op.result] = direct
        return
    item = dtype.itemsize
    strides = [s * item for s in strides_of(shape)]

    def write(window: Window) -> None:
        start = 0
        for part in op.parts:
            write_value(ctx, window, part, strides, start * strides[op.axis])
            start += part.type.shape[op.axis]

    view = View(tuple(ViewDim(n, i) for i, n in enumerate(shape)), (0,) * len(shape))
    layout = layout_of(op.result)
    ctx.values[op.result] = pass_through(
        ctx, prod(shape) * item, write, lambda window: read_view(ctx, window, dtype, shape, view, (), layout)
    )


def _joined_registers(ctx: Context, op: Concatenate) -> Regs | None:
    """The parts' registers in the result's order, where all elements stay in their lanes."""
    layout = layout_of(op.result)
    found: dict[tuple[int, ...], V] = {}
    start = 0
    for part in op.parts:
        own = layout_of(part)
        if own.bits != layout.bits:
            return None
        for coord, name in zip(own.register_coords, ctx.regs(part), strict=True):
            found[(*coord[: op.axis], coord[op.axis] + start, *coord[op.axis + 1 :])] = name
        start += part.type.shape[op.axis]
    if set(found) != set(layout.register_coords):
        return None
    return [found[c] for c in layout.register_coords]


RULES: Rules = {
    Transpose: lower_transpose,
    Squeeze: lower_same_registers,
    Pick: lower_pick,
    Concatenate: lower_concatenate,
}
