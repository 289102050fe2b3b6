"""rsqrt, cbrt and hypot."""

from __future__ import annotations

from ..value import V
from .constants import INFINITY, format_of
from .registry import FUNCTIONS
from .text import FunctionWriter

# The bits of 1/cbrt(x) are near these less a third of the bits of x.
CBRT_SEED = (0x54A1F400, 0x553EE80000000000)
THIRD = (0.3333333432674408, 1.0 / 3)
TWO_NINTHS = (0.2222222238779068, 2.0 / 9)
HYPOT_LARGE = (2.0**60, 2.0**500)  # from here on squares may overflow
HYPOT_SMALL = (2.0**-40, 2.0**-400)  # up to here they may lose digits
HYPOT_SCALE = (2.0**100, 2.0**600)


@FUNCTIONS.define("rsqrt")
def rsqrt(b: FunctionWriter, x: V) -> V:
    return 1.0 / b.sqrt(x)


@FUNCTIONS.define("cbrt")
def cbrt(b: FunctionWriter, x: V) -> V:
    """x * r^2 with r = 1/cbrt(x) from a seed and third-order steps, then a correction by the
    residual.
    """
    form = format_of(b)
    lift = b.pick((24, 54))  # a multiple of 3
    t = b.abs(x)
    subnormal = t.lt(form.smallest_normal)
    t = subnormal.where(t * 2.0**lift, t)
    r = b.from_bits(b.pick(CBRT_SEED) - _third(b, b.bits(t)))
    for _ in range(b.pick((2, 3))):
        error = b.fma(-(t * r), r * r, 1.0)
        series = b.fma(error, b.pick(TWO_NINTHS), b.pick(THIRD))
        r = b.fma(r * error, series, r)
    square = r * r
    y = t * square
    residual = b.fma(-(y * y), y, t)
    y = b.fma(residual, square * b.pick(THIRD), y)
    y = subnormal.where(y * 2.0 ** (-lift // 3), y)
    keep = x.equal(0.0).where(x, b.copysign(y, x))
    return b.abs(x).lt(INFINITY).where(keep, x + x)


def _third(b: FunctionWriter, bits: V) -> V:
    """A third of the bits of a positive float, to within 1."""
    if b.is32:
        wide = bits.zext("i64") * 0x55555556
        return (wide >> 32).trunc("i32")
    upper = (bits >> 32).trunc("i32").zext("i64")
    return (upper * 0x55555556) & -(1 << 32)


@FUNCTIONS.define("hypot", 2)
def hypot(b: FunctionWriter, x: V, y: V) -> V:
    """sqrt(x^2 + y^2) of scaled operands; infinite if either is, even beside a NaN."""
    x, y = b.abs(x), b.abs(y)
    larger = b.intrinsic("maxnum", x, y)
    scale = b.pick(HYPOT_SCALE)
    large = larger.gt(b.pick(HYPOT_LARGE))
    small = larger.lt(b.pick(HYPOT_SMALL))
    down = large.where(1.0 / scale, small.where(b.value(scale), 1.0))
    up = large.where(scale, small.where(b.value(1.0 / scale), 1.0))
    x, y = x * down, y * down
    length = b.sqrt(b.fma(x, x, y * y)) * up
    return larger.equal(INFINITY).where(INFINITY, length)
