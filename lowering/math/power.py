"""pow, by a logarithm of twice the precision."""

from __future__ import annotations

from ..value import V
from .constants import INFINITY, NAN, format_of
from .double_word import DoubleWord, product, sum_ordered
from .exponential import EXP_NARROW, LOG2_E, power_of_two
from .logarithm import split
from .quotient import reciprocal
from .registry import FUNCTIONS
from .text import FunctionWriter

# log(1 + f) = q + q^3 * (1/12 + q^2 * p(q^2)) with q = 2f/(2 + f), for |f| <= 1/3 (of the whole:
# 2^-40 and 2^-67)
TWELFTH = ((0.0833333358168602, -2.4835269396561444e-09), (1.0 / 12, 4.62592926927149e-18))
ATANH = (
    (0.01249999925494194, 0.0022321937140077353, 0.00043302070116624236, 9.637327457312495e-05),
    (
        0.01249999999999998,
        0.0022321428571469046,
        0.0004340277774996854,
        8.877841832226985e-05,
        1.877987883691357e-05,
        4.070812856665287e-06,
        8.865107417134287e-07,
        2.3671484321613282e-07,
    ),
)
# log(2) in two parts; the first has so few bits that its product with any exponent is exact.
LN2 = ((0.693145751953125, 1.428606765330187e-06), (0.6931471805598903, 5.497923018708371e-14))


def precise_log(b: FunctionWriter, x: V) -> DoubleWord:
    """log(x) for positive finite x to within about 2^-40 (float32) or 2^-66 of itself."""
    parts = split(b, x)
    f = parts.f
    inverse = reciprocal(b, f + 2.0)
    high = (f + f) * inverse
    # 2f - high * (2 + f), with 2 + f not rounded
    q = DoubleWord(high, inverse * b.fma(-high, f, (f - high) * 2.0))
    square = high * high
    square_low = b.fma(high, high, -square)
    square_low = b.fma(high + high, q.low, square_low)
    cube = square * high
    cube_low = b.fma(square, high, -cube)
    cube_low = b.fma(square, q.low, b.fma(square_low, high, cube_low))
    twelfth, twelfth_low = b.pick(TWELFTH)
    tail = b.fma(b.polynomial(square, b.pick(ATANH)), square, twelfth_low)
    factor = sum_ordered(b, b.value(twelfth), tail)
    beyond = product(b, DoubleWord(cube, cube_low), factor)
    fraction = sum_ordered(b, high, beyond.high)
    two, two_low = b.pick(LN2)
    total = sum_ordered(b, parts.k * two, fraction.high)
    low = b.fma(parts.k, two_low, total.low + (fraction.low + (q.low + beyond.low)))
    return sum_ordered(b, total.high, low)


def precise_exp(b: FunctionWriter, x: DoubleWord) -> V:
    """exp(x) to little more than half an ulp, so that results that are floats come out exactly."""
    form = format_of(b)
    two, two_low = b.pick(LN2)
    shifted = b.fma(x.high, b.pick(LOG2_E), form.rounder)
    n = shifted - form.rounder
    r = sum_ordered(b, b.fma(n, -two, x.high), b.fma(n, -two_low, x.low))
    beyond = r.high * r.high * b.polynomial(r.high, b.pick(EXP_NARROW)[2:])
    growth = sum_ordered(b, r.high, beyond + r.low)
    power = sum_ordered(b, b.value(1.0), growth.high)
    p = power.high + (power.low + growth.low)
    n_bits = b.bits(shifted)
    half = n_bits.ashr(1)
    return p * power_of_two(b, half) * power_of_two(b, n_bits - half)


@FUNCTIONS.define("pow", 2)
def pow_(b: FunctionWriter, x: V, y: V) -> V:
    """x**y with the special cases of C99 F.9.4.4: 1 if x is 1 or y is 0, whatever the other is."""
    base = b.abs(x)
    logarithm = precise_log(b, base)
    # Beyond this y every result but those of base 1 is 0 or infinite; nothing below overflows.
    bound = b.pick((2.0**40, 2.0**70))
    exponent = product(b, logarithm, b.clamp(y, -bound, bound))
    # If the clamp changes the value, the low part may have any size and is not used.
    limits = b.pick(((-110.0, 100.0), (-760.0, 720.0)))
    high = b.clamp(exponent.high, *limits)
    low = b.clamp(exponent.low, -(2.0**-10), 2.0**-10)
    result = precise_exp(b, DoubleWord(high, low))
    return _with_specials(b, x, y, result)


def _with_specials(b: FunctionWriter, x: V, y: V, magnitude: V) -> V:
    """`magnitude`, that of |x|**y for ordinary x, with the sign and the special cases."""
    base = b.abs(x)
    grows = y.gt(0.0)
    of_zero = grows.where(b.value(0.0), INFINITY)
    of_infinity = grows.where(b.value(INFINITY), 0.0)
    infinite = base.equal(INFINITY)
    result = base.equal(0.0).where(of_zero, infinite.where(of_infinity, magnitude))
    whole = b.intrinsic("trunc", y).equal(y)
    half = y * 0.5
    odd = b.intrinsic("trunc", half).differs(half)
    negated = b.bits(x).lt(0).where(odd.where(-result, result), result)
    signed = whole.where(negated, x.lt(0.0).where(infinite.where(result, NAN), result))
    ordered = x.is_nan().where(NAN, y.is_nan().where(NAN, signed))
    return y.equal(0.0).where(1.0, x.equal(1.0).where(1.0, ordered))
