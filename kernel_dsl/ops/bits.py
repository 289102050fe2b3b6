"""The bits of integers, and the parts of floats: sign, exponent and mantissa."""

from __future__ import annotations

from typing import Any, ClassVar

from .. import dtypes as dt
from ..dtypes import DType
from ..errors import UnsupportedDType
from ..promote import computing, true_division
from ..trace import traced
from ..values import Array
from .arith import absolute, bitwise_or, elementwise, right_shift
from .broadcast import together
from .cast import as_value, astype, bitcast_convert_type, bits_of, rounded
from .compare import equal, greater, greater_equal, less, maximum, minimum, not_equal, where
from .elementwise import Binary, Unary, common_dtype, operands_of
from .numeric import copysign, isfinite, isinf, isnan, trunc

__all__ = [
    "bitwise_count",
    "clz",
    "frexp",
    "ldexp",
    "modf",
    "nextafter",
    "population_count",
    "shift_right_logical",
    "signbit",
    "spacing",
]


class Ldexp(Binary, name="ldexp"):
    """x times 2 to the power y, which is int32. Several PTX instructions."""

    math = "ldexp"


class PopCount(Unary, name="population_count"):
    """How many bits are set. PTX `popc`."""

    llvm: ClassVar[dict[str, str]] = dict.fromkeys("iu", "call {t} @llvm.ctpop.{s}({t} {0})")


class Clz(Unary, name="clz"):
    """How many leading bits are zero; the width for 0. PTX `clz`."""

    llvm: ClassVar[dict[str, str]] = dict.fromkeys("iu", "call {t} @llvm.ctlz.{s}({t} {0}, i1 false)")


class Nextafter(Binary, name="nextafter"):
    """The next float after x towards y. Several PTX instructions."""

    math = "nextafter"


def _of_integer(cls: Any, x: Any, op: str) -> Array:
    dtype = common_dtype((x,), op)
    if not dtype.is_integer:
        raise UnsupportedDType(op=op, dtype=dtype, hint="it is for integers")
    return elementwise(cls, (x,), op)


def shift_right_logical(x: Any, y: Any) -> Array:
    """x >> y that shifts zeros in, also for signed integers.

    An amount of the width or more gives 0, and so does a negative one.

    >>> run(lambda x: kd.shift_right_logical(x, 28), [-1, 1 << 30])
    [15  4]
    """
    dtype = common_dtype((x, y), "shift_right_logical")
    if not dtype.is_integer:
        raise UnsupportedDType(op="shift_right_logical", dtype=dtype, hint="shifts are for integers")
    values = [as_value(v, "shift_right_logical", dtype) for v in (x, y)]
    unsigned = dt.BY_NAME[f"uint{dtype.bits}"]
    shifted = right_shift(*(bitcast_convert_type(v, unsigned) if dtype.is_signed else v for v in values))
    return bitcast_convert_type(shifted, dtype) if dtype.is_signed else shifted


def population_count(x: Any) -> Array:
    """How many bits of each integer are set, in its dtype.

    >>> run(kd.population_count, [7, 8])
    [3 1]
    """
    return _of_integer(PopCount, x, "population_count")


def bitwise_count(x: Any) -> Array:
    """NumPy's bitwise_count: the bits set in |x|, as uint8."""
    value = as_value(x, "bitwise_count")
    return astype(population_count(absolute(value)), dt.uint8)


def clz(x: Any) -> Array:
    """How many leading bits of each integer are zero.

    >>> run(kd.clz, [1, 256])
    [31 23]
    """
    return _of_integer(Clz, x, "clz")


def signbit(x: Any) -> Array:
    """Whether the sign bit is set: true for -0.0, too."""
    value = as_value(x, "signbit")
    if value.dtype.is_float:
        return less(bits_of(value), 0)
    return less(value, 0) if value.dtype.is_signed else not_equal(value, value)


def ldexp(x: Any, n: Any) -> Array:
    """x times 2 to the integer power n."""
    value = as_value(x, "ldexp")
    value = value if value.dtype.is_float else astype(value, dt.float32)
    exponent = as_value(n, "ldexp")
    if not exponent.dtype.is_integer:
        raise UnsupportedDType(op="ldexp", dtype=exponent.dtype, hint="the exponent is an integer")
    power = _int32(exponent)
    wide = astype(value, computing(value.dtype))
    return rounded(traced(Ldexp(*together((wide, power), "ldexp"))), value.dtype)


def _int32(exponent: Array) -> Array:
    """An integer of any dtype as int32, clamped to values beyond the exponents of every float."""
    limit = 1 << 20
    if exponent.dtype.bits == 64 or exponent.dtype == dt.uint32:
        exponent = minimum(exponent, limit)
        exponent = maximum(exponent, -limit) if exponent.dtype.is_signed else exponent
    return astype(exponent, dt.int32)


def modf(x: Any) -> tuple[Array, Array]:
    """(fraction, whole part), both with the sign of x."""
    value = as_value(x, "modf")
    value = value if value.dtype.is_float else astype(value, dt.float32)
    whole = trunc(value)
    fraction = where(isinf(value), 0.0, value - whole)
    return copysign(fraction, value), whole


def frexp(x: Any) -> tuple[Array, Array]:
    """(mantissa with 0.5 <= |m| < 1, int32 exponent) with x = m * 2 ** e; 0, infinities and NaN have exponent 0.

    >>> run(lambda x: kd.frexp(x)[1], [8.0])
    [4]
    """
    value = as_value(x, "frexp")
    own = value.dtype if value.dtype.is_float else dt.float32
    wide = astype(value, computing(own))
    double = wide.dtype.bits == 64
    field, bias, width = (52, 1022, 0x7FF) if double else (23, 126, 0xFF)
    small = less(absolute(wide), 2.0 ** (-1022 if double else -126))
    scaled = where(small, wide * 2.0**64, wide)
    bits = bits_of(scaled)
    exponent = astype((bits >> field) & width, dt.int32) - bias - where(small, 64, 0)
    kept = bits & ~(width << field) | (bias << field)
    plain = isfinite(wide) & not_equal(wide, 0)
    mantissa = where(plain, bitcast_convert_type(kept, wide.dtype), wide)
    return rounded(mantissa, own), where(plain, exponent, 0)


def spacing(x: Any) -> Array:
    """The distance to the next number away from 0, with the sign of x."""
    value = as_value(x, "spacing")
    value = value if value.dtype.is_float else astype(value, true_division(value.dtype))
    return bitcast_convert_type(bits_of(value) + 1, value.dtype) - value


def nextafter(x: Any, y: Any) -> Array:
    """The next number of the dtype after x towards y."""
    dtype = common_dtype((x, y), "nextafter")
    if dtype.is_float and dtype.bits < 32:
        return _nextafter_narrow(x, y, dtype)
    return elementwise(Nextafter, (x, y), "nextafter", true_division(dtype))


def _nextafter_narrow(x: Any, y: Any, dtype: DType) -> Array:
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
