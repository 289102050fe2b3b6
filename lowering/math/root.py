"""rsqrt, cbrt, hypot: from the correctly rounded square root and division."""

from __future__ import annotations

from .registry import FUNCTIONS
from .text import Value, Writer


@FUNCTIONS.define("rsqrt")
def rsqrt(b: Writer, x: Value) -> Value:
    return 1.0 / b.sqrt(x)
