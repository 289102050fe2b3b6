"""Extents in functions of shapes, as `grid=` and `out_type=` are: arithmetic on them is kept, and bounded by one extent."""

from __future__ import annotations

from typing import Any

from .errors_dims import EscapedExtent
from .extents import Extent, Top
from .variables import Expression, Symbol, Variable


class ExtentSymbol(Variable):
    """An extent in a function of shapes: arithmetic on it is kept, and asking for its value is an error.

    The error ends the attempt to call the function with symbols. Users see it if they kept the symbol.
    """

    def __init__(self, extent: Extent) -> None:
        self.name: str = f"{extent.array}.{extent.axis}"
        self.lo: int = extent.least
        self.hi: int = extent.most
        self.extent = extent

    def now(self) -> int | None:
        raise EscapedExtent()

    def __repr__(self) -> str:
        return repr(self.extent)


def top_of(size: Any) -> Top | None:
    """An upper bound of an integer or a symbol, as a multiple of one extent; None if there is none."""
    if isinstance(size, ExtentSymbol):
        return Top(size.extent, 1, 1, 0)
    if not isinstance(size, Expression):
        return None
    left, right = size.operands
    rounded_up = _rounded_up(size)
    if rounded_up is not None:
        inner, by = rounded_up
        top = top_of(inner)
        if top is None:
            return None
        exact = isinstance(inner, ExtentSymbol) and inner.extent.divisor % by == 0
        return top.over(by) if exact else top.plus(by - 1).over(by)
    if isinstance(right, int) and isinstance(left, Symbol):
        top = top_of(left)
        if top is None:
            return None
        if size.sign == "+":
            return top.plus(right)
        if size.sign == "-":
            return top.plus(-right)
        if size.sign == "*" and right > 0:
            return top.times(right)
        if size.sign == "//" and right > 0:
            return top.over(right)
    if isinstance(left, int) and isinstance(right, Symbol) and size.sign in "+*":
        top = top_of(right)
        if top is not None and size.sign == "+":
            return top.plus(left)
        if top is not None and left > 0:
            return top.times(left)
    return None


def _rounded_up(size: Expression) -> tuple[Any, int] | None:
    """(x, n) if an expression is -(-x // n)."""
    inner = _negated(size)
    if not isinstance(inner, Expression) or inner.sign != "//":
        return None
    x, by = _negated(inner.operands[0]), inner.operands[1]
    return (x, by) if x is not None and isinstance(by, int) and by > 0 else None


def _negated(size: Any) -> Any:
    if (
        isinstance(size, Expression)
        and size.sign == "-"
        and isinstance(size.operands[0], int)
        and size.operands[0] == 0
    ):
        return size.operands[1]
    return None
