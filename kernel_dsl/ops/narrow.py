"""Floats narrower than 32 bits: numbers beside fp8, and what keeps all their bits - signs, extremes, neighbours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import dtypes as dt
from ..dtypes import DType
from ..values import Array
from .arith import FMax, Max, Min, bitwise_and, bitwise_or, bitwise_xor, multiply
from .cast import astype, bitcast_convert_type
from .compare import equal, greater, greater_equal, less, where
from .elementwise import as_value, constant, item_type, operands_of
from .numeric import isnan


def bits_of(value: Array) -> Array:
    """The bits of a float as a signed integer."""
    return bitcast_convert_type(value, f"int{value.dtype.bits}")


def beside_fp8(given: Any, value: Array) -> Array:
    """An operand in float32 to compute with. `given`: as the user wrote it; `value`: that rounded to the fp8 dtype.

    float8_e4m3fn has no infinity. A number beyond its range is one all the same while it is computed with, as it is in
    other dtypes: `v < inf` holds for every number.
    """
    own, _ = item_type(given, "an operand")
    if own == value.dtype and isinstance(given, Array):
        return astype(value, dt.float32)
    if isinstance(given, (bool, int, float, np.generic)):
        number = float(given)
        near = float(np.asarray(number).astype(value.dtype.numpy))
        lost = math.isnan(near) and not math.isnan(number)
        return constant(math.copysign(math.inf, number) if lost else near, dt.float32)
    wide = astype(value, dt.float32)
    if value.dtype == dt.float8_e5m2 or own.bits < 16:
        return wide
    return where(isnan(wide), multiply(as_value(given, "an operand", dt.float32), math.inf), wide)


# --- signs ---------------------------------------------------------------------------------------


def negative(x: Array) -> Array:
    """-x, NaN too."""
    return bitcast_convert_type(bitwise_xor(bits_of(x), _sign(x.dtype)), x.dtype)


def absolute(x: Array) -> Array:
    """|x|, NaN too."""
    return bitcast_convert_type(bitwise_and(bits_of(x), ~_sign(x.dtype)), x.dtype)


def copysign(x: Array, y: Array) -> Array:
    """|x| with the sign of y, NaN too; both of one dtype."""
    sign = bitwise_and(bits_of(y), _sign(x.dtype))
    return bitcast_convert_type(bitwise_or(bits_of(absolute(x)), sign), x.dtype)


def _sign(dtype: DType) -> int:
    """The sign bit alone, as a signed integer."""
    return -(1 << dtype.bits - 1)


# --- extremes and neighbours ---------------------------------------------------------------------


def extreme(cls: Any, x: Any, y: Any) -> Array:
    """maximum, minimum, fmax or fmin of fp8: one of the operands, bit for bit, and of equal ones the second."""
    wins = greater(x, y) if cls in (Max, FMax) else less(x, y)
    return where(bitwise_or(wins, isnan(x if cls in (Max, Min) else y)), x, y)


def nextafter(x: Any, y: Any, dtype: DType) -> Array:
    """`nextafter` on the bits."""
    (a, b), _, _ = operands_of((x, y), "nextafter")
    wide_a, wide_b = astype(a, dt.float32), astype(b, dt.float32)
    bits = bits_of(a)
    up = greater(wide_b, wide_a)
    away = up == greater_equal(bits, 0)
    moved = where(away, bits + 1, bits - 1)
    least = where(up, bits.dtype(1), bits.dtype(-(1 << dtype.bits - 1) + 1))
    stepped = where(equal(wide_a, 0), least, moved)
    result = bitcast_convert_type(where(equal(wide_a, wide_b), bits_of(b), stepped), dtype)
    return where(bitwise_or(isnan(a), isnan(b)), dtype(float("nan")), result)
