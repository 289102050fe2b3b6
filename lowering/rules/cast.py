"""Conversions between dtypes (docs/programming-model.md, 'dtypes')."""

from __future__ import annotations

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.ops.cast import Bitcast, Cast, Constant
from kernel_dsl.target import Feature

from ..context import Context, Rules
from ..llvm_types import llvm_type, suffix
from ..value import Regs, V
from . import fp8
from .widen import BYTES, HALVES, halves, widen_bytes


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
    if op.dtype == dt.float32 and source == dt.float64:  # one conversion, rounded to nearest
        return [n.to("fptrunc", "float") for n in names]
    return [convert(ctx, n, source, op.dtype, op.saturate) for n in names]


def _widen_bfloat(ctx: Context, name: V) -> V:
    """bfloat16 is the upper half of a float32: a shift or a mask of the word it came in, no conversion unit."""
    word = ctx.words.get(name)
    if word is not None:
        whole, half = word
        return (whole << 16 if half == 0 else whole & -65536).bitcast("float")
    if not name.startswith("%"):
        return name.to("fpext", "float")
    return (name.bitcast("i16").zext("i32") << 16).bitcast("float")


def _narrow_pairs(ctx: Context, names: Regs, to: DType) -> Regs:
    """Two at a time: PTX `cvt.rn.bf16x2.f32`, `cvt.rn.f16x2.f32`."""
    t = llvm_type(to)
    out: Regs = []
    for i in range(0, len(names) - 1, 2):
        out += halves(ctx, ctx.e.vector(names[i : i + 2]).to("fptrunc", f"<2 x {t}>"))
    if len(names) % 2:
        out.append(names[-1].to("fptrunc", t))
    return out


def convert(ctx: Context, x: V, source: DType, to: DType, saturate: bool = True) -> V:
    """One element."""
    t = llvm_type(to)
    if to.is_bool:
        if source in dt.FP8:
            return (x & 127).differs(0)
        return x.differs(ctx.e.literal(0, source))
    if to in dt.FP8:
        return fp8.narrow(ctx, as_float32(ctx, x, source), to, saturate)
    if source in dt.FP8:
        wide = fp8.widen(ctx, x, source)
        return wide if to == dt.float32 else convert(ctx, wide, dt.float32, to)
    if source.is_bool:
        return x.to("uitofp" if to.is_float else "zext", t)
    if source.is_float and to.is_float:
        if to.bits > source.bits:
            return x.to("fpext", t)
        return as_float32(ctx, x, source).to("fptrunc", t)
    if source.is_float:
        if source.bits < 32:
            return convert(ctx, x.to("fpext", "float"), dt.float32, to)
        return _to_integer(ctx, x, source, to)
    if to == dt.bfloat16:
        return as_float32(ctx, x, source).to("fptrunc", t)
    if to.is_float:
        return x.to("sitofp" if source.is_signed else "uitofp", t)
    return x.resized(t, source.is_signed)


def _to_integer(ctx: Context, x: V, source: DType, to: DType) -> V:
    """A float32 or float64 truncated and saturated; NaN gives 0.

    PTX `cvt.rzi` saturates. It takes NaN to 0, but to the top bit if either type has 64 bits (PTX ISA 9.7.9.21). For
    results narrower than 32 bits LLVM clamps in the float type.
    """
    t = llvm_type(to)
    if to.bits < 32:
        sign = "s" if to.is_signed else "u"
        return ctx.e.call(t, f"llvm.fpto{sign}i.sat.{t}.{suffix(x.type)}", x)
    own = "d" if source == dt.float64 else "f"
    unsigned, width = "" if to.is_signed else "u", "ll" if to.bits == 64 else "i"
    result = ctx.e.call(t, f"llvm.nvvm.{own}2{unsigned}{width}.rz", x)
    if source == dt.float32 and to.bits == 32:
        return result
    return x.is_nan().where(0, result)


def as_float32(ctx: Context, x: V, source: DType) -> V:
    """A float32 that rounds to any narrower format as the exact value would.

    A value that float32 can't hold is rounded to odd: truncated, with the last bit set. Boldo and Melquiond,
    "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008.
    """
    if source in dt.FP8:
        return fp8.widen(ctx, x, source)
    if source.is_bool:
        return x.to("uitofp", "float")
    if source.is_float and source.bits <= 32:
        return x.to("fpext", "float")
    if source.is_integer and source.bits < 32:
        return x.to("sitofp" if source.is_signed else "uitofp", "float")
    if source == dt.float64:
        (cut,) = ctx.e.ptx("cvt.rz.f32.f64 $0, $1;", x, results=["float"], pure=True)
        inexact = cut.to("fpext", "double").unlike(x)
    else:
        sign = "s" if source.is_signed else "u"
        (cut,) = ctx.e.ptx(f"cvt.rz.f32.{sign}{source.bits} $0, $1;", x, results=["float"], pure=True)
        inexact = ctx.e.call(x.type, f"llvm.fpto{sign}i.sat.{x.type}.f32", cut).differs(x)
    return (cut.bitcast("i32") | inexact.zext("i32")).bitcast("float")


def lower_bitcast(ctx: Context, op: Bitcast) -> None:
    ctx.values[op.result] = [n.bitcast(llvm_type(op.dtype)) for n in ctx.regs(op.x)]


def lower_constant(ctx: Context, op: Constant) -> None:
    ctx.values[op.result] = [ctx.e.literal(op.value, op.dtype)]


RULES: Rules = {Constant: lower_constant, Cast: lower_cast, Bitcast: lower_bitcast}
