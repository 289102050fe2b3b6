"""What is known of a rank-0 integer: an interval and a divisor. Enough to prove masks away and to widen indices."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd


@dataclass(frozen=True, slots=True)
class Range:
    """lo <= value <= hi in exact arithmetic, and value % divisor == 0. A divisor of 0 means: exactly zero."""

    lo: int
    hi: int
    divisor: int = 1

    @property
    def constant(self) -> int | None:
        return self.lo if self.lo == self.hi else None

    def fits(self, bits: int, signed: bool = True) -> bool:
        if signed:
            return -(1 << bits - 1) <= self.lo and self.hi < 1 << bits - 1
        return self.lo >= 0 and self.hi < 1 << bits


def of(value: int) -> Range:
    return Range(value, value, abs(value))


def add(a: Range, b: Range) -> Range:
    return Range(a.lo + b.lo, a.hi + b.hi, gcd(a.divisor, b.divisor))


def neg(a: Range) -> Range:
    return Range(-a.hi, -a.lo, a.divisor)


def sub(a: Range, b: Range) -> Range:
    return add(a, neg(b))


def mul(a: Range, b: Range) -> Range:
    corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return Range(min(corners), max(corners), a.divisor * b.divisor)


def floordiv(a: Range, b: Range) -> Range | None:
    """Floor division by a known positive constant."""
    d = b.constant
    if d is None or d <= 0:
        return None
    divisor = a.divisor // d if a.divisor % d == 0 else 1
    return Range(a.lo // d, a.hi // d, divisor)


def mod(a: Range, b: Range) -> Range | None:
    """Python's remainder by a known positive constant."""
    d = b.constant
    if d is None or d <= 0:
        return None
    if a.lo >= 0 and a.hi < d:
        return a
    return Range(0, d - 1, gcd(a.divisor, d))


def minimum(a: Range, b: Range) -> Range:
    return Range(min(a.lo, b.lo), min(a.hi, b.hi), gcd(a.divisor, b.divisor))


def maximum(a: Range, b: Range) -> Range:
    return Range(max(a.lo, b.lo), max(a.hi, b.hi), gcd(a.divisor, b.divisor))


def union(a: Range, b: Range) -> Range:
    return Range(min(a.lo, b.lo), max(a.hi, b.hi), gcd(a.divisor, b.divisor))
