"""Mathematical functions: each a function of `lowering/math`, or the hardware's with `approx_math`. A row each, see table.py."""

from __future__ import annotations

from typing import Any

from ..values import Array
from .elementwise import Binary
from .table import (
    ApproximableFunction,
    FunctionOfX,
    FunctionOfXY,
    FunctionOfYX,
    applied,
    approximable,
    binary,
    binary_yx,
    unary,
)

__all__ = [
    "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh",
    "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "erf", "erf_inv", "erfc", "exp", "exp2", "exp10", "expm1",
    "float_power", "hypot", "log", "log1p", "log2", "log10", "logaddexp", "logaddexp2", "logistic", "rsqrt",
    "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
]  # fmt: skip

exp: ApproximableFunction = approximable(
    "exp", "e to the power x.\n\n>>> run(kd.exp, [0.0, 1.0])\n[1.        2.7182817]\n", "ex2.approx"
)
exp2: ApproximableFunction = approximable("exp2", "2 to the power x.", "ex2.approx")
exp10: FunctionOfX = unary("exp10", "10 to the power x.")
expm1: FunctionOfX = unary("expm1", "exp(x) - 1, accurate near 0.")
log: FunctionOfX = unary("log", "The natural logarithm.", ptx="lg2.approx")
log2: ApproximableFunction = approximable("log2", "The logarithm to base 2.", "lg2.approx")
log10: FunctionOfX = unary("log10", "The logarithm to base 10.")
log1p: FunctionOfX = unary("log1p", "log(1 + x), accurate near 0.")

sin: ApproximableFunction = approximable("sin", "The sine of an angle in radians.", "sin.approx")
cos: ApproximableFunction = approximable("cos", "The cosine of an angle in radians.", "cos.approx")
tan: FunctionOfX = unary("tan", "The tangent of an angle in radians.")
asin: FunctionOfX = unary("asin", "The angle whose sine is x.")
acos: FunctionOfX = unary("acos", "The angle whose cosine is x.")
atan: FunctionOfX = unary("atan", "The angle whose tangent is x.")
sinh: FunctionOfX = unary("sinh", "The hyperbolic sine.")
cosh: FunctionOfX = unary("cosh", "The hyperbolic cosine.")
tanh: ApproximableFunction = approximable("tanh", "The hyperbolic tangent.", "tanh.approx")
asinh: FunctionOfX = unary("asinh", "The inverse hyperbolic sine.")
acosh: FunctionOfX = unary("acosh", "The inverse hyperbolic cosine.")
atanh: FunctionOfX = unary("atanh", "The inverse hyperbolic tangent.")

cbrt: FunctionOfX = unary("cbrt", "The cube root.")
sqrt: FunctionOfX = unary("sqrt", "The square root, IEEE-rounded.", ptx="sqrt.approx")
rsqrt: ApproximableFunction = approximable("rsqrt", "1 / sqrt(x).", "rsqrt.approx")
erf: FunctionOfX = unary("erf", "The error function.\n\n>>> run(kd.erf, [0.0, 1.0])\n[0.        0.8427008]\n")
erfc: FunctionOfX = unary("erfc", "1 - erf(x), accurate where the result is small.")
erf_inv: FunctionOfX = unary("erf_inv", "The inverse of erf.", math="erfinv")
logistic: FunctionOfX = unary("logistic", "1 / (1 + exp(-x)).\n\n>>> run(kd.logistic, [0.0])\n[0.5]\n")

atan2: FunctionOfYX = binary_yx("atan2", "The angle of the point (y, x), from -pi to pi.")
hypot: FunctionOfXY = binary("hypot", "sqrt(x * x + y * y) without overflow.")
logaddexp: FunctionOfXY = binary("logaddexp", "log(exp(x) + exp(y)).")
logaddexp2: FunctionOfXY = binary("logaddexp2", "log2(2 ** x + 2 ** y).")

arcsin: FunctionOfX = asin
arccos: FunctionOfX = acos
arctan: FunctionOfX = atan
arctan2: FunctionOfYX = atan2
arcsinh: FunctionOfX = asinh
arccosh: FunctionOfX = acosh
arctanh: FunctionOfX = atanh
sigmoid: FunctionOfX = logistic


class Pow(Binary, name="pow"):
    """x to the power y, with C99's special cases. Several PTX instructions."""

    math = "pow"


def float_power(x: Any, y: Any) -> Array:
    """x ** y in floating point, also for ints."""
    return applied(Pow, (x, y), "float_power")
