"""Comparison and selection, element by element."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, ClassVar

from .. import dtypes as dt
from .. import facts
from ..arguments import static_int
from ..errors import BadArgumentType
from ..trace import is_tracing, traced
from ..values import Array
from ..variables import Expression, Symbol
from .arith import IsNan, Select, bitwise_or, elementwise
from .broadcast import together
from .cast import as_value, astype
from .elementwise import Binary, Compare, Interval, common_dtype, operands_of

__all__ = [
    "equal",
    "fmax",
    "fmin",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "maximum",
    "minimum",
    "not_equal",
    "select",
    "where",
]


class Equal(Compare, name="equal"):
    """x == y, false for NaN. PTX `setp.eq`."""

    llvm: ClassVar[dict[str, str]] = {"f": "fcmp oeq {t} {0}, {1}", **dict.fromkeys("iub", "icmp eq {t} {0}, {1}")}


class NotEqual(Compare, name="not_equal"):
    """x != y, true for NaN. PTX `setp.neu`, `setp.ne`."""

    llvm: ClassVar[dict[str, str]] = {"f": "fcmp une {t} {0}, {1}", **dict.fromkeys("iub", "icmp ne {t} {0}, {1}")}


class Less(Compare, name="less"):
    """x < y, false for NaN. PTX `setp.lt`."""

    llvm: ClassVar[dict[str, str]] = {
        "f": "fcmp olt {t} {0}, {1}",
        "i": "icmp slt {t} {0}, {1}",
        **dict.fromkeys("ub", "icmp ult {t} {0}, {1}"),
    }


class LessEqual(Compare, name="less_equal"):
    """x <= y, false for NaN. PTX `setp.le`."""

    llvm: ClassVar[dict[str, str]] = {
        "f": "fcmp ole {t} {0}, {1}",
        "i": "icmp sle {t} {0}, {1}",
        **dict.fromkeys("ub", "icmp ule {t} {0}, {1}"),
    }


class Max(Binary, name="max"):
    """The larger; NaN if either is. PTX `max`, `max.NaN`."""

    llvm: ClassVar[dict[str, str]] = {
        "f": "call {t} @llvm.maximum.{s}({t} {0}, {t} {1})",
        "i": "call {t} @llvm.smax.{s}({t} {0}, {t} {1})",
        "u": "call {t} @llvm.umax.{s}({t} {0}, {t} {1})",
        "b": "or i1 {0}, {1}",
    }
    interval: ClassVar[Interval | None] = facts.maximum


class Min(Binary, name="min"):
    """The smaller; NaN if either is. PTX `min`, `min.NaN`."""

    llvm: ClassVar[dict[str, str]] = {
        "f": "call {t} @llvm.minimum.{s}({t} {0}, {t} {1})",
        "i": "call {t} @llvm.smin.{s}({t} {0}, {t} {1})",
        "u": "call {t} @llvm.umin.{s}({t} {0}, {t} {1})",
        "b": "and i1 {0}, {1}",
    }
    interval: ClassVar[Interval | None] = facts.minimum


class FMax(Binary, name="fmax"):
    """The larger float; if one is NaN, the other. PTX `max`."""

    llvm: ClassVar[dict[str, str]] = {"f": "call {t} @llvm.maxnum.{s}({t} {0}, {t} {1})"}


class FMin(Binary, name="fmin"):
    """The smaller float; if one is NaN, the other. PTX `min`."""

    llvm: ClassVar[dict[str, str]] = {"f": "call {t} @llvm.minnum.{s}({t} {0}, {t} {1})"}


def equal(x: Any, y: Any) -> Array:
    """x == y as bool."""
    return elementwise(Equal, (x, y), "equal")


def not_equal(x: Any, y: Any) -> Array:
    """x != y as bool; NaN differs from all."""
    return elementwise(NotEqual, (x, y), "not_equal")


def less(x: Any, y: Any) -> Array:
    """x < y as bool."""
    return elementwise(Less, (x, y), "less")


def less_equal(x: Any, y: Any) -> Array:
    """x <= y as bool."""
    return elementwise(LessEqual, (x, y), "less_equal")


def greater(x: Any, y: Any) -> Array:
    """x > y as bool."""
    return elementwise(Less, (y, x), "greater")


def greater_equal(x: Any, y: Any) -> Array:
    """x >= y as bool."""
    return elementwise(LessEqual, (y, x), "greater_equal")


def truth(x: Any, op: str) -> Array:
    return astype(as_value(x, op), dt.bool_)


def where(condition: Any, x: Any, y: Any) -> Array:
    """x where the condition (bool, or != 0) holds, else y.

    >>> run(lambda x: kd.where(x > 1, x, 0), [1, 2, 3])
    [0 2 3]
    """
    values, _dtype, weak = operands_of((x, y), "where")
    predicate = truth(condition, "where")
    predicate, a, b = together([predicate, *values], "where")
    result = traced(Select(predicate, a, b))
    result.weak = weak
    return result


def select(condition: Any, x: Any, y: Any) -> Array:
    """`where` with a bool condition."""
    value = as_value(condition, "select")
    if not value.dtype.is_bool:
        what = f"the condition has dtype {value.dtype}"
        raise BadArgumentType(op="select", what=what, hint="compare it, or use `kd.where`")
    return where(value, x, y)


def maximum(x: Any, y: Any) -> Any:
    """The larger; NaN if either is NaN. Of extents outside of a body, in a grid or an output's shape, an extent."""
    if _are_extents(x, y):
        return _extreme_extent("max", max, x, y)
    return _extreme(Max, x, y, "maximum")


def minimum(x: Any, y: Any) -> Any:
    """The smaller; NaN if either is NaN. Of extents outside of a body, in a grid or an output's shape, an extent."""
    if _are_extents(x, y):
        return _extreme_extent("min", min, x, y)
    return _extreme(Min, x, y, "minimum")


def fmax(x: Any, y: Any) -> Array:
    """The larger; if one operand is NaN, the other."""
    return _extreme(FMax, x, y, "fmax")


def fmin(x: Any, y: Any) -> Array:
    """The smaller; if one operand is NaN, the other."""
    return _extreme(FMin, x, y, "fmin")


def _are_extents(x: Any, y: Any) -> bool:
    """Whether operands are those of a grid or an output's shape. A body takes extents from its arrays."""
    if is_tracing():
        return False
    return isinstance(x, Symbol) or isinstance(y, Symbol) or (static_int(x) is not None and static_int(y) is not None)


def _extreme_extent(sign: str, apply: Callable[[int, int], int], x: Any, y: Any) -> Any:
    if isinstance(x, Symbol) or isinstance(y, Symbol):
        return Expression(sign, apply, x, y)
    return apply(operator.index(x), operator.index(y))


def _extreme(cls: Any, x: Any, y: Any, op: str) -> Array:
    dtype = common_dtype((x, y), op)
    if dtype in dt.FP8:
        # the result is one of the operands, bit for bit; if they are equal, the second
        wins = greater(x, y) if cls in (Max, FMax) else less(x, y)
        value = as_value(x if cls in (Max, Min) else y, op)
        test = IsNan if value.dtype.is_float else NotEqual
        return where(bitwise_or(wins, elementwise(test, (value, value), op)), x, y)
    if not dtype.is_float:
        cls = {FMax: Max, FMin: Min}.get(cls, cls)
    return elementwise(cls, (x, y), op)
