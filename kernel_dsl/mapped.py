"""Extents that no code reads, of arrays whose tensor maps each launch makes."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

from .extents import WIDE, Extent, now

UNIT = 16  # bytes: the strides of a tensor map are multiples of it


def common_unit(sizes: Sequence[Any], width: int) -> int:
    """The greatest divisor of `width`, a power of two, that is known to divide the product of extents.

    An extent that no code has read is asked only for the factor that the others lack.
    """
    unit = gcd(prod(n for n in sizes if not isinstance(now(n), Extent)), width)
    for size in reversed(sizes):
        if unit < width and isinstance(now(size), Extent):
            unit *= size.unit(width // unit)
    return unit


def is_mapped(shape: Sequence[Any], contiguous: bool, itemsize: int) -> bool:
    """Whether tensor maps of an array can take the extents that no code has read from each launch.

    The key then has what the code needs to know of them: that they are not 0, that coordinates have 32 bits, and that
    strides are whole units of 16 bytes. Extents for which this does not hold are read: lanes copy such arrays, or an
    error shows the extents.
    """
    unread = [n for n in shape if isinstance(n, Extent) and n.known is None and not n.declared]
    if not unread:
        return True
    width = max(UNIT // itemsize, 1)
    if any(not 1 <= n.value < WIDE for n in unread):
        return False
    if contiguous:
        values = [n.value if isinstance(n, Extent) else n for n in shape]
        if any(prod(values[axis:]) % width for axis in range(1, len(values))):
            return False
        for axis in range(1, len(shape)):
            common_unit(shape[axis:], width)
    for size in unread:
        size.map(width if size is shape[-1] else 1)
    return True
