"""sin, cos, tan: x = n * pi/2 + r, in three steps for moderate x and in integers for huge x."""

from __future__ import annotations

from ..value import V
from .constants import format_of
from .huge import Angle, reduce_huge
from .quotient import quotient
from .registry import FUNCTIONS
from .text import FunctionWriter

TWO_OVER_PI = (0.6366197466850281, 0.6366197723675814)
# Rounded down, so that all parts have one sign: the reduction then keeps the sign of a zero.
HALF_PI = (
    (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15),
    (1.5707963267948966, 6.123233995736765e-17, 1.0828566739219139e-32),
)
# The limit of the three-step reduction: n times the error of HALF_PI must stay far below the smallest r.
MODERATE = (105615.0, 2.0**30)

# sin(r) = r + r^3 * q(r^2) and cos(r) = 1 - r^2/2 + r^4 * q(r^2), minimax on |r| <= 0.786
SIN = (
    (-0.16666655242443085, 0.008332190103828907, -0.00019518405315466225),
    (
        -0.16666666666666632,
        0.008333333333322455,
        -0.00019841269829813413,
        2.7557313687570683e-06,
        -2.5050756713736245e-08,
        1.5896681799703614e-10,
    ),
)
COS = (
    (-0.5, 0.04166664555668831, -0.00138873013202101, 2.4430670237052254e-05),
    (
        -0.5,
        0.0416666666666666,
        -0.0013888888888870278,
        2.48015872853407e-05,
        -2.7557312811871123e-07,
        2.087548090869881e-09,
        -1.1345873660983316e-11,
    ),
)


# tan(r) = r + r^3 * q(r^2) on the same range (2^-25.7 and 2^-56.2)
TAN = (
    (
        0.33333155512809753,
        0.1333884596824646,
        0.053406864404678345,
        0.024447258561849594,
        0.0030908130574971437,
        0.009403412230312824,
    ),
    (
        0.3333333333333276,
        0.1333333333341711,
        0.053968253925478056,
        0.021869489637565943,
        0.008863218761094308,
        0.0035922927239358336,
        0.0014547357693545065,
        0.0005951583882902467,
        0.00022210289415793764,
        0.0001370977082001198,
        -2.719516691859148e-05,
        9.019815994490822e-05,
        -4.528041911994103e-05,
        2.0960679116155746e-05,
    ),
)


def sine_of_angle(b: FunctionWriter, angle: Angle, shift: V | int = 0) -> V:
    """sin(angle + shift * pi/2); -0 gives -0. The rounding error of r is not used."""
    r = angle.r
    square = r * r
    # The + 0 turns the product's -0 into 0, so that the last step keeps the sign of r = -0.
    sine = b.fma(b.polynomial(square, b.pick(SIN)), b.fma(square, r, 0.0), r)
    cosine = b.fma(square, b.polynomial(square, b.pick(COS)), 1.0)
    quadrant = angle.quadrant if shift == 0 else angle.quadrant + shift
    value = (quadrant & 1).equal(0).where(sine, cosine)
    sign = (quadrant & 2) << 30
    if not b.is32:
        sign = sign.zext("i64") << 32
    return b.from_bits(b.bits(value) ^ sign)


def tangent_of_angle(b: FunctionWriter, angle: Angle) -> V:
    """tan(angle), as -1/tan(r) in odd quadrants; 0 for -0."""
    r = angle.r
    square = r * r
    # The derivative is 1 + tan(r)^2, of which 1 + 1.5 r^2 is near enough for the rest.
    beyond = b.fma(b.polynomial(square, b.pick(TAN)), square * r, b.fma(square, 1.5, 1.0) * angle.rest)
    odd = (angle.quadrant & 1).equal(1)
    # In even quadrants r may be 0; in odd ones it is never so small that its reciprocal overflows.
    inverse = quotient(b, b.value(-1.0), odd.where(r, b.value(1.0)), beyond)
    return odd.where(inverse, r + beyond)


def reduce_moderate(b: FunctionWriter, x: V, *, with_rest: bool = False) -> Angle:
    """x modulo 2 pi for |x| up to MODERATE; with the rounding error of r if `with_rest`."""
    rounder = format_of(b).rounder
    shifted = b.fma(x, b.pick(TWO_OVER_PI), rounder)
    n = shifted - rounder
    n_bits = b.bits(shifted)
    quadrant = n_bits if b.is32 else n_bits.trunc("i32")
    high, middle, low = b.pick(HALF_PI)
    first = b.fma(n, -high, x)  # exact
    if not with_rest:
        return Angle(b.fma(n, -low, b.fma(n, -middle, first)), b.value(0.0), quadrant)
    product = n * middle
    second = first - product
    lost = (first - second) - product - b.fma(n, middle, -product)
    below = b.fma(n, -low, lost)
    r = second + below
    return Angle(r, below - (r - second), quadrant)


@FUNCTIONS.define("sine_of_huge", parameters=("", "i32"), out_of_line=True)
def sine_of_huge(b: FunctionWriter, x: V, shift: V) -> V:
    """sin(x + shift * pi/2) for |x| > 2^16, and NaN for an infinity or a NaN."""
    return sine_of_angle(b, reduce_huge(b, x), shift)


@FUNCTIONS.define("tangent_of_huge", out_of_line=True)
def tangent_of_huge(b: FunctionWriter, x: V) -> V:
    """tan(x) for |x| > 2^16, and NaN for an infinity or a NaN."""
    return tangent_of_angle(b, reduce_huge(b, x))


def _is_huge(b: FunctionWriter, x: V) -> V:
    return b.abs(x).gt(b.pick(MODERATE))


def _sine(b: FunctionWriter, x: V, shift: int) -> V:
    moderate = sine_of_angle(b, reduce_moderate(b, x), shift)
    slow = b.value(shift, "i32")
    return b.rarely(_is_huge(b, x), moderate, lambda: b.function("sine_of_huge", x, slow))


@FUNCTIONS.define("sin")
def sin(b: FunctionWriter, x: V) -> V:
    return _sine(b, x, 0)


@FUNCTIONS.define("cos")
def cos(b: FunctionWriter, x: V) -> V:
    return _sine(b, x, 1)


@FUNCTIONS.define("tan")
def tan(b: FunctionWriter, x: V) -> V:
    tangent = tangent_of_angle(b, reduce_moderate(b, x, with_rest=b.is32))
    moderate = x.equal(0.0).where(x, tangent)  # -0 stays
    return b.rarely(_is_huge(b, x), moderate, lambda: b.function("tangent_of_huge", x))
