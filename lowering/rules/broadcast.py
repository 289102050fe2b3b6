"""Broadcasts, new axes and conversions of layouts."""

from __future__ import annotations

from kernel_dsl.conversion import cheaper, plan_in_warps, shared_out
from kernel_dsl.ir import layout_of
from kernel_dsl.ops.broadcast import Broadcast, ConvertLayout, Expand

from ..context import Context, Rules
from .convert import convert_in_warps
from .exchange import through_smem


def lower_broadcast(ctx: Context, op: Broadcast) -> None:
    source = ctx.regs(op.x)
    layout = layout_of(op.result)
    old = layout_of(op.x)
    if old.rank == 0:
        ctx.values[op.result] = source * layout.registers
        return
    stretched = [a != b for a, b in zip(op.x.type.shape, op.shape, strict=True)]
    ctx.values[op.result] = [
        source[old.register_of[tuple(0 if s else c for s, c in zip(stretched, coord, strict=True))]]
        for coord in layout.register_coords
    ]


def lower_expand(ctx: Context, op: Expand) -> None:
    """The same registers, repeated if the result's layout has several along a new dimension."""
    regs = ctx.regs(op.x)
    coords = layout_of(op.result).register_coords
    if len(coords) == len(regs):
        ctx.values[op.result] = regs
        return
    found = dict(zip(layout_of(op.x).register_coords, regs, strict=True))
    kept = [d for d in range(len(op.result.type.shape)) if d not in op.dims]
    ctx.values[op.result] = [found[tuple(coord[d] for d in kept)] for coord in coords]


def lower_convert_layout(ctx: Context, op: ConvertLayout) -> None:
    """Convert within warps if that is possible and cheaper, else through SMEM."""
    shape: tuple[int, ...] = op.x.type.shape
    regs, dtype = ctx.regs(op.x), op.x.type.dtype
    old, new = layout_of(op.x), layout_of(op.result)
    plan = plan_in_warps(old, new, shape)
    if plan is not None and cheaper(plan, old, new, dtype):
        ctx.values[op.result] = convert_in_warps(ctx, regs, dtype, shape, plan)
        return
    shared = shared_out(old, shape)
    if shared is not None:  # one lane stores each element, so lanes that hold copies share the stores
        regs, old = convert_in_warps(ctx, regs, dtype, shape, shared), shared.new_layout
    ctx.values[op.result] = through_smem(ctx, regs, dtype, shape, old, new)


RULES: Rules = {Broadcast: lower_broadcast, Expand: lower_expand, ConvertLayout: lower_convert_layout}
