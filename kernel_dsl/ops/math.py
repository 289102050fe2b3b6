"""Mathematical functions: each a function of `lowering/math`, or the hardware's with `approx_math`."""

from __future__ import annotations

from typing import Any

from ..ir import option
from ..promote import true_division
from ..values import Array
from .arith import elementwise
from .elementwise import Binary, Unary, operands_of

__all__ = [
    "acos",
    "acosh",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "cos",
    "cosh",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "exp10",
    "expm1",
    "float_power",
    "hypot",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "logistic",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
]


class Approximable(Unary):
    """A function that the hardware approximates in float32. `approx`: whether it does; None: as `approx_math` says."""

    approx: bool | None = option(None)


class Exp(Approximable, name="exp"):
    """e to the power x. PTX `ex2.approx` where approximate, else several instructions."""

    math = "exp"


class Exp2(Approximable, name="exp2"):
    """2 to the power x. PTX `ex2.approx` where approximate, else several instructions."""

    math = "exp2"


class Exp10(Unary, name="exp10"):
    """10 to the power x. Several PTX instructions."""

    math = "exp10"


class Expm1(Unary, name="expm1"):
    """exp(x) - 1, exact near 0. Several PTX instructions."""

    math = "expm1"


class Log(Unary, name="log"):
    """The natural logarithm. PTX `lg2.approx` where approximate, else several instructions."""

    math = "log"


class Log2(Approximable, name="log2"):
    """The logarithm to base 2. PTX `lg2.approx` where approximate, else several instructions."""

    math = "log2"


class Log10(Unary, name="log10"):
    """The logarithm to base 10. Several PTX instructions."""

    math = "log10"


class Log1p(Unary, name="log1p"):
    """log(1 + x), exact near 0. Several PTX instructions."""

    math = "log1p"


class Sin(Approximable, name="sin"):
    """The sine of an angle in radians. PTX `sin.approx` where approximate, else several instructions."""

    math = "sin"


class Cos(Approximable, name="cos"):
    """The cosine of an angle in radians. PTX `cos.approx` where approximate, else several instructions."""

    math = "cos"


class Tan(Unary, name="tan"):
    """The tangent of an angle in radians. Several PTX instructions."""

    math = "tan"


class Asin(Unary, name="asin"):
    """The angle whose sine is x. Several PTX instructions."""

    math = "asin"


class Acos(Unary, name="acos"):
    """The angle whose cosine is x. Several PTX instructions."""

    math = "acos"


class Atan(Unary, name="atan"):
    """The angle whose tangent is x. Several PTX instructions."""

    math = "atan"


class Sinh(Unary, name="sinh"):
    """The hyperbolic sine. Several PTX instructions."""

    math = "sinh"


class Cosh(Unary, name="cosh"):
    """The hyperbolic cosine. Several PTX instructions."""

    math = "cosh"


class Tanh(Approximable, name="tanh"):
    """The hyperbolic tangent. PTX `tanh.approx` where approximate, else several instructions."""

    math = "tanh"


class Asinh(Unary, name="asinh"):
    """The inverse hyperbolic sine. Several PTX instructions."""

    math = "asinh"


class Acosh(Unary, name="acosh"):
    """The inverse hyperbolic cosine. Several PTX instructions."""

    math = "acosh"


class Atanh(Unary, name="atanh"):
    """The inverse hyperbolic tangent. Several PTX instructions."""

    math = "atanh"


class Cbrt(Unary, name="cbrt"):
    """The cube root. Several PTX instructions."""

    math = "cbrt"


class Sqrt(Unary, name="sqrt"):
    """The square root, IEEE-rounded. PTX `sqrt.approx` where approximate, else several instructions."""

    math = "sqrt"


class Rsqrt(Approximable, name="rsqrt"):
    """1 / sqrt(x). PTX `rsqrt.approx` where approximate, else several instructions."""

    math = "rsqrt"


class Erf(Unary, name="erf"):
    """The error function. Several PTX instructions."""

    math = "erf"


class Erfc(Unary, name="erfc"):
    """1 - erf(x), exact where that is small. Several PTX instructions."""

    math = "erfc"


class ErfInv(Unary, name="erf_inv"):
    """The inverse of erf. Several PTX instructions."""

    math = "erfinv"


class Logistic(Unary, name="logistic"):
    """1 / (1 + exp(-x)). Several PTX instructions."""

    math = "logistic"


class Atan2(Binary, name="atan2"):
    """The angle of the point (y, x). Several PTX instructions."""

    math = "atan2"


class Hypot(Binary, name="hypot"):
    """sqrt(x * x + y * y) without overflow. Several PTX instructions."""

    math = "hypot"


class Pow(Binary, name="pow"):
    """x to the power y, with C99's special cases. Several PTX instructions."""

    math = "pow"


class Logaddexp(Binary, name="logaddexp"):
    """log(exp(x) + exp(y)). Several PTX instructions."""

    math = "logaddexp"


class Logaddexp2(Binary, name="logaddexp2"):
    """log2(2 ** x + 2 ** y). Several PTX instructions."""

    math = "logaddexp2"


def _function(cls: Any, args: tuple[Any, ...], op: str, **options: Any) -> Array:
    """Ints give float32, 64-bit ints float64."""
    dtype = operands_of(args, op)[1]
    return elementwise(cls, args, op, true_division(dtype), options=options)


def exp(x: Any, *, approx: bool | None = None) -> Array:
    """e to the power x. `approx`: by `ex2.approx` in float32, or not, whatever `approx_math` says.

    >>> run(kd.exp, [0.0, 1.0])
    [1.        2.7182817]
    """
    return _function(Exp, (x,), "exp", approx=approx)


def exp2(x: Any, *, approx: bool | None = None) -> Array:
    """2 to the power x. `approx`: by `ex2.approx` in float32, or not, whatever `approx_math` says."""
    return _function(Exp2, (x,), "exp2", approx=approx)


def exp10(x: Any) -> Array:
    """10 to the power x."""
    return _function(Exp10, (x,), "exp10")


def expm1(x: Any) -> Array:
    """exp(x) - 1, exact near 0."""
    return _function(Expm1, (x,), "expm1")


def log(x: Any) -> Array:
    """The natural logarithm."""
    return _function(Log, (x,), "log")


def log2(x: Any, *, approx: bool | None = None) -> Array:
    """The logarithm to base 2. `approx`: by `lg2.approx` in float32, or not, whatever `approx_math` says."""
    return _function(Log2, (x,), "log2", approx=approx)


def log10(x: Any) -> Array:
    """The logarithm to base 10."""
    return _function(Log10, (x,), "log10")


def log1p(x: Any) -> Array:
    """log(1 + x), exact near 0."""
    return _function(Log1p, (x,), "log1p")


def sin(x: Any, *, approx: bool | None = None) -> Array:
    """The sine of an angle in radians. `approx`: by `sin.approx` in float32, or not, whatever `approx_math` says."""
    return _function(Sin, (x,), "sin", approx=approx)


def cos(x: Any, *, approx: bool | None = None) -> Array:
    """The cosine of an angle in radians. `approx`: by `cos.approx` in float32, or not, whatever `approx_math` says."""
    return _function(Cos, (x,), "cos", approx=approx)


def tan(x: Any) -> Array:
    """The tangent of an angle in radians."""
    return _function(Tan, (x,), "tan")


def asin(x: Any) -> Array:
    """The angle whose sine is x."""
    return _function(Asin, (x,), "asin")


def acos(x: Any) -> Array:
    """The angle whose cosine is x."""
    return _function(Acos, (x,), "acos")


def atan(x: Any) -> Array:
    """The angle whose tangent is x."""
    return _function(Atan, (x,), "atan")


def sinh(x: Any) -> Array:
    """The hyperbolic sine."""
    return _function(Sinh, (x,), "sinh")


def cosh(x: Any) -> Array:
    """The hyperbolic cosine."""
    return _function(Cosh, (x,), "cosh")


def tanh(x: Any, *, approx: bool | None = None) -> Array:
    """The hyperbolic tangent. `approx`: by `tanh.approx` in float32, or not, whatever `approx_math` says."""
    return _function(Tanh, (x,), "tanh", approx=approx)


def asinh(x: Any) -> Array:
    """The inverse hyperbolic sine."""
    return _function(Asinh, (x,), "asinh")


def acosh(x: Any) -> Array:
    """The inverse hyperbolic cosine."""
    return _function(Acosh, (x,), "acosh")


def atanh(x: Any) -> Array:
    """The inverse hyperbolic tangent."""
    return _function(Atanh, (x,), "atanh")


def cbrt(x: Any) -> Array:
    """The cube root."""
    return _function(Cbrt, (x,), "cbrt")


def sqrt(x: Any) -> Array:
    """The square root, IEEE-rounded."""
    return _function(Sqrt, (x,), "sqrt")


def rsqrt(x: Any, *, approx: bool | None = None) -> Array:
    """1 / sqrt(x). `approx`: by `rsqrt.approx` in float32, or not, whatever `approx_math` says."""
    return _function(Rsqrt, (x,), "rsqrt", approx=approx)


def erf(x: Any) -> Array:
    """The error function.

    >>> run(kd.erf, [0.0, 1.0])
    [0.        0.8427008]
    """
    return _function(Erf, (x,), "erf")


def erfc(x: Any) -> Array:
    """1 - erf(x), exact where that is small."""
    return _function(Erfc, (x,), "erfc")


def erf_inv(x: Any) -> Array:
    """The inverse of erf."""
    return _function(ErfInv, (x,), "erf_inv")


def logistic(x: Any) -> Array:
    """1 / (1 + exp(-x)).

    >>> run(kd.logistic, [0.0])
    [0.5]
    """
    return _function(Logistic, (x,), "logistic")


arcsin = asin

arccos = acos

arctan = atan

arcsinh = asinh

arccosh = acosh

arctanh = atanh

sigmoid = logistic


def atan2(y: Any, x: Any) -> Array:
    """The angle of the point (y, x), from -pi to pi."""
    return _function(Atan2, (y, x), "atan2")


arctan2 = atan2


def hypot(x: Any, y: Any) -> Array:
    """sqrt(x * x + y * y) without overflow."""
    return _function(Hypot, (x, y), "hypot")


def logaddexp(x: Any, y: Any) -> Array:
    """log(exp(x) + exp(y))."""
    return _function(Logaddexp, (x, y), "logaddexp")


def logaddexp2(x: Any, y: Any) -> Array:
    """log2(2 ** x + 2 ** y)."""
    return _function(Logaddexp2, (x, y), "logaddexp2")


def float_power(x: Any, y: Any) -> Array:
    """x ** y in floating point, also for ints."""
    return _function(Pow, (x, y), "float_power")
