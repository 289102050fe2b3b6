"""Functions made of others: logarithms of sums of exponentials."""

from __future__ import annotations

from ..value import V
from .exponential import LOG2_E, exp, exp2
from .logarithm import log1p_of
from .registry import FUNCTIONS
from .text import FunctionWriter


def _ordered(b: FunctionWriter, x: V, y: V) -> tuple[V, V]:
    """(the larger, minus their distance), where the distance of equal infinities is 0; NaN if
    either is one.
    """
    larger = b.intrinsic("maximum", x, y)
    distance = x.equal(y).where(0.0, -b.abs(x - y))
    return larger, distance


@FUNCTIONS.define("logaddexp", 2)
def logaddexp(b: FunctionWriter, x: V, y: V) -> V:
    """log(exp(x) + exp(y)) as max + log1p(exp(-|x - y|))."""
    larger, distance = _ordered(b, x, y)
    return larger + log1p_of(b, exp(b, distance))


@FUNCTIONS.define("logaddexp2", 2)
def logaddexp2(b: FunctionWriter, x: V, y: V) -> V:
    """log2(2^x + 2^y)."""
    larger, distance = _ordered(b, x, y)
    return larger + log1p_of(b, exp2(b, distance)) * b.pick(LOG2_E)
