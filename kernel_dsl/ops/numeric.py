"""Functions built of others: rounding, remainders, integer powers, classification and angles."""

from __future__ import annotations

import math as _math
from enum import Enum
from typing import Any, ClassVar

from .. import dtypes as dt
from ..boundary import Choices
from ..dtypes import DType
from ..errors import BadArgument, UnsupportedDType
from ..promote import computing, true_division
from ..values import Array
from . import arith
from .arith import Fmod, IsNan
from .cast import as_number, as_value, astype, bitcast_convert_type, bits_of, rounded
from .compare import equal, greater, less, maximum, not_equal, where
from .control import fori_loop, while_loop
from .create import full_like
from .elementwise import Binary, common_dtype
from .math import Pow, sin
from .reduce import any as any_of
from .table import FunctionOfX, rounding

__all__ = [
    "RoundingMethod",
    "ceil",
    "copysign",
    "deg2rad",
    "degrees",
    "divmod",
    "fabs",
    "floor",
    "fmod",
    "gcd",
    "heaviside",
    "integer_pow",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "lcm",
    "nan_to_num",
    "pow",
    "power",
    "rad2deg",
    "radians",
    "reciprocal",
    "relu",
    "rint",
    "round",
    "sign",
    "sinc",
    "square",
    "trunc",
]


class CopySign(Binary, name="copysign"):
    """|x| with the sign of y. PTX `copysign`, or bit operations."""

    llvm: ClassVar[dict[str, str]] = {"f": "call {t} @llvm.copysign.{s}({t} {0}, {t} {1})"}


# --- rounding ------------------------------------------------------------------------------------


floor: FunctionOfX = rounding("floor", "The largest integer not above x.", "cvt.rmi")
ceil: FunctionOfX = rounding("ceil", "The smallest integer not below x.", "cvt.rpi")
trunc: FunctionOfX = rounding("trunc", "x without its fraction.", "cvt.rzi")
rint: FunctionOfX = rounding("rint", "The nearest integer, halves to even.", "cvt.rni")


class RoundingMethod(Enum, metaclass=Choices):
    """The rounding of numbers halfway between two integers."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def round(
    x: Any,
    decimals: int | RoundingMethod = 0,
    *,
    rounding_method: RoundingMethod = RoundingMethod.TO_NEAREST_EVEN,
) -> Array:
    """Rounded to `decimals` places, as NumPy; narrow floats in float32. Halves go to even, or away from zero as the method says.

    The method may come second, as in `lax.round(x, RoundingMethod.AWAY_FROM_ZERO)`.

    >>> run(kd.round, [0.5, 1.5, 2.5])
    [0. 2. 2.]
    >>> run(lambda x: kd.round(x, kd.RoundingMethod.AWAY_FROM_ZERO), [0.5, 1.5, -2.5])
    [ 1.  2. -3.]
    """
    if isinstance(decimals, RoundingMethod):
        decimals, rounding_method = 0, decimals
    value = as_number(x, "round")
    if not -300 <= decimals <= 300:
        raise BadArgument(
            op="round", what=f"decimals={decimals}", hint="use -300 to 300: a float has no more decimal places"
        )
    if not value.dtype.is_float:
        if decimals < 0:
            raise UnsupportedDType(op="round", dtype=value.dtype, hint="negative `decimals` are for floats")
        return value
    nearest = rint if rounding_method is RoundingMethod.TO_NEAREST_EVEN else _away_from_zero
    if decimals == 0:
        return nearest(value)
    wide = astype(value, computing(value.dtype))
    scale = float(f"1e{abs(decimals)}")
    if decimals > 0:  # numbers too large for scaling have no decimals
        moved = wide * scale
        back = where(isfinite(moved), nearest(moved) / scale, wide)
    else:
        whole = nearest(wide / scale)
        back = where(equal(whole, 0), whole, whole * scale)
    return rounded(back, value.dtype)


def _away_from_zero(x: Array) -> Array:
    """The nearest integer, halves away from zero."""
    wide = _wide(x)
    whole = trunc(wide)
    more = less(arith.absolute(wide - whole), 0.5)  # the fraction is exact; an infinity has none
    return rounded(where(more | isnan(wide - whole), whole, whole + copysign(1.0, wide)), x.dtype)


# --- remainders and powers -----------------------------------------------------------------------


def fmod(x: Any, y: Any) -> Array:
    """The remainder of truncating division, with the sign of x; exact for floats."""
    dtype = common_dtype((x, y), "fmod")
    if not dtype.is_float:
        return arith.rem(x, y)
    return arith.elementwise(Fmod, (x, y), "fmod")


def divmod(x: Any, y: Any) -> tuple[Array, Array]:
    """(x // y, x % y).

    >>> run(lambda x: kd.divmod(x, 3)[1], [-1, 4])
    [2 1]
    """
    return arith.floor_divide(x, y), arith.mod(x, y)


def square(x: Any) -> Array:
    """x * x."""
    return arith.multiply(x, x)


def integer_pow(x: Any, y: int) -> Array:
    """x to a static integer power, by repeated squaring."""
    value = _not_bool(x)
    if y < 0 and value.dtype.is_integer:
        raise UnsupportedDType(op="integer_pow", dtype=value.dtype, hint="a negative power of an int is no int")
    wide = _wide(value) if value.dtype.is_float else value
    result: Any = None
    base: Any = wide
    left = abs(y)
    while left:
        if left & 1:
            result = base if result is None else result * base
        left >>= 1
        base = base * base if left else base
    if result is None:
        result = full_like(wide, 1)
    return rounded(1.0 / result if y < 0 else result, value.dtype)


def _not_bool(x: Any) -> Array:
    """A base or an exponent: a bool becomes 0 or 1 in int32."""
    value = as_value(x, "power")
    return astype(value, dt.int32) if value.dtype.is_bool else value


def power(x: Any, y: Any) -> Array:
    """x ** y: floats as C99's pow; a static int exponent by multiplication; integers wrap, negative powers of ints give 0.

    >>> run(lambda x: x**3, [2, -1])
    [ 8 -1]
    """
    dtype = common_dtype((x, y), "power")
    if isinstance(y, int) and not isinstance(y, bool) and (0 <= y <= 32 if not dtype.is_float else -4 <= y <= 4):
        return integer_pow(x, y)
    if dtype.is_float:
        return arith.elementwise(Pow, (x, y), "power")
    return _integer_power(_not_bool(as_value(x, "power", dtype)), _not_bool(as_value(y, "power", dtype)))


pow = power


def _integer_power(x: Array, y: Array) -> Array:
    """Both integers: square and multiply over the bits of the exponent; negative exponents give 0, +-1 or 0."""
    from .create import full

    shape = (x + y).shape
    one: Any = full(shape, 1, x.dtype)

    def step(_: Any, state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        result, base, left = state
        result = where((left & 1) != 0, result * base, result)
        return result, base * base, left >> 1

    start = (one, x + full(shape, 0, x.dtype), y + full(shape, 0, y.dtype))
    result, _, _ = fori_loop(0, x.dtype.bits - (1 if x.dtype.is_signed else 0), step, start)
    if not x.dtype.is_signed:
        return result
    odd = (y & 1) != 0
    below = where(x == 1, 1, where(x == -1, where(odd, -1, 1), 0))
    return where(y < 0, below, result)


def gcd(x: Any, y: Any) -> Array:
    """The greatest common divisor of integers. It is not negative if the dtype can hold it."""
    common, _, _, dtype = _euclid(x, y, "gcd")
    return astype(common, dtype)


def lcm(x: Any, y: Any) -> Array:
    """The least common multiple of integers. It is not negative if the dtype can hold it; 0 if either is 0."""
    common, a, b, dtype = _euclid(x, y, "lcm")
    return astype(arith.floor_divide(a, common) * b, dtype)


def _euclid(x: Any, y: Any, op: str) -> tuple[Array, Array, Array, DType]:
    """(the greatest common divisor, |x|, |y|), unsigned, and the dtype of x and y."""
    from .create import full

    dtype = common_dtype((x, y), op)
    if not dtype.is_integer:
        raise UnsupportedDType(op=op, dtype=dtype, hint="it is for integers")
    a, b = as_value(x, op, dtype), as_value(y, op, dtype)
    zero = full((a + b).shape, 0, dtype)
    unsigned = dt.BY_NAME[f"uint{dtype.bits}"]  # holds |x| also for the smallest number
    a, b = astype(arith.absolute(a + zero), unsigned), astype(arith.absolute(b + zero), unsigned)

    def step(state: tuple[Any, Any]) -> tuple[Any, Any]:
        u, v = state
        return where(v != 0, v, u), where(v != 0, arith.rem(u, v), 0)

    common, _ = while_loop(lambda s: any_of(s[1] != 0) if s[1].ndim else s[1] != 0, step, (a, b))
    return common, a, b, dtype


# --- classification and signs --------------------------------------------------------------------


def isnan(x: Any) -> Array:
    """Whether x is NaN; false for ints."""
    value = as_value(x, "isnan")
    if not value.dtype.is_float:
        return not_equal(value, value)
    return arith.elementwise(IsNan, (value, value), "isnan")


def isfinite(x: Any) -> Array:
    """Whether x is neither infinite nor NaN; true for ints."""
    value = as_value(x, "isfinite")
    if not value.dtype.is_float:
        return equal(value, value)
    return less(arith.absolute(_wide(value)), float("inf"))


def isinf(x: Any) -> Array:
    """Whether x is an infinity."""
    value = as_value(x, "isinf")
    if not value.dtype.is_float:
        return not_equal(value, value)
    return equal(arith.absolute(_wide(value)), float("inf"))


def _wide(value: Array) -> Array:
    """A float in the dtype of computations, which has infinities."""
    return astype(value, computing(value.dtype))


def isposinf(x: Any) -> Array:
    """Whether x is positive infinity."""
    value = as_value(x, "isposinf")
    return equal(_wide(value), float("inf")) if value.dtype.is_float else not_equal(value, value)


def isneginf(x: Any) -> Array:
    """Whether x is negative infinity."""
    value = as_value(x, "isneginf")
    return equal(_wide(value), float("-inf")) if value.dtype.is_float else not_equal(value, value)


def sign(x: Any) -> Array:
    """-1, 0 or 1 in x's dtype; NaN and -0.0 stay, as with lax."""
    value = as_value(x, "sign")
    if value.dtype.is_bool:
        return value
    zero = arith.multiply(value, 0) if not value.dtype.is_float else value
    has_sign = value.dtype.is_float or value.dtype.is_signed
    below = where(less(value, 0), value.dtype(-1 if has_sign else 0), zero)
    positive = where(greater(value, 0), value.dtype(1), below)
    return positive


def copysign(x: Any, y: Any) -> Array:
    """|x| with the sign of y."""
    dtype = common_dtype((x, y), "copysign")
    if dtype.is_float and dtype.bits < 32:
        # copies the bit, also of NaN
        sign = arith.bitwise_and(bits_of(as_value(y, "copysign", dtype)), arith.sign_bit(dtype))
        size = bits_of(arith.absolute(as_value(x, "copysign", dtype)))
        return bitcast_convert_type(arith.bitwise_or(size, sign), dtype)
    return arith.elementwise(CopySign, (x, y), "copysign", true_division(dtype))


def fabs(x: Any) -> Array:
    """|x| as a float."""
    value = as_value(x, "fabs")
    return arith.absolute(astype(value, true_division(value.dtype)))


def reciprocal(x: Any) -> Array:
    """1 / x; ints truncate."""
    value = as_value(x, "reciprocal")
    return arith.true_divide(1, value) if value.dtype.is_float else arith.div(1, value)


def heaviside(x: Any, y: Any) -> Array:
    """0 below 0, 1 above, y at 0."""
    value = as_value(x, "heaviside", common_dtype((x, y, 1.0), "heaviside"))
    below = where(less(value, 0), 0.0, where(greater(value, 0), 1.0, y))
    return where(isnan(value), value, below)


def relu(x: Any) -> Array:
    """max(x, 0)."""
    return maximum(x, 0)


def nan_to_num(x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Array:
    """NaN and infinities replaced: by `nan`, and by the dtype's largest and smallest numbers.

    >>> run(lambda x: kd.nan_to_num(kd.log(x)), [-1.0])
    [0.]
    """
    import ml_dtypes

    value = as_number(x, "nan_to_num")
    if not value.dtype.is_float:
        return value
    info = ml_dtypes.finfo(value.dtype.numpy)
    value = where(isnan(value), nan, value)
    value = where(isposinf(value), float(info.max) if posinf is None else posinf, value)
    return where(isneginf(value), float(info.min) if neginf is None else neginf, value)


# --- angles --------------------------------------------------------------------------------------


def degrees(x: Any) -> Array:
    """Radians as degrees."""
    return _scaled(x, 180.0 / _math.pi, "degrees")


def radians(x: Any) -> Array:
    """Degrees as radians."""
    return _scaled(x, _math.pi / 180.0, "radians")


def _scaled(x: Any, factor: float, op: str) -> Array:
    """x times a factor, in float32 for narrow floats, which would round the factor."""
    value = as_value(x, op)
    if not value.dtype.is_float:
        value = astype(value, true_division(value.dtype))
    return rounded(_wide(value) * factor, value.dtype)


rad2deg = degrees
deg2rad = radians


def sinc(x: Any) -> Array:
    """sin(pi x) / (pi x), and 1 at 0."""
    given = as_value(x, "sinc")
    own = true_division(given.dtype)
    value = _wide(astype(given, own)) * _math.pi
    safe = where(equal(value, 0), 1.0, value)
    return rounded(where(equal(value, 0), 1.0, sin(safe) / safe), own)
