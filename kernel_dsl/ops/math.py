"""Mathematical functions: each a function of `lowering/math`, or the hardware's with `approx_math`."""

from __future__ import annotations

from typing import Any

from ..promote import true_division
from ..values import Array
from .arith import elementwise
from .elementwise import Unary, operands_of

__all__ = ["exp"]


class Exp(Unary, name="exp"):
    """e to the x. `ex2.approx` with approx_math."""

    math = "exp"


def _function(cls: Any, x: Any, op: str) -> Array:
    dtype = operands_of((x,), op)[1]
    return elementwise(cls, (x,), op, true_division(dtype))


def exp(x: Any) -> Array:
    """e to the power x. Ints give float32, 64-bit ints float64."""
    return _function(Exp, x, "exp")
