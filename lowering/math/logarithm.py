"""log, log2, log10, log1p: x = 2^k * m with m in [2/3, 4/3), and a minimax polynomial in f = m - 1."""

from __future__ import annotations

from dataclasses import dataclass

from .constants import INFINITY, format_of
from .exponential import LN2_HIGH
from .registry import FUNCTIONS
from .text import Value, Writer

TWO_THIRDS_BITS = (0x3F2AAAAB, 0x3FE5555555555555)
LOG2_E = (1.4426950216293335, 1.4426950408889634)
LOG10_E = (0.4342944920063019, 0.4342944819032518)
LOG10_2 = (0.3010300099849701, 0.3010299956639812)

# log(1 + f) = f - f^2/2 + f^3 * q(f), minimax in relative error on |f| <= 1/3 (2^-24.7 and ...)
LOG_SINGLE = (
    0.3333326578140259,
    -0.2500424087047577,
    0.20007938146591187,
    -0.16472233831882477,
    0.14041975140571594,
    -0.15122874081134796,
    0.1382199376821518,
)


@dataclass(frozen=True)
class Split:
    """x = 2^k * (1 + f); `k` is a float."""

    k: Value
    f: Value


def split(b: Writer, x: Value) -> Split:
    """The exponent and fraction of a positive finite x, subnormal or not."""
    form = format_of(b)
    subnormal = x.lt(form.smallest_normal)
    normal = subnormal.where(x * 2.0**form.mantissa, x)
    bits = b.bits(normal)
    k = (bits - b.pick(TWO_THIRDS_BITS)) >> form.mantissa
    m = b.from_bits(bits - (k << form.mantissa))
    # The integer k becomes a float by adding it to the bits of a power of two whose ulp is 1.
    anchor = 1.5 * 2.0**form.mantissa
    offset = subnormal.where(b.value(anchor + form.mantissa), anchor)
    k_float = b.from_bits(k + rounder_bits(b)) - offset
    return Split(k_float, m - 1.0)


def rounder_bits(b: Writer) -> int:
    """The bits of `Format.rounder`."""
    return b.pick((0x4B400000, 0x4338000000000000))


def log_of_fraction(b: Writer, f: Value) -> Value:
    """log(1 + f) for |f| <= 1/3."""
    q = b.polynomial(f, LOG_SINGLE)
    return b.fma(f * f, b.fma(f, q, -0.5), f)


def with_specials(b: Writer, x: Value, result: Value) -> Value:
    """`result`, except: log(0) = -inf, log(inf) = inf, and NaN below zero and for NaN."""
    form = format_of(b)
    odd = (b.bits(x) - 1).at_least(form.infinity_bits - 1)
    special = x.equal(0.0).where(-INFINITY, b.fma(x, INFINITY, INFINITY))
    return odd.where(special, result)


@FUNCTIONS.define("log", dtypes=("f32",))
def log(b: Writer, x: Value) -> Value:
    parts = split(b, x)
    return with_specials(b, x, b.fma(parts.k, b.pick(LN2_HIGH), log_of_fraction(b, parts.f)))


@FUNCTIONS.define("log2", dtypes=("f32",))
def log2(b: Writer, x: Value) -> Value:
    parts = split(b, x)
    return with_specials(b, x, b.fma(log_of_fraction(b, parts.f), b.pick(LOG2_E), parts.k))


@FUNCTIONS.define("log10", dtypes=("f32",))
def log10(b: Writer, x: Value) -> Value:
    parts = split(b, x)
    fraction = log_of_fraction(b, parts.f) * b.pick(LOG10_E)
    return with_specials(b, x, b.fma(parts.k, b.pick(LOG10_2), fraction))
