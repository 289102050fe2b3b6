"""exp, exp2, exp10, and what follows from them: logistic, tanh.

All reduce x = n*log(2) + r with |r| <= log(2)/2, by adding and subtracting a large constant, and
evaluate a minimax polynomial in r. No step branches, and none divides unless the function itself
does.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..value import V
from .constants import format_of
from .quotient import quotient
from .registry import FUNCTIONS
from .text import FunctionWriter

# Each pair is (float32, float64); HIGH + LOW is the constant to twice the precision.
LOG2_E = (1.4426950216293335, 1.4426950408889634)
LN2_HIGH = (0.6931471824645996, 0.6931471805599453)
LN2_LOW = (-1.9046542121259336e-09, 2.3190468138462996e-17)
LOG2_10 = (3.321928024291992, 3.321928094887362)
LOG10_2_HIGH = (0.3010300099849701, 0.3010299956639812)
LOG10_2_LOW = (-1.432098883924482e-08, -2.8037281277851704e-18)

# Minimax in relative error for exp(r) on |r| <= 0.694 (2^-26.0 and 2^-56.4), with the first two
# terms fixed.
EXP = (
    (
        1.0,
        1.0,
        0.5000003576278687,
        0.1666661500930786,
        0.041661158204078674,
        0.00833599641919136,
        0.001410661032423377,
        0.0001963405084097758,
    ),
    (
        1.0,
        1.0,
        0.4999999999999993,
        0.16666666666666946,
        0.04166666666670227,
        0.008333333333268167,
        0.0013888888883543456,
        0.0001984126989395117,
        2.4801590850741494e-05,
        2.7557300299463295e-06,
        2.7556152842975566e-07,
        2.505508022623348e-08,
        2.1062784966965697e-09,
        1.5933439350261156e-10,
    ),
)
# The same for |r| <= 0.347 (2^-28.2 and 2^-57.9).
EXP_NARROW = (
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
# 2^r on |r| <= 1.002 (2^-26.1 and 2^-56.5).
EXP2 = (
    (
        1.0,
        0.6931472420692444,
        0.24022670090198517,
        0.05550363287329674,
        0.009616806171834469,
        0.0013342308811843395,
        0.00015647798136342317,
        1.4884453776176088e-05,
    ),
    (
        1.0,
        0.6931471805599453,
        0.24022650695910028,
        0.05550410866482278,
        0.009618129107637754,
        0.001333355814631528,
        0.00015403530387016675,
        1.5252733845319058e-05,
        1.3215488761194721e-06,
        1.0178079117433946e-07,
        7.054606307646029e-09,
        4.446046689777619e-10,
        2.5909365939551864e-11,
        1.3592414833289777e-12,
    ),
)
# 10^r on |r| <= 0.302 (2^-26.1 and 2^-56.2).
EXP10 = (
    (
        1.0,
        2.3025851249694824,
        2.6509511470794678,
        2.0346713066101074,
        1.1710947751998901,
        0.539563000202179,
        0.21027612686157227,
        0.0673631951212883,
    ),
    (
        1.0,
        2.302585092994046,
        2.650949055239197,
        2.034678592293468,
        1.1712551489129985,
        0.5393829291938892,
        0.2069958486302969,
        0.06808936518828189,
        0.019597697150536685,
        0.0050139262623185,
        0.0011544536568451947,
        0.0002416899947466331,
        4.677469624673944e-05,
        8.161611141824474e-06,
    ),
)


@dataclass(frozen=True)
class Reduced:
    """x = n*log(base) + r. `n_bits` is n below bits that a shift left by the mantissa drops."""

    n: V
    n_bits: V
    r: V


def reduce_exp(b: FunctionWriter, x: V, scale: float, high: float, low: float) -> Reduced:
    """x = n*(high + low) + r, with n the integer nearest to x*scale; r is x itself where n is 0."""
    rounder = format_of(b).rounder
    shifted = b.fma(x, scale, rounder)
    n = shifted - rounder
    r = b.fma(n, -high, x)
    if low:
        r = b.fma(n, -low, r)
    return Reduced(n, b.bits(shifted), r)


def reduce_by_log2(b: FunctionWriter, x: V, steps: float = 1.0) -> Reduced:
    """x = n*steps*log(2) + r for |x| < 2000."""
    high, low = b.pick(LN2_HIGH), b.pick(LN2_LOW)
    return reduce_exp(b, x, b.pick(LOG2_E) / steps, high * steps, low * steps)


def power_of_two(b: FunctionWriter, n_bits: V) -> V:
    """2^n for n within the normal exponents."""
    form = format_of(b)
    return b.from_bits((n_bits << form.mantissa) + form.one)


def times_square(b: FunctionWriter, p: V, n_bits: V) -> V:
    """p * 2^(2n): the first product is exact, so that a subnormal result is rounded once.

    Reducing by 4 and not by 2 costs a term of the polynomial and saves splitting the exponent in
    integers.
    """
    factor = power_of_two(b, n_bits)
    return p * factor * factor


@FUNCTIONS.define("exp")
def exp(b: FunctionWriter, x: V) -> V:
    x = b.clamp(x, b.pick((-110.0, -760.0)), b.pick((100.0, 720.0)))
    reduced = reduce_by_log2(b, x, 2.0)
    return times_square(b, b.polynomial(reduced.r, b.pick(EXP)), reduced.n_bits)


@FUNCTIONS.define("exp2")
def exp2(b: FunctionWriter, x: V) -> V:
    x = b.clamp(x, b.pick((-160.0, -1090.0)), b.pick((140.0, 1030.0)))
    reduced = reduce_exp(b, x, 0.5, 2.0, 0.0)
    return times_square(b, b.polynomial(reduced.r, b.pick(EXP2)), reduced.n_bits)


@FUNCTIONS.define("exp10")
def exp10(b: FunctionWriter, x: V) -> V:
    x = b.clamp(x, b.pick((-48.0, -330.0)), b.pick((42.0, 312.0)))
    high, low = 2 * b.pick(LOG10_2_HIGH), 2 * b.pick(LOG10_2_LOW)
    reduced = reduce_exp(b, x, b.pick(LOG2_10) / 2, high, low)
    return times_square(b, b.polynomial(reduced.r, b.pick(EXP10)), reduced.n_bits)


@FUNCTIONS.define("expm1")
def expm1(b: FunctionWriter, x: V) -> V:
    """2 * (2^(n-1) * (exp(r) - 1) + (2^(n-1) - 1/2)), so that n may be one past the largest
    exponent.
    """
    reduced = reduce_by_log2(b, b.clamp(x, b.pick((-30.0, -60.0)), b.pick((89.0, 709.9))))
    p = expm1_polynomial(b, reduced.r)
    half_power = power_of_two(b, reduced.n_bits - 1)
    large = b.fma(p, half_power, half_power - 0.5) * 2.0
    return b.copysign(reduced.n.equal(0.0).where(p, large), x)


def expm1_polynomial(b: FunctionWriter, r: V) -> V:
    """exp(r) - 1 for |r| <= 0.347; 0 for -0."""
    return b.fma(r * r, b.polynomial(r, b.pick(EXP_NARROW)[2:]), r)


@FUNCTIONS.define("logistic")
def logistic(b: FunctionWriter, x: V) -> V:
    """1 / (1 + exp(-x)), as e / (1 + e) for negative x with e = exp(-|x|), so that nothing
    overflows.
    """
    reduced = reduce_by_log2(b, b.intrinsic("maximum", -b.abs(x), b.pick((-110.0, -760.0))))
    lift = b.pick((64, 600))  # keeps the exponent of the first product normal
    lifted = b.polynomial(reduced.r, b.pick(EXP_NARROW)) * power_of_two(b, reduced.n_bits + lift)
    e = lifted * 2.0**-lift
    return quotient(b, x.lt(0.0).where(e, 1.0), b.value(1.0), e)
