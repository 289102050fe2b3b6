"""Rounding to whole numbers, and steps between neighbouring floats."""

from __future__ import annotations

from collections.abc import Callable

from ..value import V
from .constants import NAN, format_of
from .registry import FUNCTIONS
from .text import FunctionWriter


def _rounding(intrinsic: str) -> Callable[[FunctionWriter, V], V]:
    def body(b: FunctionWriter, x: V) -> V:
        return b.intrinsic(intrinsic, x)

    return body


# Whole numbers, in the operand's dtype; -0 and NaN stay. `rint` takes ties to even.
for _name, _intrinsic in (
    ("floor", "floor"),
    ("ceil", "ceil"),
    ("trunc", "trunc"),
    ("rint", "roundeven"),
):
    FUNCTIONS.define(_name)(_rounding(_intrinsic))


@FUNCTIONS.define("sqrt")
def sqrt(b: FunctionWriter, x: V) -> V:
    return b.sqrt(x)


@FUNCTIONS.define("nextafter", 2)
def nextafter(b: FunctionWriter, x: V, y: V) -> V:
    """The float next to x in the direction of y; y if they are equal."""
    bits = b.bits(x)
    # Away from zero the bits grow, whatever the sign.
    outward = x.lt(y) ^ bits.lt(0)
    stepped = b.from_bits(bits + outward.where(b.value(1, b.int), -1))
    smallest = b.copysign(b.from_bits(b.value(1, b.int)), y)
    moved = x.equal(0.0).where(smallest, stepped)
    unequal = x.equal(y).where(y, moved)
    return x.is_nan().where(NAN, y.is_nan().where(NAN, unequal))


@FUNCTIONS.define("ldexp", parameters=("", "i32"))
def ldexp(b: FunctionWriter, x: V, exponent: V) -> V:
    """x * 2^exponent, rounded once, in three factors, which reach from the largest float to the
    smallest.
    """
    form = format_of(b)
    least, most = 1 - form.bias, form.bias
    for _ in range(2):
        # If a step down that is not the last rounds its product, the remaining steps take the result to 0.
        down = b.value(least + form.mantissa + 1, "i32")
        part = exponent.lt(least).where(down, b.intrinsic("smin", exponent, most))
        x = x * _power(b, part)
        exponent = exponent - part
    return x * _power(b, b.intrinsic("smin", b.intrinsic("smax", exponent, least), most))


def _power(b: FunctionWriter, exponent: V) -> V:
    form = format_of(b)
    bits = exponent if b.is32 else exponent.sext("i64")
    return b.from_bits((bits << form.mantissa) + form.one)
