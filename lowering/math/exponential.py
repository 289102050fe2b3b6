"""exp, exp2, exp10, and what follows from them: logistic, tanh.

All reduce x = n*log(2) + r with |r| <= log(2)/2, by adding and subtracting a large constant, and evaluate a minimax
polynomial in r. No step branches, and none divides unless the function itself does.
"""

from __future__ import annotations

from dataclasses import dataclass

from .constants import format_of
from .quotient import quotient
from .registry import FUNCTIONS
from .text import Value, Writer

# Each pair is (float32, float64); HIGH + LOW is the constant to twice the precision.
LOG2_E = (1.4426950216293335, 1.4426950408889634)
LN2_HIGH = (0.6931471824645996, 0.6931471805599453)
LN2_LOW = (-1.9046542121259336e-09, 2.3190468138462996e-17)
LOG2_10 = (3.321928024291992, 3.321928094887362)
LOG10_2_HIGH = (0.3010300099849701, 0.3010299956639812)
LOG10_2_LOW = (-1.432098883924482e-08, -2.8037281277851704e-18)

# Minimax in relative error for exp(r) on |r| <= 0.347 (2^-28.2 and 2^-57.9), with the first two terms fixed.
EXP = (
    (
        1.0,
        1.0,
        0.4999999403953552,
        0.16666515171527863,
        0.04166807979345322,
        0.008369374088943005,
        0.0013841621112078428,
    ),
    (
        1.0,
        1.0,
        0.5000000000000011,
        0.16666666666666421,
        0.04166666666652555,
        0.00833333333348564,
        0.001388888894497361,
        0.00019841269532315024,
        2.4801491589679982e-05,
        2.755755751198098e-06,
        2.763082362256327e-07,
        2.5011035079603888e-08,
    ),
)
# The same for 2^r on |r| <= 0.501 (2^-26.2 and 2^-56.0).
EXP2 = (
    (
        1.0,
        0.6931471824645996,
        0.24022594094276428,
        0.055503662675619125,
        0.009625439532101154,
        0.0013387956423684955,
        0.00013337988639250398,
    ),
    (
        1.0,
        0.6931471805599453,
        0.24022650695910122,
        0.05550410866481845,
        0.009618129107595769,
        0.0013333558146829936,
        0.00015403530458652095,
        1.5252733828965022e-05,
        1.321543292761568e-06,
        1.0177920265703779e-07,
        7.074405336391109e-09,
        4.4938631153228e-10,
    ),
)
# And for 10^r on |r| <= 0.151 (2^-28.2 and 2^-55.9).
EXP10 = (
    (
        1.0,
        2.3025851249694824,
        2.6509487628936768,
        2.0346598625183105,
        1.1712895631790161,
        0.5417243838310242,
        0.20647066831588745,
    ),
    (
        1.0,
        2.302585092994046,
        2.6509490552392045,
        2.0346785922933486,
        1.171255148908313,
        0.539382929214815,
        0.20699584957130232,
        0.06808936496893107,
        0.019597614824653508,
        0.005013852549491044,
        0.0011576896866141043,
        0.0002442710907940296,
    ),
)


@dataclass(frozen=True)
class Reduced:
    """x = n*log(2) + r. `n_bits` is n below bits that a shift left by the mantissa drops."""

    n: Value
    n_bits: Value
    r: Value


def reduce_exp(b: Writer, x: Value) -> Reduced:
    """x = n*log(2) + r for |x| < 2000; r to within about half an ulp of itself, and x itself where n is 0."""
    rounder = format_of(b).rounder
    shifted = b.fma(x, b.pick(LOG2_E), rounder)
    n = shifted - rounder
    r = b.fma(n, -b.pick(LN2_HIGH), x)
    r = b.fma(n, -b.pick(LN2_LOW), r)
    return Reduced(n, b.bits(shifted), r)


def multiply_by_power(b: Writer, p: Value, n_bits: Value) -> Value:
    """p * 2^n for p in [1/2, 2] or NaN and |n| < 250 (float32) or 2000, rounded once where it is subnormal.

    Two factors of about 2^(n/2) each: the first product stays normal.
    """
    half = n_bits >> 1
    return p * power_of_two(b, half) * power_of_two(b, n_bits - half)


def power_of_two(b: Writer, n_bits: Value) -> Value:
    """2^n for n within the normal exponents."""
    form = format_of(b)
    return b.from_bits((n_bits << form.mantissa) + form.one)


@FUNCTIONS.define("exp")
def exp(b: Writer, x: Value) -> Value:
    x = b.clamp(x, b.pick((-110.0, -760.0)), b.pick((100.0, 720.0)))
    reduced = reduce_exp(b, x)
    return multiply_by_power(b, b.polynomial(reduced.r, b.pick(EXP)), reduced.n_bits)


@FUNCTIONS.define("exp2")
def exp2(b: Writer, x: Value) -> Value:
    x = b.clamp(x, b.pick((-160.0, -1090.0)), b.pick((140.0, 1030.0)))
    rounder = format_of(b).rounder
    shifted = x + rounder
    r = x - (shifted - rounder)
    return multiply_by_power(b, b.polynomial(r, b.pick(EXP2)), b.bits(shifted))


@FUNCTIONS.define("exp10")
def exp10(b: Writer, x: Value) -> Value:
    x = b.clamp(x, b.pick((-48.0, -330.0)), b.pick((42.0, 312.0)))
    rounder = format_of(b).rounder
    shifted = b.fma(x, b.pick(LOG2_10), rounder)
    n = shifted - rounder
    r = b.fma(n, -b.pick(LOG10_2_HIGH), x)
    r = b.fma(n, -b.pick(LOG10_2_LOW), r)
    return multiply_by_power(b, b.polynomial(r, b.pick(EXP10)), b.bits(shifted))


@FUNCTIONS.define("logistic")
def logistic(b: Writer, x: Value) -> Value:
    """1 / (1 + exp(-x)), as e / (1 + e) for negative x with e = exp(-|x|), so that nothing overflows."""
    lift = b.pick((64, 600))  # e is made 2^lift times too large, so that its exponent is always normal
    magnitude = b.intrinsic("maximum", -b.abs(x), b.pick((-110.0, -760.0)))
    reduced = reduce_exp(b, magnitude)
    lifted = power_of_two(b, reduced.n_bits + lift)
    e = b.polynomial(reduced.r, b.pick(EXP)) * lifted * 2.0**-lift
    return quotient(b, x.lt(0.0).where(e, 1.0), b.value(1.0), e)


@FUNCTIONS.define("tanh")
def tanh(b: Writer, x: Value) -> Value:
    """m / (m + 2) with m = expm1(2|x|)."""
    magnitude = b.intrinsic("minimum", b.abs(x), b.pick((10.0, 20.0)))
    m = expm1_of_reduced(b, reduce_exp(b, magnitude + magnitude))
    return b.copysign(quotient(b, m, b.value(2.0), m), x)


def expm1_of_reduced(b: Writer, reduced: Reduced) -> Value:
    """exp(x) - 1 for n within the normal exponents: 2^n * (exp(r) - 1) + (2^n - 1)."""
    r = reduced.r
    p = b.fma(r * r, b.polynomial(r, b.pick(EXP)[2:]), r)
    power = power_of_two(b, reduced.n_bits)
    return b.fma(p, power, power - 1.0)
