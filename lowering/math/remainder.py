"""fmod, remainder and floor_divide: exact, whatever the quotient's size."""

from __future__ import annotations

from ..value import V
from .constants import INFINITY, NAN, format_of
from .exponential import power_of_two
from .registry import FUNCTIONS
from .text import FunctionWriter

# Below this quotient a rounded division gives the whole part to within one.
EXACT_QUOTIENT = (2.0**22, 2.0**51)


@FUNCTIONS.define("fmod", 2)
def fmod(b: FunctionWriter, x: V, y: V) -> V:
    """x - y * trunc(x / y), with the sign of x; NaN for an infinite x or a zero y."""
    dividend, divisor = b.abs(x), b.abs(y)
    near = dividend.lt(divisor).where(dividend, _subtract_multiples(b, dividend, divisor))
    plain = (dividend / divisor).lt(b.pick(EXACT_QUOTIENT))
    rest = b.rarely(plain ^ 1, near, lambda: b.function("fmod_of_far", dividend, divisor))
    return b.copysign(rest, x)


@FUNCTIONS.define("fmod_of_far", 2, out_of_line=True)
def fmod_of_far(b: FunctionWriter, x: V, y: V) -> V:
    """x modulo y for non-negative operands with x >= y, or NaN: by multiples y * 2^k, from the
    largest k down.

    Each iteration lowers the exponent of the remainder by `chunk`, and is exact: its quotient has one bit more.
    """
    form = format_of(b)
    chunk = b.pick((22, 51))
    ordinary = x.lt(INFINITY) & y.gt(0.0)
    x, y = ordinary.where(x, 0.0), ordinary.where(y, 1.0)
    # The exponent of a subnormal divisor is that of a multiple.
    small = y.lt(b.pick((2.0**-60, 2.0**-900)))
    lifted = small.where(y * 2.0**60, y)
    exponent = b.bits(lifted).ashr(form.mantissa) - small.where(b.value(60, b.int), 0)

    def turn(carried: list[V]) -> tuple[V, list[V]]:
        (rest,) = carried
        k = b.bits(rest).ashr(form.mantissa) - exponent - chunk
        k = b.intrinsic("smax", k, 0)
        half = k.ashr(1)
        multiple = y * power_of_two(b, half) * power_of_two(b, k - half)
        rest = _subtract_multiples(b, rest, multiple)
        return k.gt(0), [rest]

    (rest,) = b.repeat([x], turn)
    return ordinary.where(rest, NAN)


def _subtract_multiples(b: FunctionWriter, dividend: V, divisor: V) -> V:
    """dividend modulo divisor, for a quotient below `EXACT_QUOTIENT` (or twice that).

    The rounded quotient may be one too large; the difference is exact all the same.
    """
    rest = b.fma(-b.intrinsic("trunc", dividend / divisor), divisor, dividend)
    return rest.lt(0.0).where(rest + divisor, rest)


@FUNCTIONS.define("remainder", 2)
def remainder(b: FunctionWriter, x: V, y: V) -> V:
    """Python's and NumPy's `%`: x - y * floor(x / y), with the sign of y."""
    return _floored(b, x, y)


def _floored(b: FunctionWriter, x: V, y: V) -> V:
    rest = fmod(b, x, y)
    adjust = (b.bits(rest) ^ b.bits(y)).lt(0)
    nonzero = adjust.where(rest + y, rest)
    return rest.equal(0.0).where(b.copysign(0.0, y), nonzero)


@FUNCTIONS.define("floor_divide", 2)
def floor_divide(b: FunctionWriter, x: V, y: V) -> V:
    """Python's and NumPy's `//`: the floor of the exact quotient, rounded; x / y where y is 0."""
    rest = fmod(b, x, y)
    quotient = (x - rest) / y
    below = (b.bits(rest) ^ b.bits(y)).lt(0) & rest.differs(0.0)
    quotient = below.where(quotient - 1.0, quotient)
    # Rounding may have left it just beside a whole number.
    whole = b.intrinsic("floor", quotient)
    whole = (quotient - whole).gt(0.5).where(whole + 1.0, whole)
    plain = x / y
    signed = quotient.equal(0.0).where(b.copysign(0.0, plain), whole)
    return y.equal(0.0).where(plain, signed)
