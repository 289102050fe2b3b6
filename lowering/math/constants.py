"""Numbers that several families of functions share. `mantissa`: stored bits; `one`: the bits of
1.0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .text import FunctionWriter


@dataclass(frozen=True)
class Format:
    """A binary floating-point format (IEEE 754), and the constants that argument reduction takes
    from it.

    `rounder`: 1.5 * 2**mantissa; adding it leaves the nearest integer in the low bits, and
    subtracting it again gives that integer as a float. Its low bits are zero, so shifting the sum
    left keeps only the integer.
    """

    mantissa: int
    bias: int
    rounder: float
    smallest_normal: float

    @property
    def one(self) -> int:
        return self.bias << self.mantissa

    @property
    def infinity_bits(self) -> int:
        return (2 * self.bias + 1) << self.mantissa


SINGLE = Format(23, 127, 1.5 * 2.0**23, 2.0**-126)
DOUBLE = Format(52, 1023, 1.5 * 2.0**52, 2.0**-1022)

INFINITY = math.inf
NAN = math.nan


def format_of(writer: FunctionWriter) -> Format:
    """The format of a writer's dtype."""
    return SINGLE if writer.is32 else DOUBLE
