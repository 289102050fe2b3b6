"""Floating arithmetic by definition: Python integers and Fractions, one value at a time.

Written from IEEE 754 and the PTX ISA, and sharing nothing with the code it checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

INF, NINF, NAN = "inf", "-inf", "nan"


@dataclass(frozen=True)
class Format:
    bits: int
    mantissa: int
    bias: int
    nan: int
    has_infinity: bool = True

    @property
    def top(self) -> int:
        """The code of infinity, or of the all-ones NaN where there is no infinity."""
        magnitude = (1 << (self.bits - 1)) - 1
        return magnitude - ((1 << self.mantissa) - 1) if self.has_infinity else magnitude


FORMATS = {
    "f64": Format(64, 52, 1023, 0xFFF8000000000000),
    "f32": Format(32, 23, 127, 0x7FFFFFFF),
    "f16": Format(16, 10, 15, 0x7FFF),
    "bf16": Format(16, 7, 127, 0x7FFF),
    "tf32": Format(19, 10, 127, 0x3FFFF),
    "e4m3": Format(8, 3, 7, 0x7F, has_infinity=False),
    "e5m2": Format(8, 2, 15, 0x7F),
    # As f32 and f16, with exponents that never run out: results there tell what is subnormal for .ftz.
    "f32 unbounded": Format(40, 23, 2**15 - 1, 0x7FFFFFFFFF),
    "f16 unbounded": Format(27, 10, 2**15 - 1, 0x3FFFFFF),
}


@dataclass(frozen=True)
class Value:
    """A finite number with the sign of its zero, an infinity or NaN."""

    kind: str  # "finite", INF, NINF, NAN
    number: Fraction = Fraction(0)
    negative: bool = False


def decode(bits: int, name: str) -> Value:
    fmt = FORMATS[name]
    negative = bool(bits >> (fmt.bits - 1))
    magnitude = bits & ((1 << (fmt.bits - 1)) - 1)
    if fmt.has_infinity and magnitude == fmt.top:
        return Value(NINF if negative else INF, negative=negative)
    if magnitude > fmt.top or (not fmt.has_infinity and magnitude == fmt.top):
        return Value(NAN)
    exponent, fraction = magnitude >> fmt.mantissa, magnitude & ((1 << fmt.mantissa) - 1)
    if exponent:
        fraction |= 1 << fmt.mantissa
    number = Fraction(fraction) * Fraction(2) ** (max(exponent, 1) - fmt.bias - fmt.mantissa)
    return Value("finite", -number if negative else number, negative)


def is_tiny(bits: int, name: str) -> bool:
    """Whether a number of "f32 unbounded" or "f16 unbounded" is less than the bounded format's normals."""
    value, bounded = decode(bits, name), FORMATS[name.split()[0]]
    return value.kind == "finite" and abs(value.number) < Fraction(2) ** (1 - bounded.bias)


def round_integer(x: Fraction, mode: str) -> int:
    """A Fraction to an integer: rn, rz, rm, rp, or rna (ties away from zero)."""
    floor = x.numerator // x.denominator
    rest = x - floor
    if mode == "rm" or rest == 0:
        return floor
    if mode == "rp":
        return floor + 1
    if mode == "rz":
        return floor if x >= 0 else floor + 1
    if rest != Fraction(1, 2):
        return floor + (rest > Fraction(1, 2))
    if mode == "rna":
        return floor + (x > 0)
    return floor + (floor & 1)


def encode(x: Fraction, name: str, mode: str = "rn", negative_zero: bool = False, satfinite: bool = False) -> int:
    """A rational number to the bits of a format; `negative_zero` is the sign of an exact zero."""
    fmt = FORMATS[name]
    sign = 1 << (fmt.bits - 1)
    if x == 0:
        return sign if negative_zero else 0
    magnitude = abs(x)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    exponent = max(exponent, 1 - fmt.bias)
    quantum = Fraction(2) ** (exponent - fmt.mantissa)
    units = abs(round_integer(x / quantum, mode))
    # `units` counts quanta; the code of a magnitude is its rank among the format's magnitudes.
    code = units + ((exponent + fmt.bias - 1) << fmt.mantissa)
    if code >= fmt.top:
        towards_zero = mode == "rz" or (mode == "rm" and x > 0) or (mode == "rp" and x < 0)
        code = fmt.top - 1 if satfinite or towards_zero else fmt.top
        if not fmt.has_infinity and code == fmt.top:
            code = fmt.nan
    return code | (sign if x < 0 else 0)


def infinity(name: str, negative: bool) -> int:
    fmt = FORMATS[name]
    return fmt.top | (1 << (fmt.bits - 1) if negative else 0)


def fma(a: Value, b: Value, c: Value, name: str, mode: str) -> int:
    """a*b + c rounded once, to the format `name`."""
    nan = FORMATS[name].nan
    kinds = (a.kind, b.kind, c.kind)
    if NAN in kinds:
        return nan
    product_negative = a.negative != b.negative
    if a.kind != "finite" or b.kind != "finite":
        if (a.kind == "finite" and a.number == 0) or (b.kind == "finite" and b.number == 0):
            return nan
        if c.kind != "finite" and c.negative != product_negative:
            return nan
        return infinity(name, product_negative)
    if c.kind != "finite":
        return infinity(name, c.negative)
    product = a.number * b.number
    total = product + c.number
    if product == 0 and c.number == 0 and product_negative == c.negative:
        return encode(total, name, mode, c.negative)
    return encode(total, name, mode, mode == "rm")


ONE = Value("finite", Fraction(1))


def add(a: Value, b: Value, name: str, mode: str) -> int:
    return fma(a, ONE, b, name, mode)


def negated(a: Value) -> Value:
    kind = {INF: NINF, NINF: INF}.get(a.kind, a.kind)
    return Value(kind, -a.number, not a.negative)


def mul(a: Value, b: Value, name: str, mode: str) -> int:
    # A zero of the product's own sign changes nothing.
    return fma(a, b, Value("finite", Fraction(0), a.negative != b.negative), name, mode)


def div(a: Value, b: Value, name: str, mode: str) -> int:
    nan = FORMATS[name].nan
    if NAN in (a.kind, b.kind):
        return nan
    negative = a.negative != b.negative
    if a.kind != "finite":
        return nan if b.kind != "finite" else infinity(name, negative)
    if b.kind != "finite":
        return encode(Fraction(0), name, mode, negative)
    if b.number == 0:
        return nan if a.number == 0 else infinity(name, negative)
    return encode(a.number / b.number, name, mode, negative)


def sqrt(a: Value, name: str, mode: str) -> int:
    nan = FORMATS[name].nan
    if a.kind == NAN or a.kind == NINF or a.number < 0:
        return nan
    if a.kind == INF:
        return infinity(name, False)
    if a.number == 0:
        return encode(Fraction(0), name, mode, a.negative)
    # The root to far more digits than any format has, its inexactness kept by a last odd digit.
    shift = 2200
    scaled = a.number * (1 << (2 * shift))
    whole = scaled.numerator // scaled.denominator
    root = isqrt(whole)
    inexact = root * root != scaled
    return encode(Fraction(2 * root + inexact, 1 << (shift + 1)), name, mode)
