"""`kd.cdiv`, outside of `ops/`: host code divides sizes before a launch, which then need not import all operations."""

from __future__ import annotations

from typing import Any

from .arguments import an_int
from .errors import BadArgument
from .values import Array
from .variables import Symbol

__all__ = ["cdiv"]


def cdiv(x: Any, y: Any) -> Any:
    """Division rounded up, of static or traced integers.

    >>> kd.cdiv(10, 4)
    3
    """
    if isinstance(x, Array) or isinstance(y, Array):
        return _traced(x, y)
    hint = "static or traced integers"
    if not isinstance(x, Symbol):
        x = an_int(x, "cdiv", "x", hint=hint)
    return -(-x // (y if isinstance(y, Symbol) else _divisor(an_int(y, "cdiv", "y", hint=hint))))


def _traced(x: Any, y: Any) -> Array:
    from .ops import arith

    if isinstance(x, Array) and isinstance(y, int) and y > 0 and x.facts is not None and not x.facts.divisor % y:
        return arith.floor_divide(x, y)  # gives a tighter range of the quotient
    return arith.floor_divide(arith.add(x, arith.subtract(y, 1)), y)


def _divisor(y: int) -> int:
    if y == 0:
        raise BadArgument(op="cdiv", what="y=0", hint="give a divisor other than 0")
    return y
