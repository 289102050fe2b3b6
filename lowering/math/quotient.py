"""Division by a divisor of known range: a few multiply-adds, without the branch of the
general one.
"""

from __future__ import annotations

from ..value import V
from .text import FunctionWriter

# 1/d to within 0.0505 for any normal d: the bits of d subtracted from these, which negates the
# exponent and the fraction at once.
SEED = 0x7EF311C7


def reciprocal_seed(b: FunctionWriter, d: V) -> V:
    """1/d in float32 to within 2^-25.9 of itself, for 2^-125 < d < 2^125."""
    y = b.from_bits(SEED - b.bits(d))
    error = b.fma(-d, y, 1.0)
    y = b.fma(b.fma(error, error, error), y, y)  # 2^-12.9: third order
    return b.fma(b.fma(-d, y, 1.0), y, y)


def quotient(b: FunctionWriter, numerator: V, large: V, small: V) -> V:
    """numerator / (large + small), the sum counted exactly, where large >= small >= 0 or the sum is
    nearly exact.

    Float32 needs 2^-125 < large + small < 2^125. Within 0.6 ulp in float32 and 2 in float64.
    """
    divisor = large + small
    if not b.is32:
        return numerator / divisor
    rest = small - (divisor - large)
    y = reciprocal_seed(b, divisor)
    first = numerator * y
    residual = b.fma(-first, rest, b.fma(-first, divisor, numerator))
    return b.fma(residual, y, first)


def reciprocal(b: FunctionWriter, d: V) -> V:
    """1/d within 0.6 ulp; float32 needs 2^-125 < |d| < 2^125."""
    if not b.is32:
        return 1.0 / d
    y = reciprocal_seed(b, d)
    return b.fma(b.fma(-d, y, 1.0), y, y)
