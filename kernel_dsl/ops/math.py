"""Mathematical functions: each a function of `lowering/math`, or the hardware's with `approx_math`. A row each, see table.py."""

from __future__ import annotations

from typing import Any

from ..values import Array
from .elementwise import Binary
from .table import applied, approximable, binary, binary_yx, unary

__all__ = [
    "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh",
    "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "erf", "erf_inv", "erfc", "exp", "exp2", "exp10", "expm1",
    "float_power", "hypot", "log", "log1p", "log2", "log10", "logaddexp", "logaddexp2", "logistic", "rsqrt",
    "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
]  # fmt: skip

Exp, exp = approximable(
    "exp", "e to the power x.\n\n>>> run(kd.exp, [0.0, 1.0])\n[1.        2.7182817]\n", "ex2.approx"
)
Exp2, exp2 = approximable("exp2", "2 to the power x.", "ex2.approx")
Exp10, exp10 = unary("exp10", "10 to the power x.")
Expm1, expm1 = unary("expm1", "exp(x) - 1, exact near 0.")
Log, log = unary("log", "The natural logarithm.", ptx="lg2.approx")
Log2, log2 = approximable("log2", "The logarithm to base 2.", "lg2.approx")
Log10, log10 = unary("log10", "The logarithm to base 10.")
Log1p, log1p = unary("log1p", "log(1 + x), exact near 0.")

Sin, sin = approximable("sin", "The sine of an angle in radians.", "sin.approx")
Cos, cos = approximable("cos", "The cosine of an angle in radians.", "cos.approx")
Tan, tan = unary("tan", "The tangent of an angle in radians.")
Asin, asin = unary("asin", "The angle whose sine is x.")
Acos, acos = unary("acos", "The angle whose cosine is x.")
Atan, atan = unary("atan", "The angle whose tangent is x.")
Sinh, sinh = unary("sinh", "The hyperbolic sine.")
Cosh, cosh = unary("cosh", "The hyperbolic cosine.")
Tanh, tanh = approximable("tanh", "The hyperbolic tangent.", "tanh.approx")
Asinh, asinh = unary("asinh", "The inverse hyperbolic sine.")
Acosh, acosh = unary("acosh", "The inverse hyperbolic cosine.")
Atanh, atanh = unary("atanh", "The inverse hyperbolic tangent.")

Cbrt, cbrt = unary("cbrt", "The cube root.")
Sqrt, sqrt = unary("sqrt", "The square root, IEEE-rounded.", ptx="sqrt.approx")
Rsqrt, rsqrt = approximable("rsqrt", "1 / sqrt(x).", "rsqrt.approx")
Erf, erf = unary("erf", "The error function.\n\n>>> run(kd.erf, [0.0, 1.0])\n[0.        0.8427008]\n")
Erfc, erfc = unary("erfc", "1 - erf(x), exact where that is small.")
ErfInv, erf_inv = unary("erf_inv", "The inverse of erf.", math="erfinv")
Logistic, logistic = unary("logistic", "1 / (1 + exp(-x)).\n\n>>> run(kd.logistic, [0.0])\n[0.5]\n")

Atan2, atan2 = binary_yx("atan2", "The angle of the point (y, x), from -pi to pi.")
Hypot, hypot = binary("hypot", "sqrt(x * x + y * y) without overflow.")
Logaddexp, logaddexp = binary("logaddexp", "log(exp(x) + exp(y)).")
Logaddexp2, logaddexp2 = binary("logaddexp2", "log2(2 ** x + 2 ** y).")

arcsin, arccos, arctan, arctan2 = asin, acos, atan, atan2
arcsinh, arccosh, arctanh = asinh, acosh, atanh
sigmoid = logistic


class Pow(Binary, name="pow"):
    """x to the power y, with C99's special cases. Several PTX instructions."""

    math = "pow"


def float_power(x: Any, y: Any) -> Array:
    """x ** y in floating point, also for ints."""
    return applied(Pow, (x, y), "float_power")
