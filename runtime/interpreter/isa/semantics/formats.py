"""Floating formats, and one rounding routine that serves all of them in every rounding mode.

`pack` rounds a 62-bit significand with a sticky bit to any format; `encode` feeds it from float64.
Values of every format up to f32 are exact in float64, so an operation done exactly (or rounded to
odd) in float64 and encoded once is correctly rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from .types import CANONICAL_NAN_F64, Array


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary floating format.

    `mantissa` stored bits, exponent `bias`, codes without the sign bit.
    """

    name: str
    bits: int
    mantissa: int
    bias: int
    nan: int  # the NaN that instructions give
    infinity: int | None  # None: the format has none, and overflow gives NaN or saturates

    @property
    def lowest_exponent(self) -> int:
        """Return the exponent of the smallest normal number."""
        return 1 - self.bias

    @property
    def largest(self) -> int:
        """Return the code of the largest finite number."""
        return (self.nan if self.infinity is None else self.infinity) - 1

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)


F64 = FloatFormat("f64", 64, 52, 1023, int(CANONICAL_NAN_F64), 0x7FF << 52)
F32 = FloatFormat("f32", 32, 23, 127, 0x7FFFFFFF, 0x7F800000)
F16 = FloatFormat("f16", 16, 10, 15, 0x7FFF, 0x7C00)
BF16 = FloatFormat("bf16", 16, 7, 127, 0x7FFF, 0x7F80)
TF32 = FloatFormat("tf32", 19, 10, 127, 0x3FFFF, 0x3FC00)  # codes without the 13 ignored bits
E4M3 = FloatFormat("e4m3", 8, 3, 7, 0x7F, None)
E5M2 = FloatFormat("e5m2", 8, 2, 15, 0x7F, 0x7C)
# These have neither infinity nor NaN: the code after the largest number is no result.
E2M1 = FloatFormat("e2m1", 4, 1, 1, 0x8, None)
E2M3 = FloatFormat("e2m3", 6, 3, 1, 0x20, None)
E3M2 = FloatFormat("e3m2", 6, 2, 3, 0x20, None)

FORMATS = {f.name: f for f in (F64, F32, F16, BF16, TF32, E4M3, E5M2, E2M1, E2M3, E3M2)}

_TOP = 61  # the bit of the leading one in a significand given to `pack`


def _round_up(mode: str, negative: Array, quotient: Array, rest: Array, half: Array) -> Array:
    """Return whether the magnitude `quotient`, with `rest` below it, is rounded up by one. `half` is half a unit."""
    if mode == "rn":
        return (rest > half) | ((rest == half) & ((quotient & np.uint64(1)) != 0))
    if mode == "rna":
        return rest >= half
    if mode == "rm":
        return negative & (rest != 0)
    if mode == "rp":
        return ~negative & (rest != 0)
    return np.zeros(np.shape(rest), np.bool_)


def pack(
    negative: Array,
    exponent: Array,
    significand: Array,
    fmt: FloatFormat,
    mode: str,
    saturate: bool = False,
) -> Array:
    """Return the codes (uint64, sign included) of +-significand * 2**(exponent - 61), correctly rounded.

    `significand` is uint64 with its leading one at bit 61, or 0, and its bit 0 is sticky; `exponent` is int64. Overflow
    gives what IEEE 754 says for `mode`, or with `saturate` the largest number.
    """
    lowest = np.int64(fmt.lowest_exponent)
    exponent = np.where(significand == 0, lowest, exponent)
    normal = np.maximum(exponent, lowest)
    drop = np.minimum(np.int64(_TOP - fmt.mantissa) + (normal - exponent), np.int64(63)).astype(np.uint64)
    one = np.uint64(1)
    quotient = significand >> drop
    rest = significand & ((one << drop) - one)
    quotient = quotient + _round_up(mode, negative, quotient, rest, one << (drop - one))
    # The leading one of a normal quotient adds 1 to the biased exponent; a carry adds one more.
    biased = np.minimum(normal - lowest, np.int64(2 * fmt.bias + 2)).astype(np.uint64)
    code = quotient + (biased << np.uint64(fmt.mantissa))
    largest = np.uint64(fmt.largest)
    over = code > largest
    if np.count_nonzero(over):
        code = np.where(over, _overflow(negative, fmt, mode, saturate), code)
    return code | np.where(negative, np.uint64(fmt.sign), np.uint64(0))


def _overflow(negative: Array, fmt: FloatFormat, mode: str, saturate: bool) -> Array:
    largest = np.uint64(fmt.largest)
    beyond = np.uint64(fmt.nan if fmt.infinity is None else fmt.infinity)
    if saturate or mode == "rz":
        return np.broadcast_to(largest, np.shape(negative))
    if mode == "rm":
        return np.where(negative, beyond, largest)
    if mode == "rp":
        return np.where(negative, largest, beyond)
    return np.broadcast_to(beyond, np.shape(negative))


_FRACTION = np.uint64((1 << 52) - 1)
_IMPLICIT = np.uint64(1 << 52)


def encode(x: Array, fmt: FloatFormat, mode: str = "rn", saturate: bool = False) -> Array:
    """Return float64 values as codes of a format no wider than f32, in uint64.

    NaN gives the format's NaN, without sign. With `saturate` (`.satfinite`), infinities and overflows give the largest
    number.
    """
    bits = x.view(np.uint64)
    negative = x.view(np.int64) < 0
    biased = (bits >> np.uint64(52)).astype(np.int64) & np.int64(0x7FF)
    # float64's subnormals are far below every target's range: as zero with a sticky bit they round
    # alike.
    significand = np.where(biased == 0, (bits & _FRACTION) != 0, (bits & _FRACTION | _IMPLICIT) << np.uint64(9))
    code = pack(negative, biased - np.int64(1023), significand, fmt, mode, saturate)
    special = biased == 0x7FF
    if np.count_nonzero(special):
        infinity = fmt.largest if saturate or fmt.infinity is None else fmt.infinity
        if fmt.infinity is None and not saturate:
            infinity = fmt.nan
        sign = np.where(negative, np.uint64(fmt.sign), np.uint64(0))
        code = np.where(special, np.where(x != x, np.uint64(fmt.nan), sign | np.uint64(infinity)), code)
    return code


# --- decoding ------------------------------------------------------------------------------------


@cache
def _table(name: str) -> Array:
    """Return all values of a format of at most 8 bits, as float32."""
    fmt = FORMATS[name]
    code = np.arange(1 << fmt.bits)
    magnitude = code & (fmt.sign - 1)
    exponent, fraction = magnitude >> fmt.mantissa, code & ((1 << fmt.mantissa) - 1)
    scale = np.ldexp(1.0, np.maximum(exponent, 1) - fmt.bias - fmt.mantissa)
    value = (fraction + np.where(exponent > 0, 1 << fmt.mantissa, 0)) * scale
    value[magnitude > fmt.largest] = np.nan
    if fmt.infinity is not None:
        value[magnitude == fmt.infinity] = np.inf
    return np.where(code & fmt.sign, -value, value).astype(np.float32)


def decode(bits: Array, name: str) -> Array:
    """Return register bits of a scalar format as NumPy floats: float64 for f64, float32 (exact) for the others.

    `bits` are in the storage dtype of the format; codes of at most 8 bits in any unsigned dtype.
    """
    if name == "f32":
        return bits.view(np.float32)
    if name == "f64":
        return bits.view(np.float64)
    if name == "f16":
        return bits.view(np.float16).astype(np.float32)
    if name == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if name == "tf32":
        return (bits & np.uint32(0xFFFFE000)).view(np.float32)
    return _table(name)[bits]


def bf16_of_f32(x: Array) -> Array:
    """Round float32 values to nearest even, to bf16 codes in uint16."""
    bits = x.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    nan = x != x
    if np.count_nonzero(nan):
        rounded = np.where(nan, np.uint32(BF16.nan), rounded)
    return rounded.astype(np.uint16)


def f16_of_float(x: Array) -> Array:
    """Round float32 or float64 values to nearest even, to f16 codes in uint16."""
    code = x.astype(np.float16).view(np.uint16)
    nan = x != x
    return np.where(nan, np.uint16(F16.nan), code) if np.count_nonzero(nan) else code


_NEAREST: dict[str, Any] = {"f16": f16_of_float, "bf16": bf16_of_f32}


def half_of_f32(x: Array, name: str) -> Array:
    """Round float32 values to nearest even, to f16 or bf16."""
    return _NEAREST[name](x)
