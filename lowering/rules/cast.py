"""Conversions between dtypes (docs/programming-model.md, 'dtypes')."""

from __future__ import annotations

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.ops.cast import Bitcast, Cast

from ..context import Context
from ..emit import Regs, literal, llvm_type, suffix


def lower_cast(ctx: Context, op: Cast) -> None:
    source: DType = op.x.type.dtype
    names = ctx.regs(op.x)
    if source == op.dtype:
        ctx.values[op.result] = names
    elif source == dt.float32 and op.dtype in (dt.bfloat16, dt.float16):
        ctx.values[op.result] = _narrow_pairs(ctx, names, op.dtype)
    elif source == dt.bfloat16 and op.dtype == dt.float32:
        ctx.values[op.result] = [_widen_bfloat(ctx, n) for n in names]
    else:
        ctx.values[op.result] = [convert(ctx, n, source, op.dtype) for n in names]
    assert len(ctx.values[op.result]) == layout_of(op.result).registers


def _widen_bfloat(ctx: Context, name: str) -> str:
    """bfloat16 is the upper half of a float32: a shift or a mask of the word it came in, no conversion unit."""
    e = ctx.e
    word = ctx.words.get(name)
    if word is None:
        if not name.startswith("%"):
            return e.v(f"fpext bfloat {name} to float")
        wide = e.v(f"zext i16 {e.v(f'bitcast bfloat {name} to i16')} to i32")
        return e.v(f"bitcast i32 {e.v(f'shl i32 {wide}, 16')} to float")
    whole, half = word
    bits = e.v(f"shl i32 {whole}, 16") if half == 0 else e.v(f"and i32 {whole}, -65536")
    return e.v(f"bitcast i32 {bits} to float")


def _narrow_pairs(ctx: Context, names: Regs, to: DType) -> Regs:
    """Two at a time: PTX `cvt.rn.bf16x2.f32`, `cvt.rn.f16x2.f32`."""
    e, t = ctx.e, llvm_type(to)
    out: Regs = []
    for i in range(0, len(names) - 1, 2):
        vector = e.v(f"insertelement <2 x float> undef, float {names[i]}, i32 0")
        vector = e.v(f"insertelement <2 x float> {vector}, float {names[i + 1]}, i32 1")
        narrow = e.v(f"fptrunc <2 x float> {vector} to <2 x {t}>")
        word = e.v(f"bitcast <2 x {t}> {narrow} to i32")
        for half in (0, 1):
            name = e.v(f"extractelement <2 x {t}> {narrow}, i32 {half}")
            ctx.words[name] = (word, half)
            out.append(name)
    if len(names) % 2:
        out.append(e.v(f"fptrunc float {names[-1]} to {t}"))
    return out


def convert(ctx: Context, x: str, source: DType, to: DType) -> str:
    """One element."""
    e = ctx.e
    a, b = llvm_type(source), llvm_type(to)
    if to.is_bool:
        return e.v(f"fcmp une {a} {x}, {literal(0, source)}" if source.is_float else f"icmp ne {a} {x}, 0")
    if source.is_bool:
        return e.v(f"uitofp i1 {x} to {b}" if to.is_float else f"zext i1 {x} to {b}")
    if source.is_float and to.is_float:
        return e.v(f"{'fpext' if to.bits > source.bits else 'fptrunc'} {a} {x} to {b}")
    if source.is_float:
        sign = "s" if to.is_signed else "u"
        return e.v(f"call {b} @llvm.fpto{sign}i.sat.{b}.{suffix(source)}({a} {x})")
    if to.is_float:
        return e.v(f"{'s' if source.is_signed else 'u'}itofp {a} {x} to {b}")
    if to.bits < source.bits:
        return e.v(f"trunc {a} {x} to {b}")
    if to.bits == source.bits:
        return x
    return e.v(f"{'sext' if source.is_signed else 'zext'} {a} {x} to {b}")


def lower_bitcast(ctx: Context, op: Bitcast) -> None:
    a, b = llvm_type(op.x.type.dtype), llvm_type(op.dtype)
    names = ctx.regs(op.x)
    ctx.values[op.result] = names if a == b else [ctx.e.v(f"bitcast {a} {n} to {b}") for n in names]


RULES = {Cast: lower_cast, Bitcast: lower_bitcast}
