"""sinh, cosh, tanh and their inverses."""

from __future__ import annotations

from .exponential import expm1_polynomial, power_of_two, reduce_by_log2
from .quotient import quotient
from .registry import FUNCTIONS
from .text import Value, Writer


@FUNCTIONS.define("tanh")
def tanh(b: Writer, x: Value) -> Value:
    """m / (m + 2) with m = expm1(2|x|) = 2^n * (exp(r) - 1) + (2^n - 1)."""
    magnitude = b.intrinsic("minimum", b.abs(x), b.pick((10.0, 20.0)))
    reduced = reduce_by_log2(b, magnitude + magnitude)
    power = power_of_two(b, reduced.n_bits)
    m = b.fma(expm1_polynomial(b, reduced.r), power, power - 1.0)
    return b.copysign(quotient(b, m, b.value(2.0), m), x)
