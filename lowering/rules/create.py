"""Index arrays."""

from __future__ import annotations

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.ops.create import Iota

from ..context import Context, Rules
from ..emit import Regs, literal, llvm_type
from .cast import convert


def lower_iota(ctx: Context, op: Iota) -> None:
    layout = layout_of(op.result)
    e = ctx.e
    lane = ctx.lane_coord(layout, op.dim)
    t = llvm_type(op.dtype)
    out: Regs = []
    made: dict[int, str] = {}
    for coord in layout.register_coords:
        share = coord[op.dim]
        if share not in made:
            index = e.pre(f"add i32 {lane}, {share}") if share else lane
            made[share] = _as_dtype(ctx, index, op.dtype, t)
        out.append(made[share])
    ctx.values[op.result] = out


def _as_dtype(ctx: Context, index: str, dtype: DType, t: str) -> str:
    e = ctx.e
    if dtype.is_float:
        if index.isdigit():
            return literal(int(index), dtype)
        if dtype.bits < 32:
            return convert(ctx, e.v(f"sitofp i32 {index} to float"), dt.float32, dtype, saturate=False)
        return e.v(f"sitofp i32 {index} to {t}")
    if index.isdigit():
        return literal(int(index) & ((1 << dtype.bits) - 1), dtype)
    if dtype.bits == 32:
        return index
    return e.v(f"zext i32 {index} to i64" if dtype.bits == 64 else f"trunc i32 {index} to {t}")


RULES: Rules = {Iota: lower_iota}
