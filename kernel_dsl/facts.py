"""Facts about integers and arrays of integers: an interval and a divisor.

The trace uses them to omit masks and to widen indices.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from . import dtypes as dt
from .dtypes import DType

if TYPE_CHECKING:
    from .extents import Top


class Range(NamedTuple):
    """lo <= value <= hi in exact arithmetic, and value % divisor == 0. A divisor of 0 means: exactly zero.

    `wide`: an intermediate result may have overflowed int32, so the range holds after a computation in int64.
    """

    lo: int
    hi: int
    divisor: int = 1
    wide: bool = False
    top: Top | None = None  # a second upper bound beside `hi`, by an extent that only the launch knows

    @property
    def constant(self) -> int | None:
        return self.lo if self.lo == self.hi else None

    def fits(self, bits: int, signed: bool = True) -> bool:
        if signed:
            return -(1 << bits - 1) <= self.lo and self.hi < 1 << bits - 1
        return self.lo >= 0 and self.hi < 1 << bits


def any_of(dtype: DType) -> Range | None:
    """The range of all values of an integer dtype."""
    return _HELD.get(dtype.name)


def _held(dtype: DType) -> Range:
    low = -(1 << dtype.bits - 1) if dtype.is_signed else 0
    return Range(low, low + (1 << dtype.bits) - 1)


_HELD = {dtype.name: _held(dtype) for dtype in dt.ALL if dtype.is_integer}


def certain(value: Range | None, dtype: DType) -> Range | None:
    """The range of a value as it was computed, with overflow."""
    return any_of(dtype) if value is not None and value.wide else value


def of(value: int) -> Range:
    return Range(value, value, abs(value))


def add(a: Range, b: Range) -> Range:
    top = a.top.plus(b.hi) if a.top is not None else b.top.plus(a.hi) if b.top is not None else None
    return Range(a.lo + b.lo, a.hi + b.hi, gcd(a.divisor, b.divisor), False, top)


def neg(a: Range) -> Range:
    return Range(-a.hi, -a.lo, a.divisor)


def sub(a: Range, b: Range) -> Range:
    return add(a, neg(b))


def mul(a: Range, b: Range) -> Range:
    corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    top, factor = (a.top, b.constant) if a.top is not None else (b.top, a.constant)
    top = top.times(factor) if top is not None and factor is not None and factor > 0 else None
    return Range(min(corners), max(corners), a.divisor * b.divisor, False, top)


def floordiv(a: Range, b: Range) -> Range | None:
    """Floor division by a known positive constant."""
    d = b.constant
    if d is None or d <= 0:
        return None
    divisor = a.divisor // d if a.divisor % d == 0 else 1
    return Range(a.lo // d, a.hi // d, divisor, False, None if a.top is None else a.top.over(d))


def mod(a: Range, b: Range) -> Range | None:
    """Python's remainder by a known positive constant."""
    d = b.constant
    if d is None or d <= 0:
        return None
    if a.lo >= 0 and a.hi < d:
        return a
    return Range(0, d - 1, gcd(a.divisor, d))


def div(a: Range, b: Range) -> Range | None:
    """Truncating division by a number that is known to be positive."""
    if b.lo < 1:
        return None
    ends = [x // y if x >= 0 else -(-x // y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    exact = b.constant is not None and a.divisor % b.lo == 0
    return Range(min(ends), max(ends), a.divisor // b.lo if exact else 1)


def rem(a: Range, b: Range) -> Range | None:
    """The remainder of truncating division by a number that is known to be positive: it has the dividend's sign."""
    if b.lo < 1:
        return None
    if -b.lo < a.lo and a.hi < b.lo:
        return a
    most = b.hi - 1
    top = None if b.top is None else b.top.plus(-1)
    return Range(max(min(a.lo, 0), -most), min(max(a.hi, 0), most), gcd(a.divisor, b.divisor), False, top)


def masked(a: Range, b: Range) -> Range | None:
    """Bitwise and with a known constant that is not negative."""
    c = b.constant if b.constant is not None else a.constant
    if c is None or c < 0:
        return None
    return Range(0, c, c & -c)


def shifted(a: Range, b: Range, left: bool) -> Range | None:
    """A shift by a known number of bits."""
    bits = b.constant
    if bits is None or not 0 <= bits < 63:
        return None
    return mul(a, of(1 << bits)) if left else floordiv(a, of(1 << bits))


def minimum(a: Range, b: Range) -> Range:
    return Range(min(a.lo, b.lo), min(a.hi, b.hi), gcd(a.divisor, b.divisor), False, a.top or b.top)


def maximum(a: Range, b: Range) -> Range:
    return Range(max(a.lo, b.lo), max(a.hi, b.hi), gcd(a.divisor, b.divisor))


def union(a: Range, b: Range) -> Range:
    return Range(min(a.lo, b.lo), max(a.hi, b.hi), gcd(a.divisor, b.divisor))
