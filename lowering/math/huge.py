"""Reduction of huge arguments modulo pi/2, with as many bits of 2/pi as it takes (Payne and Hanek),
in integers.

The significand times a window of the bits of 2/pi gives x * 2/pi modulo 4: two bits of quadrant,
then the fraction. The window starts where the bits stop counting multiples of 4, and is three words
long; the third keeps the fraction right where the first ones cancel, as they do for the x nearest
to multiples of pi/2. The words are constants picked by selects, so there is no table to load from.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..value import V
from .text import FunctionWriter

HALF_PI = 1.5707963267948966
HALF_PI_LOW = 6.123233995736766e-17


@dataclass(frozen=True)
class Angle:
    """quadrant * pi/2 + r + rest with |r| <= pi/4 or a little more. `rest` is r's rounding error, `quadrant` an i32."""

    r: V
    rest: V
    quadrant: V


def reduce_huge(b: FunctionWriter, x: V) -> Angle:
    """x modulo 2 pi, for 4 <= |x|. NaN for an infinity or a NaN."""
    angle = _reduce_single(b, x) if b.is32 else _reduce_double(b, x)
    negative = b.bits(x).lt(0)
    # The product makes r a NaN for an infinity or a NaN.
    return Angle(
        b.fma(x, 0.0, negative.where(-angle.r, angle.r)),
        negative.where(-angle.rest, angle.rest),
        negative.where(-angle.quadrant, angle.quadrant),
    )


def _reduce_single(b: FunctionWriter, x: V) -> Angle:
    bits = b.bits(x)
    significand = ((bits << 8) | (1 << 31)).zext("i64")
    exponent = ((bits >> 23) & 0xFF) - 126  # |x| = significand * 2^(exponent - 32)
    high, middle, low = (word.zext("i64") for word in _window(b, two_over_pi_words(6, 32), exponent - 2))
    product = (high * significand << 32) + middle * significand + ((low * significand) >> 32)
    fraction = (product << 2).to("sitofp", "double") * (HALF_PI * 2.0**-64)
    r = fraction.to("fptrunc", "float")
    rest = (fraction - r.to("fpext", "double")).to("fptrunc", "float")
    return Angle(r, rest, _quadrant(b, product))


def _reduce_double(b: FunctionWriter, x: V) -> Angle:
    bits = b.bits(x)
    significand = (bits << 11) | (1 << 63)
    exponent = ((bits >> 52) & 0x7FF) - 1022  # |x| = significand * 2^(exponent - 64)
    high, middle, low = _window(b, two_over_pi_words(18, 64), exponent - 2)
    middle_low = middle * significand
    second = middle_low + _high_product(b, low, significand)
    carry = second.below(middle_low).zext("i64")
    first = high * significand + _high_product(b, middle, significand) + carry
    # The fraction as a signed number of 128 bits, summed from pieces of 32 that are exact.
    top = b.intrinsic("fshl", first, second, b.value(2, "i64"))
    bottom = second << 2
    a = top.ashr(32).to("sitofp", "double")
    c = (top & 0xFFFFFFFF).to("uitofp", "double") * 2.0**-32
    total = a + c
    rest = c - (total - a)
    rest = b.fma((bottom >> 11).to("uitofp", "double"), 2.0**-85, rest)
    below = b.fma(total, HALF_PI_LOW, rest * HALF_PI)
    r = b.fma(total, HALF_PI, below)
    rest = b.fma(total, HALF_PI, -r) + below
    return Angle(r * 2.0**-32, rest * 2.0**-32, _quadrant(b, first))


def _quadrant(b: FunctionWriter, product: V) -> V:
    """The top two bits, plus one if the fraction below them is a half or more."""
    return ((product + (1 << 61)) >> 62).trunc("i32")


def _high_product(b: FunctionWriter, x: V, y: V) -> V:
    """The upper 64 bits of the product of unsigned 64-bit ints (`mul.hi.u64`)."""
    wide = x.zext("i128") * y.zext("i128")
    return (wide >> 64).trunc("i64")


def _window(b: FunctionWriter, words: list[int], offset: V) -> list[V]:
    """Three words of the bits that start `offset` bits into `words`."""
    size = 32 if offset.type == "i32" else 64
    four = _pick(b, words, offset >> size.bit_length() - 1, 4)
    shift = offset & (size - 1)
    return [b.intrinsic("fshl", u, v, shift) for u, v in pairwise(four)]


def _pick(b: FunctionWriter, words: list[int], index: V, count: int) -> list[V]:
    """`words[index : index + count]`, by a select a word for each bit of the index."""
    window = [b.value(word, index.type) for word in words]
    for level in reversed(range((len(words) - count).bit_length())):
        step = 1 << level
        taken = (index & step).differs(0)
        window = [
            taken.where(window[i + step], word) if i + step < len(window) else word for i, word in enumerate(window)
        ][: count + step - 1]
    return window[:count]


def two_over_pi_words(count: int, bits: int) -> list[int]:
    """A zero word and then the leading `count` words of the fraction 2/pi, `bits` each."""
    digits = two_over_pi(bits * count)
    return [0] + [(digits >> (bits * i)) & ((1 << bits) - 1) for i in reversed(range(count))]


def two_over_pi(bits: int) -> int:
    """floor(2/pi * 2^bits), from Machin's formula in integers."""
    unit = 1 << (bits + 64)

    def arctangent_of_inverse(n: int) -> int:
        total, term, k = 0, unit // n, 0
        while term:
            total += (term if k % 2 == 0 else -term) // (2 * k + 1)
            term //= n * n
            k += 1
        return total

    pi = 4 * (4 * arctangent_of_inverse(5) - arctangent_of_inverse(239))
    return (2 * unit << bits) // pi
