"""float8_e4m3fn and float8_e5m2 from and to float32: the hardware's conversions, or integer arithmetic without them.

Formats: OCP 8-bit Floating Point Specification (OFP8), table 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.target import Feature

from ..context import Context
from ..emit import Regs, literal


@dataclass(frozen=True)
class _Format:
    ptx: str
    mantissa: int
    bias: int
    largest: int  # the bits of the largest finite number; the next are an infinity, or NaN: what an overflow gives
    overflow: str  # LLVM's comparison with `limit` that holds where rounding overflows
    limit: float  # halfway between the largest number and the next


_FORMATS = {  # a tie goes to the even mantissa: to the largest number of e4m3, to the infinity of e5m2
    "float8_e4m3fn": _Format("e4m3", 3, 7, 0x7E, "ogt", 464.0),
    "float8_e5m2": _Format("e5m2", 2, 15, 0x7B, "oge", 61440.0),
}


def narrow_pairs(ctx: Context, names: Regs, to: DType, saturate: bool) -> Regs:
    """Two at a time: PTX `cvt.rn.satfinite.e4m3x2.f32`, and one more where that saturated and should not have."""
    e, form = ctx.e, _FORMATS[to.name].ptx
    out: Regs = []
    for i in range(0, len(names), 2):
        pair = names[i : i + 2]
        high = pair[1] if len(pair) == 2 else literal(0, dt.float32)
        both = e.v(f"call i16 @llvm.nvvm.ff.to.{form}x2.rn(float {high}, float {pair[0]})")
        if not saturate:
            for x, one in zip(pair, (1, 256), strict=False):
                both = e.v(f"add i16 {both}, {_beyond(ctx, x, to, one)}")
        out.append(e.v(f"trunc i16 {both} to i8"))
        if len(pair) == 2:
            out.append(e.v(f"trunc i16 {e.v(f'lshr i16 {both}, 8')} to i8"))
    return out


def _beyond(ctx: Context, x: str, to: DType, one: int) -> str:
    """`one` as i16 where a float32 rounds to more than the largest number, else 0."""
    e, f = ctx.e, _FORMATS[to.name]
    magnitude = e.v(f"call float @llvm.fabs.f32(float {x})")
    over = e.v(f"fcmp {f.overflow} float {magnitude}, {literal(f.limit, dt.float32)}")
    return e.v(f"select i1 {over}, i16 {one}, i16 0")


def narrow(ctx: Context, x: str, to: DType, saturate: bool) -> str:
    """One float32, rounded to nearest even."""
    if ctx.target.supports(Feature.MMA_FP8):
        return narrow_pairs(ctx, [x], to, saturate)[0]
    e = ctx.e
    f = _FORMATS[to.name]
    bits = e.v(f"bitcast float {x} to i32")
    magnitude = e.v(f"and i32 {bits}, 2147483647")
    drop = 23 - f.mantissa
    even = e.v(f"and i32 {e.v(f'lshr i32 {magnitude}, {drop}')}, 1")
    rounded = e.v(f"add i32 {e.v(f'add i32 {magnitude}, {(1 << drop - 1) - 1}')}, {even}")
    normal = e.v(f"sub i32 {e.v(f'lshr i32 {rounded}, {drop}')}, {(127 - f.bias) << f.mantissa}")
    # adding a number whose last place is the smallest subnormal rounds to a multiple of that
    smallest = f.bias - 1 + f.mantissa
    magic = float(2 ** (23 - smallest))
    absolute = e.v(f"bitcast i32 {magnitude} to float")
    shifted = e.v(f"fadd float {absolute}, {literal(magic, dt.float32)}")
    magic_bits = (127 + 23 - smallest) << 23
    subnormal = e.v(f"sub i32 {e.v(f'bitcast float {shifted} to i32')}, {magic_bits}")
    small = e.v(f"icmp ult i32 {magnitude}, {(127 - f.bias + 1) << 23}")
    result = e.v(f"select i1 {small}, i32 {subnormal}, i32 {normal}")
    over = e.v(f"icmp sgt i32 {result}, {f.largest}")
    result = e.v(f"select i1 {over}, i32 {f.largest + (not saturate)}, i32 {result}")
    nan = e.v(f"icmp ugt i32 {magnitude}, {0x7F800000}")
    result = e.v(f"select i1 {nan}, i32 127, i32 {result}")
    sign = e.v(f"and i32 {e.v(f'lshr i32 {bits}, 24')}, 128")
    return e.v(f"trunc i32 {e.v(f'or i32 {result}, {sign}')} to i8")


def widen(ctx: Context, x: str, source: DType) -> str:
    """One element as float32, exactly."""
    e = ctx.e
    if source == dt.float8_e5m2:  # the upper byte of a half
        wide = e.v(f"shl i16 {e.v(f'zext i8 {x} to i16')}, 8")
        return e.v(f"fpext half {e.v(f'bitcast i16 {wide} to half')} to float")
    if ctx.target.supports(Feature.MMA_FP8):
        pair = e.v(f"call <2 x half> @llvm.nvvm.e4m3x2.to.f16x2.rn(i16 {e.v(f'zext i8 {x} to i16')})")
        return e.v(f"fpext half {e.v(f'extractelement <2 x half> {pair}, i32 0')} to float")
    bits = e.v(f"zext i8 {x} to i32")
    magnitude = e.v(f"shl i32 {e.v(f'and i32 {bits}, 127')}, 20")
    sign = e.v(f"shl i32 {e.v(f'and i32 {bits}, 128')}, 24")
    unscaled = e.v(f"bitcast i32 {e.v(f'or i32 {magnitude}, {sign}')} to float")
    # exponent fields differ by the biases: 2**(127 - 7), exact for subnormals too
    value = e.v(f"fmul float {unscaled}, {literal(2.0**120, dt.float32)}")
    nan = e.v(f"icmp eq i32 {e.v(f'and i32 {bits}, 127')}, 127")
    return e.v(f"select i1 {nan}, float {literal(float('nan'), dt.float32)}, float {value}")
