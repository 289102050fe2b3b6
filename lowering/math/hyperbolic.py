"""sinh, cosh, tanh and their inverses."""

from __future__ import annotations

from ..value import V
from .constants import INFINITY, NAN
from .exponential import EXP_NARROW, expm1_polynomial, power_of_two, reduce_by_log2
from .logarithm import log1p_of
from .quotient import quotient, reciprocal
from .registry import FUNCTIONS
from .text import FunctionWriter

# (sinh(x) - x) / x^3 in x^2, for |x| <= 1 (2^-31.6 and 2^-63.0)
SINH = (
    (0.1666666716337204, 0.00833331048488617, 0.00019842895562760532, 2.7822131869470468e-06),
    (
        0.16666666666666666,
        0.008333333333333573,
        0.0001984126984106116,
        2.7557319310090823e-06,
        2.505208941271375e-08,
        1.6061339166106773e-10,
        7.50326662310113e-13,
        6.475246133730495e-15,
    ),
)
# (asinh(x) - x) / x^3 in x^2, for |x| <= 1/2 (2^-29.3)
ASINH_SMALL = (
    -0.16666638851165771,
    0.07498440891504288,
    -0.044355835765600204,
    0.02801821567118168,
    -0.012967374175786972,
)
HUGE = 2.0**60  # above it, 1 + x is x in both formats; its square is a float32


def _half_exp(b: FunctionWriter, x: V) -> tuple[V, V]:
    """exp(|x|)/2 and a quarter of its reciprocal."""
    reduced = reduce_by_log2(b, b.intrinsic("minimum", b.abs(x), b.pick((89.5, 710.6))))
    p = b.polynomial(reduced.r, b.pick(EXP_NARROW))
    half = p * power_of_two(b, reduced.n_bits - 2) * 2.0  # n - 1 may be one past the largest exponent
    return half, reciprocal(b, b.intrinsic("minimum", half, 2.0**100)) * 0.25


@FUNCTIONS.define("sinh")
def sinh(b: FunctionWriter, x: V) -> V:
    half, rest = _half_exp(b, x)
    square = x * x
    small = b.fma(b.polynomial(square, b.pick(SINH)), square * x, x)
    return b.abs(x).lt(1.0).where(small, b.copysign(half - rest, x))


@FUNCTIONS.define("cosh")
def cosh(b: FunctionWriter, x: V) -> V:
    half, rest = _half_exp(b, x)
    return half + rest


@FUNCTIONS.define("asinh")
def asinh(b: FunctionWriter, x: V) -> V:
    """log(t + sqrt(t^2 + 1)) as log1p(t + t^2 / (1 + sqrt(t^2 + 1))), with t = |x|."""
    t = b.abs(x)
    huge = t.gt(HUGE)
    near = huge.where(b.value(1.0), t)  # keeps the unused square finite
    root = b.sqrt(b.fma(near, near, 1.0))
    argument = b.fma(near * near, reciprocal(b, root + 1.0), near)
    result = log1p_of(b, huge.where(t, argument), doubled=huge)
    if b.is32:  # the logarithm of a rounded argument is just over 2 ulp near 0.3
        square = t * t
        small = b.fma(b.polynomial(square, ASINH_SMALL), square * t, t)
        result = t.lt(0.5).where(small, result)
    return b.copysign(result, x)


@FUNCTIONS.define("acosh")
def acosh(b: FunctionWriter, x: V) -> V:
    """log1p(t + sqrt(t^2 + 2t)) with t = x - 1; NaN below 1."""
    huge = x.gt(HUGE)
    t = huge.where(b.value(1.0), x - 1.0)
    square = b.fma(t, t, t + t)
    root = b.sqrt(square)
    # The rounding errors of the square and of its root, over twice the root.
    lost = b.fma(-root, root, square) + b.fma(t, t, t + t - square)
    correction = lost * reciprocal(b, b.intrinsic("maximum", root, 2.0**-60)) * 0.5
    argument = x.lt(1.0).where(NAN, root + (t + correction))
    return log1p_of(b, huge.where(x, argument), doubled=huge)


@FUNCTIONS.define("atanh")
def atanh(b: FunctionWriter, x: V) -> V:
    """log1p(2t / (1 - t)) / 2 with t = |x|; NaN beyond 1."""
    t = b.abs(x)
    ratio = quotient(b, t + t, b.value(1.0), -t)
    ratio = t.equal(1.0).where(INFINITY, t.gt(1.0).where(NAN, ratio))
    return b.copysign(log1p_of(b, ratio) * 0.5, x)


@FUNCTIONS.define("tanh")
def tanh(b: FunctionWriter, x: V) -> V:
    """m / (m + 2) with m = expm1(2|x|) = 2^n * (exp(r) - 1) + (2^n - 1)."""
    magnitude = b.intrinsic("minimum", b.abs(x), b.pick((10.0, 20.0)))
    reduced = reduce_by_log2(b, magnitude + magnitude)
    power = power_of_two(b, reduced.n_bits)
    m = b.fma(expm1_polynomial(b, reduced.r), power, power - 1.0)
    return b.copysign(quotient(b, m, b.value(2.0), m), x)
