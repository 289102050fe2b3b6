"""log, log2, log10, log1p: x = 2^k * m with m in [2/3, 4/3), and a polynomial in f = m - 1."""

from __future__ import annotations

from dataclasses import dataclass

from ..value import V
from .constants import INFINITY, format_of
from .exponential import LN2_HIGH
from .registry import FUNCTIONS
from .text import FunctionWriter

ROUNDER_BITS = (0x4B400000, 0x4338000000000000)  # of `Format.rounder`
TWO_THIRDS_BITS = (0x3F2AAAAB, 0x3FE5555555555555)


@dataclass(frozen=True)
class Base:
    """1/log(base) and log(2)/log(base), each in two parts, for (float32, float64)."""

    scale: tuple[float, float]
    scale_low: tuple[float, float]
    two: tuple[float, float]
    two_low: tuple[float, float]


BASE_2 = Base(
    (1.4426950216293335, 1.4426950408889634),
    (1.925963033500011e-08, 2.0355273740931033e-17),
    (1.0, 1.0),
    (0.0, 0.0),
)
BASE_10 = Base(
    (0.4342944920063019, 0.4342944819032518),
    (-1.0103049952192578e-08, 1.098319650216765e-17),
    (0.3010300099849701, 0.3010299956639812),
    (-1.432098883924482e-08, -2.8037281277851704e-18),
)

# log(1 + f) = f - f^2/2 + f^3 * q(f), minimax in relative error on |f| <= 1/3 (2^-27.7)
LOG_SINGLE = (
    -0.5,
    0.3333321511745453,
    -0.24999801814556122,
    0.20010459423065186,
    -0.16680312156677246,
    0.14004908502101898,
    -0.12186501175165176,
    0.13989628851413727,
    -0.12882676720619202,
)
# (2 atanh(s) - 2s) / s^3 in s^2, for |s| <= 1/5 (2^-55.8)
LOG_DOUBLE = (
    0.6666666666667294,
    0.3999999999603942,
    0.2857142941716324,
    0.22222136719185678,
    0.1818642892186417,
    0.1524873354595981,
    0.15379488563457658,
)


@dataclass(frozen=True)
class Split:
    """x = 2^k * (1 + f); `k` is a float."""

    k: V
    f: V


def split(b: FunctionWriter, x: V) -> Split:
    """The exponent and fraction of a positive finite x, subnormal or not."""
    form = format_of(b)
    subnormal = x.lt(form.smallest_normal)
    normal = subnormal.where(x * 2.0**form.mantissa, x)
    bits = b.bits(normal)
    k = (bits - b.pick(TWO_THIRDS_BITS)).ashr(form.mantissa)
    m = b.from_bits(bits - (k << form.mantissa))
    # The integer k becomes a float by adding it to the bits of `rounder`, whose ulp is 1.
    offset = subnormal.where(b.value(form.rounder + form.mantissa), form.rounder)
    k_float = b.from_bits(k + b.pick(ROUNDER_BITS)) - offset
    return Split(k_float, m - 1.0)


def log_beyond_linear(b: FunctionWriter, f: V) -> V:
    """log(1 + f) - f for |f| <= 1/3."""
    if b.is32:
        return f * f * b.polynomial(f, LOG_SINGLE)
    # In s = f / (2 + f): log(1 + f) = 2 atanh(s) = f - s*f + s*R, where s*f = f^2/2 - s*f^2/2.
    s = f / (f + 2.0)
    square = s * s
    half = f * f * 0.5
    return s * b.fma(square, b.polynomial(square, LOG_DOUBLE), half) - half


def with_specials(b: FunctionWriter, x: V, result: V) -> V:
    """`result`, except: log(0) = -inf, log(inf) = inf, and NaN below zero and for NaN."""
    form = format_of(b)
    odd = (b.bits(x) - 1).at_least(form.infinity_bits - 1)
    special = x.equal(0.0).where(-INFINITY, b.fma(x, INFINITY, INFINITY))
    return odd.where(special, result)


def _log_to_base(b: FunctionWriter, x: V, base: Base) -> V:
    parts = split(b, x)
    beyond = b.fma(parts.f, b.pick(base.scale_low), log_beyond_linear(b, parts.f) * b.pick(base.scale))
    fraction = b.fma(parts.f, b.pick(base.scale), b.fma(parts.k, b.pick(base.two_low), beyond))
    return with_specials(b, x, b.fma(parts.k, b.pick(base.two), fraction))


@FUNCTIONS.define("log")
def log(b: FunctionWriter, x: V) -> V:
    parts = split(b, x)
    return with_specials(b, x, sum_of_logs(b, parts))


def sum_of_logs(b: FunctionWriter, parts: Split) -> V:
    """k * log(2) + log(1 + f)."""
    return b.fma(parts.k, b.pick(LN2_HIGH), log_beyond_linear(b, parts.f) + parts.f)


@FUNCTIONS.define("log2")
def log2(b: FunctionWriter, x: V) -> V:
    return _log_to_base(b, x, BASE_2)


@FUNCTIONS.define("log10")
def log10(b: FunctionWriter, x: V) -> V:
    return _log_to_base(b, x, BASE_10)


@FUNCTIONS.define("log1p")
def log1p(b: FunctionWriter, x: V) -> V:
    return b.copysign(log1p_of(b, x), x)


def log1p_of(b: FunctionWriter, x: V, doubled: V | None = None) -> V:
    """log(1 + x); or log(2x) if the i1 `doubled` holds, for x so large that 1 + x is x.

    With 2^k near 1 + x, f = x*2^-k + (2^-k - 1) is rounded once; it is x itself where k is 0.
    """
    form = format_of(b)
    sum_ = x + 1.0
    k = (b.bits(sum_) - b.pick(TWO_THIRDS_BITS)).ashr(form.mantissa)
    scaled = b.from_bits(b.bits(x) - (k << form.mantissa))
    # Four times the power, because 2^-k may be subnormal.
    power = b.from_bits(((2 - k) << form.mantissa) + form.one)
    f = b.fma(power, 0.25, -1.0) + scaled
    k_float = b.from_bits(k + b.pick(ROUNDER_BITS)) - form.rounder
    if doubled is not None:
        k_float = k_float + doubled.where(b.value(1.0), 0.0)
    return with_specials(b, sum_, sum_of_logs(b, Split(k_float, f)))
