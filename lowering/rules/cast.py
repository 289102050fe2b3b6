"""Conversions between dtypes (docs/programming-model.md, 'dtypes')."""

from __future__ import annotations

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.ops.cast import Bitcast, Cast
from kernel_dsl.target import Feature

from ..context import Context, Rules
from ..emit import Regs, literal, llvm_type, suffix
from . import fp8
from .widen import BYTES, HALVES, widen_bytes


def lower_cast(ctx: Context, op: Cast) -> None:
    source: DType = op.x.type.dtype
    names = ctx.regs(op.x)
    if source == op.dtype:
        ctx.values[op.result] = names
    elif source == dt.float32 and op.dtype in (dt.bfloat16, dt.float16):
        ctx.values[op.result] = _narrow_pairs(ctx, names, op.dtype)
    elif source == dt.bfloat16 and op.dtype == dt.float32:
        ctx.values[op.result] = [_widen_bfloat(ctx, n) for n in names]
    elif source in BYTES and op.dtype in HALVES and len(names) % 2 == 0:
        ctx.values[op.result] = widen_bytes(ctx, names, source, op.dtype)
    else:
        ctx.values[op.result] = _each(ctx, op, names, source)
    assert len(ctx.values[op.result]) == layout_of(op.result).registers


def _each(ctx: Context, op: Cast, names: Regs, source: DType) -> Regs:
    if op.dtype in dt.FP8 and ctx.target.supports(Feature.MMA_FP8):
        return fp8.narrow_pairs(ctx, [as_float32(ctx, n, source) for n in names], op.dtype, op.saturate)
    if op.dtype == dt.float32 and source == dt.float64:  # directly, and rounded to nearest
        return [ctx.e.v(f"fptrunc double {n} to float") for n in names]
    return [convert(ctx, n, source, op.dtype, op.saturate) for n in names]


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


def convert(ctx: Context, x: str, source: DType, to: DType, saturate: bool = True) -> str:
    """One element."""
    e = ctx.e
    a, b = llvm_type(source), llvm_type(to)
    if to.is_bool:
        if source in dt.FP8:
            return e.v(f"icmp ne i8 {e.v(f'and i8 {x}, 127')}, 0")
        return e.v(f"fcmp une {a} {x}, {literal(0, source)}" if source.is_float else f"icmp ne {a} {x}, 0")
    if to in dt.FP8:
        return fp8.narrow(ctx, as_float32(ctx, x, source), to, saturate)
    if source in dt.FP8:
        wide = fp8.widen(ctx, x, source)
        return wide if to == dt.float32 else convert(ctx, wide, dt.float32, to)
    if source.is_bool:
        return e.v(f"uitofp i1 {x} to {b}" if to.is_float else f"zext i1 {x} to {b}")
    if source.is_float and to.is_float:
        if to.bits > source.bits:
            return e.v(f"fpext {a} {x} to {b}")
        narrow = as_float32(ctx, x, source)
        return narrow if to == dt.float32 else e.v(f"fptrunc float {narrow} to {b}")
    if source.is_float:
        if source.bits < 32:
            return convert(ctx, e.v(f"fpext {a} {x} to float"), dt.float32, to)
        return _to_integer(ctx, x, source, to)
    if to == dt.bfloat16:
        return e.v(f"fptrunc float {as_float32(ctx, x, source)} to bfloat")
    if to.is_float:
        return e.v(f"{'s' if source.is_signed else 'u'}itofp {a} {x} to {b}")
    if to.bits < source.bits:
        return e.v(f"trunc {a} {x} to {b}")
    if to.bits == source.bits:
        return x
    return e.v(f"{'sext' if source.is_signed else 'zext'} {a} {x} to {b}")


def _to_integer(ctx: Context, x: str, source: DType, to: DType) -> str:
    """A float32 or float64 truncated and saturated; NaN gives 0.

    PTX `cvt.rzi` saturates. Its NaN gives 0 too, but where either type has 64 bits it gives the top bit (PTX ISA
    9.7.9.21). Narrower than 32 bits LLVM clamps in the float type.
    """
    e = ctx.e
    a, b = llvm_type(source), llvm_type(to)
    if to.bits < 32:
        sign = "s" if to.is_signed else "u"
        return e.v(f"call {b} @llvm.fpto{sign}i.sat.{b}.{suffix(source)}({a} {x})")
    own, unsigned, width = (
        "d" if source == dt.float64 else "f",
        "" if to.is_signed else "u",
        "ll" if to.bits == 64 else "i",
    )
    result = e.v(f"call {b} @llvm.nvvm.{own}2{unsigned}{width}.rz({a} {x})")
    if source == dt.float32 and to.bits == 32:
        return result
    return e.v(f"select i1 {e.v(f'fcmp uno {a} {x}, {x}')}, {b} 0, {b} {result}")


def as_float32(ctx: Context, x: str, source: DType) -> str:
    """A float32 that rounds to any narrower format as the exact value would.

    Where float32 can't hold the value it is rounded to odd: truncated, with the last bit set. Boldo and Melquiond,
    "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008.
    """
    e = ctx.e
    a = llvm_type(source)
    if source == dt.float32:
        return x
    if source in dt.FP8:
        return fp8.widen(ctx, x, source)
    if source.is_bool:
        return e.v(f"uitofp i1 {x} to float")
    if source.is_float and source.bits < 32:
        return e.v(f"fpext {a} {x} to float")
    if source.is_integer and source.bits < 32:
        return e.v(f"{'s' if source.is_signed else 'u'}itofp {a} {x} to float")
    if source == dt.float64:
        (cut,) = e.asm("cvt.rz.f32.f64 $0, $1;", "=f,d", [("double", x)], ["float"], sideeffect=False)
        back = e.v(f"fpext float {cut} to double")
        inexact = e.v(f"fcmp one double {back}, {x}")  # false for NaN
    else:
        sign = "s" if source.is_signed else "u"
        letter = "l" if source.bits == 64 else "r"
        text = f"cvt.rz.f32.{sign}{source.bits} $0, $1;"
        (cut,) = e.asm(text, f"=f,{letter}", [(a, x)], ["float"], sideeffect=False)
        back = e.v(f"call {a} @llvm.fpto{sign}i.sat.{a}.f32(float {cut})")
        inexact = e.v(f"icmp ne {a} {back}, {x}")
    odd = e.v(f"or i32 {e.v(f'bitcast float {cut} to i32')}, {e.v(f'zext i1 {inexact} to i32')}")
    return e.v(f"bitcast i32 {odd} to float")


def lower_bitcast(ctx: Context, op: Bitcast) -> None:
    a, b = llvm_type(op.x.type.dtype), llvm_type(op.dtype)
    names = ctx.regs(op.x)
    ctx.values[op.result] = names if a == b else [ctx.e.v(f"bitcast {a} {n} to {b}") for n in names]


RULES: Rules = {Cast: lower_cast, Bitcast: lower_bitcast}
