"""float8_e4m3fn and float8_e5m2 from and to float32: the hardware's conversions, or integer arithmetic without them.

Formats: OCP 8-bit Floating Point Specification (OFP8), table 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.target import Feature

from ..context import Context
from ..value import Regs, V


@dataclass(frozen=True)
class _Format:
    ptx: str
    mantissa: int
    bias: int
    largest: int  # the bits of the largest finite number; the next bits are the result of an overflow: infinity, or NaN
    overflow: Callable[[V, float], V]  # the comparison with `limit` that holds if rounding overflows
    limit: float  # halfway between the largest number and the next


_FORMATS = {  # a tie goes to the even mantissa: to the largest number of e4m3, to the infinity of e5m2
    "float8_e4m3fn": _Format("e4m3", 3, 7, 0x7E, V.gt, 464.0),
    "float8_e5m2": _Format("e5m2", 2, 15, 0x7B, V.ge, 61440.0),
}


def narrow_pairs(ctx: Context, names: Regs, to: DType, saturate: bool) -> Regs:
    """Two at a time: PTX `cvt.rn.satfinite.e4m3x2.f32`, plus one for each number that it saturated wrongly.

    The context keeps the words of four bytes each, which take no instruction if nobody uses them.
    """
    form = _FORMATS[to.name].ptx
    out: Regs = []
    pairs: Regs = []
    for i in range(0, len(names), 2):
        pair = names[i : i + 2]
        high = pair[1] if len(pair) == 2 else ctx.e.literal(0, dt.float32)
        both = ctx.e.call("i16", f"llvm.nvvm.ff.to.{form}x2.rn", high, pair[0])
        if not saturate:
            for x, one in zip(pair, (1, 256), strict=False):
                both = both + _beyond(ctx, x, to, one)
        pairs.append(both)
        out.append(both.trunc("i8"))
        if len(pair) == 2:
            out.append((both >> 8).trunc("i8"))
    for i in range(0, len(out) - 3, 4):
        word = ctx.e.vector(pairs[i // 2 : i // 2 + 2]).bitcast("i32")
        ctx.words.update({name: (word, part) for part, name in enumerate(out[i : i + 4])})
    return out


def _beyond(ctx: Context, x: V, to: DType, one: int) -> V:
    """`one` as i16 if a float32 rounds to more than the largest number, else 0."""
    f = _FORMATS[to.name]
    return f.overflow(ctx.e.call("float", "llvm.fabs.f32", x), f.limit).where(one, 0, "i16")


def narrow(ctx: Context, x: V, to: DType, saturate: bool) -> V:
    """One float32, rounded to nearest even."""
    if ctx.target.supports(Feature.MMA_FP8):
        return narrow_pairs(ctx, [x], to, saturate)[0]
    f = _FORMATS[to.name]
    bits = x.bitcast("i32")
    magnitude = bits & 0x7FFFFFFF
    drop = 23 - f.mantissa
    even = (magnitude >> drop) & 1
    rounded = magnitude + ((1 << drop - 1) - 1) + even
    normal = (rounded >> drop) - ((127 - f.bias) << f.mantissa)
    # adding a number whose last place is the smallest subnormal rounds to a multiple of that
    smallest = f.bias - 1 + f.mantissa
    shifted = magnitude.bitcast("float") + float(2 ** (23 - smallest))
    subnormal = shifted.bitcast("i32") - ((127 + 23 - smallest) << 23)
    small = magnitude.below((127 - f.bias + 1) << 23)
    result = small.where(subnormal, normal)
    result = result.gt(f.largest).where(f.largest + (not saturate), result)
    result = magnitude.above(0x7F800000).where(127, result)
    sign = (bits >> 24) & 128
    return (result | sign).trunc("i8")


def widen(ctx: Context, x: V, source: DType) -> V:
    """One element as float32, exactly."""
    if source == dt.float8_e5m2:  # the upper byte of a half
        return (x.zext("i16") << 8).bitcast("half").to("fpext", "float")
    if ctx.target.supports(Feature.MMA_FP8):
        pair = ctx.e.call("<2 x half>", "llvm.nvvm.e4m3x2.to.f16x2.rn", x.zext("i16"))
        return pair.part(0).to("fpext", "float")
    bits = x.zext("i32")
    magnitude = (bits & 127) << 20
    sign = (bits & 128) << 24
    # exponent fields differ by the biases: 2**(127 - 7), exact for subnormals too
    value = (magnitude | sign).bitcast("float") * 2.0**120
    return (bits & 127).equal(127).where(math.nan, value)
