"""sin, cos, tan: x = n * pi/2 + r, in three steps for moderate x and in integers for huge x."""

from __future__ import annotations

from .constants import format_of
from .registry import FUNCTIONS
from .text import Value, Writer

TWO_OVER_PI = (0.6366197466850281, 0.6366197723675814)
# Rounded down, so that all parts have one sign: the reduction then keeps the sign of a zero.
HALF_PI = (
    (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15),
    (1.5707963267948966, 6.123233995736765e-17, 1.0828566739219139e-32),
)
# Where the three-step reduction ends: n times the error of HALF_PI must stay far below the smallest r.
MODERATE = (105615.0, 1e5)

# sin(r) = r + r^3 * q(r^2) and cos(r) = 1 - r^2/2 + r^4 * q(r^2), minimax on |r| <= 0.786
SIN = (
    (-0.16666655242443085, 0.008332190103828907, -0.00019518405315466225),
    (
        -0.16666666666666632,
        0.008333333333322455,
        -0.00019841269829813413,
        2.7557313687570683e-06,
        -2.5050756713736245e-08,
        1.5896681799703614e-10,
    ),
)
COS = (
    (-0.5, 0.04166664555668831, -0.00138873013202101, 2.4430670237052254e-05),
    (
        -0.5,
        0.0416666666666666,
        -0.0013888888888870278,
        2.48015872853407e-05,
        -2.7557312811871123e-07,
        2.087548090869881e-09,
        -1.1345873660983316e-11,
    ),
)


def sine_of_quadrant(b: Writer, r: Value, quadrant: Value) -> Value:
    """sin(r + quadrant * pi/2) for |r| <= pi/4; -0 gives -0."""
    square = r * r
    # The + 0 turns the product's -0 into 0, so that the last step keeps the sign of r = -0.
    cube_over_square = b.polynomial(square, b.pick(SIN))
    sine = b.fma(cube_over_square, b.fma(square, r, 0.0), r)
    cosine = b.fma(square, b.polynomial(square, b.pick(COS)), 1.0)
    value = (quadrant & 1).equal(0).where(sine, cosine)
    form = format_of(b)
    sign = (quadrant & 2) << (form.mantissa + form.bias.bit_length())
    return b.from_bits(b.bits(value) ^ sign)


def reduce_moderate(b: Writer, x: Value) -> tuple[Value, Value]:
    """(r, n): x = n * pi/2 + r, with n in the low bits of an int."""
    rounder = format_of(b).rounder
    shifted = b.fma(x, b.pick(TWO_OVER_PI), rounder)
    n = shifted - rounder
    r = x
    for part in b.pick(HALF_PI):
        r = b.fma(n, -part, r)
    return r, b.bits(shifted)


def _sine_of_shifted(b: Writer, x: Value, shift: int) -> Value:
    r, n = reduce_moderate(b, x)
    return sine_of_quadrant(b, r, n + shift if shift else n)


@FUNCTIONS.define("sine_of_huge", parameters=("", "i32"), dtypes=("f32",), out_of_line=True)
def sine_of_huge_single(b: Writer, x: Value, shift: Value) -> Value:
    """sin(x + shift * pi/2) for 2^16 < |x|: the product with enough bits of 2/pi, modulo 4 (Payne and Hanek)."""
    bits = b.bits(x)
    significand = ((bits << 8) | -(1 << 31))
    exponent = (bits.lshr(23) & 0xFF) - 126  # |x| = significand * 2^(exponent - 32)
    offset = exponent - 2  # of the first bit that counts, in 32 zeros followed by the bits of 2/pi
    words = _words_at(b, two_over_pi_words(7, 32), offset.lshr(5), 4)
    shift_bits = offset & 31
    high, middle, low = (
        b.emit(f"call i32 @llvm.fshl.i32(i32 {u.name}, i32 {v.name}, i32 {shift_bits.name})", "i32")
        for u, v in zip(words, words[1:], strict=False)
    )
    s = b.convert("zext", significand, "i64")
    wide = [b.convert("zext", w, "i64") for w in (high, middle, low)]
    # The top 2 bits are the quadrant, the other 62 the fraction of it.
    product = ((wide[0] * s) << 32) + wide[1] * s + (wide[2] * s).lshr(32)
    quadrant = b.convert("trunc", (product + (1 << 61)).lshr(62), "i32")
    fraction = b.convert("sitofp", product << 2, "double")
    r = b.convert("fptrunc", fraction * (1.5707963267948966 * 2.0**-64), "float")
    negative = bits.lt(0)
    quadrant = negative.where(0 - quadrant, quadrant)
    r = negative.where(-r, r)
    # An infinity or a NaN makes r a NaN.
    return sine_of_quadrant(b, b.fma(x, 0.0, r), quadrant + shift)


def two_over_pi_words(count: int, bits: int) -> list[int]:
    """One zero word and then the leading bits of 2/pi, `bits` each."""
    digits = two_over_pi(bits * (count - 1))
    return [0] + [(digits >> (bits * i)) & ((1 << bits) - 1) for i in reversed(range(count - 1))]


def two_over_pi(bits: int) -> int:
    """floor(2/pi * 2^bits), from Machin's formula in integers."""
    unit = 1 << (bits + 64)

    def arctan_inverse(n: int) -> int:
        total, term, k = 0, unit // n, 0
        while term:
            total += (term if k % 2 == 0 else -term) // (2 * k + 1)
            term //= n * n
            k += 1
        return total

    pi = 4 * (4 * arctan_inverse(5) - arctan_inverse(239))
    return (2 * unit << bits) // pi


def _words_at(b: Writer, words: list[int], index: Value, count: int) -> list[Value]:
    """`count` successive words from a variable index, by selects: no table in memory to load from."""
    window = [b.value(w, index.type) for w in words]
    levels = (len(words) - count).bit_length()
    for level in reversed(range(levels)):
        bit = (index & (1 << level)).equal(0)
        step = 1 << level
        window = [
            bit.where(w, window[i + step]) if i + step < len(window) else w
            for i, w in enumerate(window)
        ]
    return window[:count]


def _sine(b: Writer, x: Value, shift: int) -> Value:
    huge = b.abs(x).gt(b.pick(MODERATE))
    moderate = _sine_of_shifted(b, x, shift)
    return b.rarely(huge, moderate, lambda: b.call("sine_of_huge", x, b.value(shift, "i32")))


@FUNCTIONS.define("sin", dtypes=("f32",))
def sin(b: Writer, x: Value) -> Value:
    return _sine(b, x, 0)


@FUNCTIONS.define("cos", dtypes=("f32",))
def cos(b: Writer, x: Value) -> Value:
    return _sine(b, x, 1)
