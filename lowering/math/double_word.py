"""Arithmetic on unevaluated sums of two floats, for intermediate results of twice the precision."""

from __future__ import annotations

from dataclasses import dataclass

from .text import Value, Writer


@dataclass(frozen=True)
class DoubleWord:
    """high + low, where low is at most about an ulp of high."""

    high: Value
    low: Value


def sum_ordered(b: Writer, large: Value, small: Value) -> DoubleWord:
    """large + small exactly, where |large| >= |small| or large is 0 (Dekker's fast two-sum)."""
    high = large + small
    return DoubleWord(high, small - (high - large))


def product(b: Writer, x: DoubleWord, y: DoubleWord | Value) -> DoubleWord:
    """x * y; the product of the two low parts is left out."""
    if isinstance(y, Value):
        high = x.high * y
        return DoubleWord(high, b.fma(x.low, y, b.fma(x.high, y, -high)))
    high = x.high * y.high
    low = b.fma(x.high, y.high, -high)
    return DoubleWord(high, b.fma(x.high, y.low, b.fma(x.low, y.high, low)))
