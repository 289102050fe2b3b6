"""erf and erfc."""

from __future__ import annotations

from ..value import V
from .constants import format_of
from .double_word import DoubleWord, product, sum_ordered
from .exponential import EXP_NARROW, LN2_HIGH, LOG2_E, power_of_two, reduce_by_log2
from .quotient import reciprocal
from .registry import FUNCTIONS
from .text import FunctionWriter

# erf(x)/x - 1 in x^2: for |x| <= 0.85 (2^-27.1) and |x| <= 1 (2^-56.2)
ERF_SMALL = (
    (
        0.12837916612625122,
        -0.37612593173980713,
        0.1128290519118309,
        -0.0268089696764946,
        0.005060471594333649,
        -0.000636421435046941,
    ),
    (
        0.1283791670955126,
        -0.3761263890318407,
        0.1128379167096975,
        -0.02686617064780554,
        0.0052239776508346105,
        -0.0008548328448745378,
        0.00012055383709977948,
        -1.4926837402292898e-05,
        1.6480585015578981e-06,
        -1.655439294077508e-07,
        1.600904124365123e-08,
        -1.649935561561211e-09,
        1.4481563801980847e-10,
    ),
)
# -log(1 - erf(x))/x in x, for 0.8 <= x <= 4 (2^-28.1)
ERF_LARGE = (
    1.128533959388733,
    0.6356509327888489,
    0.10535196959972382,
    -0.02294854074716568,
    0.003233446041122079,
    -0.00021625224326271564,
)
# exp(x^2) * erfc(x) * (1 + 2x) in (x - k)/(x + k), from 0.46 on (2^-27.1 and 2^-54.5)
ERFC_CENTER = (2.0, 4.0)
ERFC = (
    (
        1.2769783735275269,
        -0.09276381134986877,
        -0.16603045165538788,
        0.1640498787164688,
        -0.05421396717429161,
        -0.008014452643692493,
        0.008665206842124462,
        0.0011743770446628332,
        -0.001268352847546339,
        -0.00025728248874656856,
    ),
    (
        1.2329951186255526,
        -0.1396211168405625,
        0.015379652102603777,
        0.06809705425469055,
        -0.10103906603537906,
        0.09373283499849146,
        -0.06633036583306273,
        0.037167515533208705,
        -0.016197733818402192,
        0.005031970041672157,
        -0.000757774877265696,
        -0.00019925721858624217,
        0.00015062815414459702,
        -2.4396662560059976e-05,
        -1.1238629665220348e-05,
        5.702143474772752e-06,
        3.2022020479710755e-07,
        -8.117206085223159e-07,
        4.998418886631173e-08,
        9.579635038007138e-08,
        -6.239827516941169e-09,
        -6.686011157567128e-09,
    ),
)


def _erf_of_small(b: FunctionWriter, x: V) -> V:
    return b.fma(x, b.polynomial(x * x, b.pick(ERF_SMALL)), x)


def _erfc_of_large(b: FunctionWriter, t: V) -> V:
    """erfc(t) for t >= 0.46: exp(-t^2) times a rational function, both of twice the precision up to
    the end.
    """
    t = b.intrinsic("minimum", t, b.pick((10.5, 27.5)))
    square = t * t
    reduced = reduce_by_log2(b, -square)
    coefficients = b.pick(EXP_NARROW)
    growth = reduced.r * b.polynomial(reduced.r, coefficients[1:])
    power = sum_ordered(b, b.value(1.0), growth)
    power = DoubleWord(power.high, b.fma(b.fma(t, t, -square), -power.high, power.low))
    center = b.pick(ERFC_CENTER)
    argument = (t - center) * reciprocal(b, t + center)
    constant, *others = b.pick(ERFC)
    numerator = sum_ordered(b, b.value(constant), argument * b.polynomial(argument, others))
    divisor = sum_ordered(b, t + t, b.value(1.0))
    inverse = reciprocal(b, divisor.high)
    ratio = numerator.high * inverse
    residual = b.fma(-ratio, divisor.low, b.fma(-ratio, divisor.high, numerator.high))
    rational = DoubleWord(ratio, (residual + numerator.low) * inverse)
    total = product(b, power, rational)
    lift = b.pick((64, 600))  # keeps the exponent of the first product normal
    return (total.high + total.low) * power_of_two(b, reduced.n_bits + lift) * 2.0**-lift


@FUNCTIONS.define("erf", dtypes=("f32",))
def erf_single(b: FunctionWriter, x: V) -> V:
    """An odd polynomial near 0, else 1 - exp(-p(|x|)), whose exponential needs few digits."""
    t = b.intrinsic("minimum", b.abs(x), 4.0)
    exponent = b.polynomial(t, ERF_LARGE) * t
    rounder = format_of(b).rounder
    shifted = b.fma(exponent, -LOG2_E[0], rounder)
    r = b.fma(shifted - rounder, -LN2_HIGH[0], -exponent)
    e = b.polynomial(r, EXP_NARROW[0]) * power_of_two(b, b.bits(shifted))
    large = b.copysign(1.0 - e, x)
    return t.lt(0.84375).where(_erf_of_small(b, x), large)


@FUNCTIONS.define("erf", dtypes=("f64",))
def erf_double(b: FunctionWriter, x: V) -> V:
    t = b.abs(x)
    large = b.copysign(1.0 - _erfc_of_large(b, t), x)
    return t.lt(1.0).where(_erf_of_small(b, x), large)


@FUNCTIONS.define("erfc")
def erfc(b: FunctionWriter, x: V) -> V:
    t = b.abs(x)
    tail = _erfc_of_large(b, t)
    large = x.lt(0.0).where(2.0 - tail, tail)
    return t.lt(0.5).where(1.0 - _erf_of_small(b, x), large)
