"""Arithmetic on unevaluated sums of two floats, for intermediate results of twice the precision."""

from __future__ import annotations

from dataclasses import dataclass

from ..value import V
from .text import FunctionWriter


@dataclass(frozen=True)
class DoubleWord:
    """high + low, where low is at most about an ulp of high."""

    high: V
    low: V


def sum_ordered(b: FunctionWriter, large: V, small: V) -> DoubleWord:
    """large + small exactly, where |large| >= |small| or large is 0 (Dekker's fast two-sum)."""
    high = large + small
    return DoubleWord(high, small - (high - large))


def product(b: FunctionWriter, x: DoubleWord, y: DoubleWord | V) -> DoubleWord:
    """x * y; the product of the two low parts is left out."""
    if isinstance(y, V):
        high = x.high * y
        return DoubleWord(high, b.fma(x.low, y, b.fma(x.high, y, -high)))
    high = x.high * y.high
    low = b.fma(x.high, y.high, -high)
    return DoubleWord(high, b.fma(x.high, y.low, b.fma(x.low, y.high, low)))
