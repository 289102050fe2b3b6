"""Numbers of 4 bits, two a byte: how they lie in it, and how a lane makes floats of them."""

from __future__ import annotations

from typing import Any

import kernel_dsl as kd

BLOCK, HALF = 64, 32  # rows whose halves share bytes
HIGHEST, MIDDLE = 15, 8
_EXPONENT = 0x4B000000  # of 2 ** 23 as a float32, whose last bits then count by ones


def numbers(data: Any, half: int, scale: Any, zero: Any) -> Any:
    """(q - zero) * scale, float32, of the low (0) or high (1) halves of int8; `zero` None is 8.

    q becomes a float by its place in a float32: a conversion takes four times as long.
    """
    word = data.astype(kd.int32)
    bits = (word if half == 0 else word >> 4) & HIGHEST | _EXPONENT
    q = kd.bitcast_convert_type(bits, kd.float32)
    return (q - (2.0**23 + MIDDLE) if zero is None else q - 2.0**23 - zero) * scale


def power_of(code: Any) -> Any:
    """2 ** (byte - 127) of uint8, float32; NaN for 255."""
    wide = code.astype(kd.int32)
    bits = kd.where(wide == 0, 0x00400000, kd.where(wide == 255, 0x7FC00000, wide << 23))
    return kd.bitcast_convert_type(bits, kd.float32)


def floats_of(data: Any, half: int, scale: Any) -> Any:
    """e2m1 numbers times `scale`, float32, of the low (0) or high (1) halves of int8.

    Exponent and mantissa become the last of a float32's exponent and the first of its mantissa: 0.5 is subnormal in both.
    """
    word = data.astype(kd.int32) if half == 0 else data.astype(kd.int32) >> 4
    bits = (word & 7) << 22 | (word & 8) << 28
    return kd.bitcast_convert_type(bits, kd.float32) * 2.0**126 * scale
