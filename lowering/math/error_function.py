"""erf and erfc."""

from __future__ import annotations

from .exponential import EXP_NARROW, LN2_HIGH, LOG2_E, power_of_two
from .constants import format_of
from .registry import FUNCTIONS
from .text import Value, Writer

# erf(x)/x - 1 in x^2, for |x| <= 0.85 (2^-27.1)
ERF_SMALL = (
    0.12837916612625122,
    -0.37612593173980713,
    0.1128290519118309,
    -0.0268089696764946,
    0.005060471594333649,
    -0.000636421435046941,
)
# -log(1 - erf(x))/x in x, for 0.8 <= x <= 4 (2^-28.1)
ERF_LARGE = (
    1.128533959388733,
    0.6356509327888489,
    0.10535196959972382,
    -0.02294854074716568,
    0.003233446041122079,
    -0.00021625224326271564,
)


@FUNCTIONS.define("erf", dtypes=("f32",))
def erf_single(b: Writer, x: Value) -> Value:
    """An odd polynomial near 0, else 1 - exp(-p(|x|)), whose exponential needs few digits."""
    small = b.fma(x, b.polynomial(x * x, ERF_SMALL), x)
    t = b.intrinsic("minimum", b.abs(x), 4.0)
    exponent = b.polynomial(t, ERF_LARGE) * t
    rounder = format_of(b).rounder
    shifted = b.fma(exponent, -LOG2_E[0], rounder)
    r = b.fma(shifted - rounder, -LN2_HIGH[0], -exponent)
    e = b.polynomial(r, EXP_NARROW[0]) * power_of_two(b, b.bits(shifted))
    large = b.copysign(1.0 - e, x)
    return t.lt(0.84375).where(small, large)
