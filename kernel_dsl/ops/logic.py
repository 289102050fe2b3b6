"""Logic on truth values, and limits."""

from __future__ import annotations

from typing import Any

from ..values import Array
from .arith import bitwise_and, bitwise_or, bitwise_xor, invert
from .cast import as_value
from .compare import maximum, minimum, truth

__all__ = ["clip", "logical_and", "logical_not", "logical_or", "logical_xor"]


def logical_and(x: Any, y: Any) -> Array:
    """(x != 0) and (y != 0)."""
    return bitwise_and(truth(x, "logical_and"), truth(y, "logical_and"))


def logical_or(x: Any, y: Any) -> Array:
    """(x != 0) or (y != 0)."""
    return bitwise_or(truth(x, "logical_or"), truth(y, "logical_or"))


def logical_xor(x: Any, y: Any) -> Array:
    """Exactly one of x != 0 and y != 0."""
    return bitwise_xor(truth(x, "logical_xor"), truth(y, "logical_xor"))


def logical_not(x: Any) -> Array:
    """x == 0 as bool."""
    return invert(truth(x, "logical_not"))


def clip(x: Any, min: Any = None, max: Any = None) -> Array:
    """x limited to [min, max]; None leaves that side open.

    >>> run(lambda x: kd.clip(x, 0, 2), [-1, 1, 3])
    [0 1 2]
    """
    value = as_value(x, "clip")
    if min is not None:
        value = maximum(value, min)
    if max is not None:
        value = minimum(value, max)
    return value
