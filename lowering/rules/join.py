"""Joins of values."""

from __future__ import annotations

from math import prod

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.ops.join import Concatenate
from kernel_dsl.refs import View, ViewDim, strides_of

from ..context import Context, Rules
from ..value import Regs, V
from .exchange import Window, pass_through, read_view, write_value


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
    """The parts' registers in the result's order, if all elements stay in their lanes."""
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


RULES: Rules = {Concatenate: lower_concatenate}
