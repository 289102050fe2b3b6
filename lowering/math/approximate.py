"""The hardware's approximations in float32, for `approx_math=True`: a few instructions each,
subnormals flushed to 0.

Errors are the PTX ISA's (section 'Floating Point Instructions'): 2 ulp for ex2 of a small argument
and for lg2 away from 1, 1 ulp for rcp and rsqrt, 2^-20.5 absolute for sin and cos within [-pi, pi],
2^-11 relative for tanh. Other machines may give other bits.
"""

from __future__ import annotations

from ..value import V
from .constants import NAN
from .exponential import LOG2_10, LOG2_E
from .logarithm import BASE_10
from .registry import APPROX
from .text import FunctionWriter

LN2 = 0.6931471824645996


def _hardware(b: FunctionWriter, name: str, *args: V) -> V:
    operands = ", ".join(f"float {a}" for a in args)
    return b.v(f"call float @llvm.nvvm.{name}({operands})", "float")


def _ex2(b: FunctionWriter, x: V) -> V:
    return _hardware(b, "ex2.approx.ftz.f32", x)


def _lg2(b: FunctionWriter, x: V) -> V:
    return _hardware(b, "lg2.approx.ftz.f", x)


def _rcp(b: FunctionWriter, x: V) -> V:
    return _hardware(b, "rcp.approx.ftz.f", x)


@APPROX.define("exp")
def exp(b: FunctionWriter, x: V) -> V:
    return _ex2(b, x * LOG2_E[0])


@APPROX.define("exp2")
def exp2(b: FunctionWriter, x: V) -> V:
    return _ex2(b, x)


@APPROX.define("exp10")
def exp10(b: FunctionWriter, x: V) -> V:
    return _ex2(b, x * LOG2_10[0])


@APPROX.define("log")
def log(b: FunctionWriter, x: V) -> V:
    return _lg2(b, x) * LN2


@APPROX.define("log2")
def log2(b: FunctionWriter, x: V) -> V:
    return _lg2(b, x)


@APPROX.define("log10")
def log10(b: FunctionWriter, x: V) -> V:
    return _lg2(b, x) * BASE_10.two[0]


@APPROX.define("pow", 2)
def pow_(b: FunctionWriter, x: V, y: V) -> V:
    """2^(y * lg2|x|), with the sign of an odd power and NaN for a negative base to a broken one; 1
    for y = 0.
    """
    magnitude = _ex2(b, y * _lg2(b, b.abs(x)))
    half = y * 0.5
    odd = b.intrinsic("trunc", half).differs(half)
    whole = b.intrinsic("trunc", y).equal(y)
    of_negative = whole.where(odd.where(-magnitude, magnitude), NAN)
    result = x.lt(0.0).where(of_negative, magnitude)
    return y.equal(0.0).where(1.0, result)


@APPROX.define("logistic")
def logistic(b: FunctionWriter, x: V) -> V:
    return _rcp(b, _ex2(b, x * -LOG2_E[0]) + 1.0)


@APPROX.define("tanh")
def tanh(b: FunctionWriter, x: V) -> V:
    return b.v(f"call afn float @llvm.tanh.f32(float {x})", "float")


@APPROX.define("sin")
def sin(b: FunctionWriter, x: V) -> V:
    return _hardware(b, "sin.approx.ftz.f", x)


@APPROX.define("cos")
def cos(b: FunctionWriter, x: V) -> V:
    return _hardware(b, "cos.approx.ftz.f", x)


@APPROX.define("tan")
def tan(b: FunctionWriter, x: V) -> V:
    return _hardware(b, "div.approx.ftz.f", sin(b, x), cos(b, x))


@APPROX.define("sqrt")
def sqrt(b: FunctionWriter, x: V) -> V:
    return _hardware(b, "sqrt.approx.ftz.f", x)


@APPROX.define("rsqrt")
def rsqrt(b: FunctionWriter, x: V) -> V:
    return _hardware(b, "rsqrt.approx.ftz.f", x)


@APPROX.define("rcp")
def rcp(b: FunctionWriter, x: V) -> V:
    return _rcp(b, x)


@APPROX.define("div", 2)
def div(b: FunctionWriter, x: V, y: V) -> V:
    return _hardware(b, "div.approx.ftz.f", x, y)
