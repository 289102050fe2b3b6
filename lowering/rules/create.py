"""Index arrays."""

from __future__ import annotations

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.ops.create import Iota

from ..context import Context, Rules
from ..llvm_types import llvm_type
from ..value import V
from .cast import convert


def lower_iota(ctx: Context, op: Iota) -> None:
    layout = layout_of(op.result)
    lane = ctx.lane_coord(layout, op.dim)
    made: dict[int, V] = {}
    for coord in layout.register_coords:
        share = coord[op.dim]
        if share not in made:
            made[share] = _as_dtype(ctx, lane.once.plus(share) if share else lane, op.dtype)
    ctx.values[op.result] = [made[coord[op.dim]] for coord in layout.register_coords]


def _as_dtype(ctx: Context, index: V, dtype: DType) -> V:
    known = index.constant
    if known is not None:
        return ctx.e.literal(known if dtype.is_float else known & ((1 << dtype.bits) - 1), dtype)
    if dtype.is_float and dtype.bits < 32:
        return convert(ctx, index.to("sitofp", "float"), dt.float32, dtype, saturate=False)
    return index.to("sitofp", llvm_type(dtype)) if dtype.is_float else index.resized(llvm_type(dtype), signed=False)


RULES: Rules = {Iota: lower_iota}
