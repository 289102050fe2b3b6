"""asin, acos, atan, atan2."""

from __future__ import annotations

from ..value import V
from .constants import INFINITY, NAN
from .quotient import reciprocal
from .registry import FUNCTIONS
from .text import FunctionWriter

# Each constant in two parts, for (float32, float64).
PI = ((3.1415927410125732, -8.742277657347586e-08), (3.141592653589793, 1.2246467991473532e-16))
HALF_PI = (
    (1.5707963705062866, -4.371138828673793e-08),
    (1.5707963267948966, 6.123233995736766e-17),
)

# (asin(x) - x) / x^3 in x^2, for |x| <= 0.5625 (2^-29.0) and 1/2 (2^-55.9)
ASIN = (
    (
        0.16666631400585175,
        0.07502098381519318,
        0.04423201456665993,
        0.03401228040456772,
        0.006737255956977606,
        0.04749051854014397,
    ),
    (
        0.1666666666666541,
        0.07500000000336596,
        0.04464285682861354,
        0.030381959126824797,
        0.022371758265720423,
        0.017359701844672396,
        0.013885261626120828,
        0.012169054871323031,
        0.006528596318457716,
        0.01952670495125193,
        -0.016222001921285725,
        0.031910849999133815,
    ),
)
# (atan(x) - x) / x^3 in x^2, for |x| <= 1 (2^-25.8 and 2^-55.0)
ATAN = (
    (
        -0.33333152532577515,
        0.19993767142295837,
        -0.14211001992225647,
        0.10665769875049591,
        -0.07551664113998413,
        0.04320479929447174,
        -0.016363244503736496,
        0.0029194375965744257,
    ),
    (
        -0.3333333333333186,
        0.19999999999755164,
        -0.14285714271339792,
        0.11111110678833358,
        -0.09090901236111029,
        0.07692212932374422,
        -0.06665860339912723,
        0.05877307474915114,
        -0.05239231215851627,
        0.046739425910853255,
        -0.040926186302198735,
        0.034067408720695844,
        -0.02582618177042698,
        0.0169773356588019,
        -0.009183973236658885,
        0.0038556246584197946,
        -0.0011639301931424203,
        0.0002229877231281321,
        -2.0254665333878587e-05,
    ),
)


def _arcsine(b: FunctionWriter, x: V) -> tuple[V, V]:
    """(asin(s), whether |x| is small) with s = |x| if it is small, else sqrt((1 - |x|)/2); NaN beyond 1.

    The limit is above 1/2 in float32, so that twice the error of the large part is less in ulp.
    """
    t = b.abs(x)
    small = t.lt(b.pick((0.5625, 0.5)))
    square = small.where(x * x, b.fma(t, -0.5, 0.5))
    s = small.where(t, b.sqrt(square))
    return b.fma(b.polynomial(square, b.pick(ASIN)), square * s, s), small


@FUNCTIONS.define("asin")
def asin(b: FunctionWriter, x: V) -> V:
    """pi/2 - 2 asin(sqrt((1 - x)/2)) for the larger x."""
    part, small = _arcsine(b, x)
    high, low = b.pick(HALF_PI)
    large = b.fma(part, -2.0, high) + low
    return b.copysign(small.where(part, large), x)


@FUNCTIONS.define("acos")
def acos(b: FunctionWriter, x: V) -> V:
    part, small = _arcsine(b, x)
    signed = b.copysign(part, x)
    half, half_low = b.pick(HALF_PI)
    pi, pi_low = b.pick(PI)
    doubled = part + part
    large = x.lt(0.0).where(pi - (doubled - pi_low), doubled)
    return small.where(half - (signed - half_low), large)


def _arctangent(b: FunctionWriter, t: V) -> V:
    """atan(t) for 0 <= t <= 1."""
    square = t * t
    return b.fma(b.polynomial(square, b.pick(ATAN)), square * t, t)


@FUNCTIONS.define("atan")
def atan(b: FunctionWriter, x: V) -> V:
    t = b.abs(x)
    large = t.gt(1.0)
    inverse = reciprocal(b, b.clamp(t, 1.0, 2.0**100))
    angle = _arctangent(b, large.where(inverse, t))
    half, half_low = b.pick(HALF_PI)
    return b.copysign(large.where(half - (angle - half_low), angle), x)


@FUNCTIONS.define("atan2", 2)
def atan2(b: FunctionWriter, y: V, x: V) -> V:
    """The angle of (x, y): zeros and infinities of either sign as C99 F.9.1.4 has them."""
    height, width = b.abs(y), b.abs(x)
    steep = height.gt(width)
    low, high = steep.where(width, height), steep.where(height, width)
    ratio = low / high
    ratio = high.equal(0.0).where(0.0, low.equal(INFINITY).where(1.0, ratio))
    angle = _arctangent(b, ratio)
    half, half_low = b.pick(HALF_PI)
    angle = steep.where(half - (angle - half_low), angle)
    pi, pi_low = b.pick(PI)
    angle = b.bits(x).lt(0).where(pi - (angle - pi_low), angle)
    # inf - inf has no NaN operand, so each operand is tested.
    return x.is_nan().where(NAN, y.is_nan().where(NAN, b.copysign(angle, y)))
