"""Functions made of others: logarithms of sums of exponentials."""

from __future__ import annotations

from .exponential import LOG2_E, exp, exp2
from .logarithm import log1p_of
from .registry import FUNCTIONS
from .text import Value, Writer


def _ordered(b: Writer, x: Value, y: Value) -> tuple[Value, Value]:
    """(the larger, minus their distance), where the distance of equal infinities is 0; NaN if
    either is one.
    """
    larger = b.intrinsic("maximum", x, y)
    distance = x.equal(y).where(0.0, -b.abs(x - y))
    return larger, distance


@FUNCTIONS.define("logaddexp", 2)
def logaddexp(b: Writer, x: Value, y: Value) -> Value:
    """log(exp(x) + exp(y)) as max + log1p(exp(-|x - y|))."""
    larger, distance = _ordered(b, x, y)
    return larger + log1p_of(b, exp(b, distance))


@FUNCTIONS.define("logaddexp2", 2)
def logaddexp2(b: Writer, x: Value, y: Value) -> Value:
    """log2(2^x + 2^y)."""
    larger, distance = _ordered(b, x, y)
    return larger + log1p_of(b, exp2(b, distance)) * b.pick(LOG2_E)
