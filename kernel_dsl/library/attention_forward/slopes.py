"""The derivative of an elementwise function of scores, from its traced ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import called
from kernel_dsl.errors import BadCallArgument
from kernel_dsl.ir import Op, Value, array_type
from kernel_dsl.ops import arith, broadcast, cast, compare, numeric
from kernel_dsl.ops import math as functions
from kernel_dsl.trace import current

from .captured import SCORE_MOD

SAID = ("attention_backward", "score_mod", SCORE_MOD, "pass its derivative as score_mod_grad")
_BOTH = 2 / math.sqrt(math.pi)

# for each op: its derivative by the operand, as a function of operand and result
UNARY: dict[type[Op], Callable[[Any, Any], Any]] = {
    arith.Neg: lambda x, y: -1.0,
    arith.Abs: lambda x, y: kd.where(x < 0, -1.0, 1.0),
    functions.exp.op: lambda x, y: y,
    functions.exp2.op: lambda x, y: y * math.log(2),
    functions.exp10.op: lambda x, y: y * math.log(10),
    functions.expm1.op: lambda x, y: y + 1,
    functions.log.op: lambda x, y: 1 / x,
    functions.log2.op: lambda x, y: 1 / (x * math.log(2)),
    functions.log10.op: lambda x, y: 1 / (x * math.log(10)),
    functions.log1p.op: lambda x, y: 1 / (x + 1),
    functions.sin.op: lambda x, y: kd.cos(x),
    functions.cos.op: lambda x, y: -kd.sin(x),
    functions.tan.op: lambda x, y: 1 + y * y,
    functions.atan.op: lambda x, y: 1 / (1 + x * x),
    functions.sinh.op: lambda x, y: kd.cosh(x),
    functions.cosh.op: lambda x, y: kd.sinh(x),
    functions.tanh.op: lambda x, y: 1 - y * y,
    functions.sqrt.op: lambda x, y: 0.5 / y,
    functions.rsqrt.op: lambda x, y: -0.5 * y / x,
    functions.logistic.op: lambda x, y: y * (1 - y),
    functions.erf.op: lambda x, y: _BOTH * kd.exp(-(x * x)),
    functions.erfc.op: lambda x, y: -_BOTH * kd.exp(-(x * x)),
    functions.erf_inv.op: lambda x, y: kd.exp(y * y) / _BOTH,
    functions.asin.op: lambda x, y: kd.rsqrt(1 - x * x),
    functions.acos.op: lambda x, y: -kd.rsqrt(1 - x * x),
    functions.asinh.op: lambda x, y: kd.rsqrt(1 + x * x),
    functions.acosh.op: lambda x, y: kd.rsqrt((x - 1) * (x + 1)),
    functions.atanh.op: lambda x, y: 1 / ((1 - x) * (1 + x)),
    functions.cbrt.op: lambda x, y: 1 / (3 * y * y),
}
# for each op of two operands: its derivatives by them, as functions of both and the result
BINARY: dict[type[Op], tuple[Callable[[Any, Any, Any], Any], Callable[[Any, Any, Any], Any]]] = {
    functions.Pow: (
        lambda x, y, z: kd.where(y == 0, 0.0, y * kd.power(x, y - 1)),
        lambda x, y, z: kd.where(z == 0, 0.0, z * kd.log(x)),
    ),
    functions.hypot.op: (lambda x, y, z: x / z, lambda x, y, z: y / z),
    functions.logaddexp.op: (lambda x, y, z: kd.exp(x - z), lambda x, y, z: kd.exp(y - z)),
    functions.logaddexp2.op: (lambda x, y, z: kd.exp2(x - z), lambda x, y, z: kd.exp2(y - z)),
    functions.atan2.op: (lambda y, x, z: x / (x * x + y * y), lambda y, x, z: -y / (x * x + y * y)),
    numeric.CopySign: (lambda x, y, z: kd.where(x < 0, -1.0, 1.0) * kd.copysign(1.0, y), lambda x, y, z: 0.0),
    arith.Fmod: (lambda x, y, z: 1.0, lambda x, y, z: -kd.trunc(x / y)),
    arith.Remainder: (lambda x, y, z: 1.0, lambda x, y, z: -kd.floor(x / y)),
}
PASSED = (broadcast.Broadcast, broadcast.ConvertLayout, cast.Cast)
STEPS = (
    compare.Compare,
    arith.FloorDivide,
    numeric.floor.op,
    numeric.ceil.op,
    numeric.trunc.op,
    numeric.rint.op,
)  # ops whose derivative is 0


def with_derivative(
    function: Callable[..., Any], x: Any, place: tuple[Any, ...], said: tuple[str, str, str, str] = SAID
) -> tuple[Any, Any]:
    """(function(x, *place), its derivative by x), the latter a value or a number.

    Raises `BadCallArgument` for an op without a rule here. `said`: texts for the error: the kernel, the function's
    name, its form, and the help.
    """
    kernel, word, form, hint = said
    ops = current().region.ops
    start = len(ops)
    made = called(function, (x, *place), kernel, word, form)
    slopes: dict[Value, Any] = {x: 1.0}
    for op in ops[start:]:
        if op.region_list() or any(value in slopes for value in op.values()):
            slope = None if op.region_list() else _slope(op, slopes)
            if slope is None and not isinstance(op, STEPS):
                what = f"the {word} uses `{op.op_name}`, which has no derivative here"
                raise BadCallArgument(kernel=kernel, what=what, hint=hint)
            if slope is not None:
                slopes[op.results[0]] = slope
    return made, slopes.get(made, 0.0) if isinstance(made, Value) else 0.0


def _slope(op: Any, slopes: dict[Value, Any]) -> Any:
    """The derivative of an op's result; None if there is no rule."""
    rule = UNARY.get(type(op))
    if rule is not None:
        return _times(rule(op.x, op.results[0]), slopes[op.x])
    both = BINARY.get(type(op))
    if both is not None:
        found: Any = None
        for value, by in zip((op.x, op.y), both, strict=True):
            if value in slopes:
                found = _sum(found, _times(by(op.x, op.y, op.results[0]), slopes[value]))
        return found
    if isinstance(op, PASSED):
        slope, dtype = slopes[op.x], array_type(op.results[0]).dtype
        return None if not dtype.is_float else slope if isinstance(slope, float) else slope.astype(dtype)
    if isinstance(op, arith.Select):
        x, y = (slopes.get(value, 0.0) for value in (op.x, op.y))
        return kd.where(op.predicate, x, y)
    if isinstance(op, arith.Fma):
        return _sum(_product(op.x, op.y, slopes), slopes.get(op.z))
    if isinstance(op, (arith.Add, arith.Sub)):
        y = slopes.get(op.y)
        return _sum(slopes.get(op.x), y if y is None or isinstance(op, arith.Add) else -y)
    if isinstance(op, arith.Mul):
        return _product(op.x, op.y, slopes)
    if isinstance(op, arith.Div):
        x, y = slopes.get(op.x), slopes.get(op.y)
        by_y = None if y is None else -(_times(op.results[0], y) / op.y)
        return _sum(None if x is None else x / op.y, by_y)
    if isinstance(op, (compare.Max, compare.Min, compare.FMax, compare.FMin)):
        larger = isinstance(op, (compare.Max, compare.FMax))
        x: Any = op.x
        y: Any = op.y
        return kd.where(x > y if larger else x < y, slopes.get(x, 0.0), slopes.get(y, 0.0))
    return None


def _times(a: Any, b: Any) -> Any:
    return a if isinstance(b, float) and b == 1.0 else a * b


def _sum(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


def _product(x: Any, y: Any, slopes: dict[Value, Any]) -> Any:
    a, b = slopes.get(x), slopes.get(y)
    return _sum(None if a is None else _times(y, a), None if b is None else _times(x, b))
