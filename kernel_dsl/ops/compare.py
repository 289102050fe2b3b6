"""Comparison and selection, element by element."""

from __future__ import annotations

from typing import Any

from .. import dtypes as dt
from .. import facts
from ..dtypes import DType
from ..errors import BadArgumentType
from ..facts import Range
from ..ir import Value, operand
from ..trace import traced
from ..values import Array
from .arith import elementwise
from .cast import astype
from .elementwise import Compare, Elementwise, as_value, operands_of, together

__all__ = [
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "not_equal",
    "select",
    "where",
]


class Equal(Compare, name="equal"):
    """x == y, false for NaN. PTX `setp.eq`."""

    llvm = {"f": "fcmp oeq {t} {0}, {1}", **dict.fromkeys("iub", "icmp eq {t} {0}, {1}")}


class NotEqual(Compare, name="not_equal"):
    """x != y, true for NaN. PTX `setp.neu`, `setp.ne`."""

    llvm = {"f": "fcmp une {t} {0}, {1}", **dict.fromkeys("iub", "icmp ne {t} {0}, {1}")}


class Less(Compare, name="less"):
    """x < y, false for NaN. PTX `setp.lt`."""

    llvm = {
        "f": "fcmp olt {t} {0}, {1}",
        "i": "icmp slt {t} {0}, {1}",
        **dict.fromkeys("ub", "icmp ult {t} {0}, {1}"),
    }


class LessEqual(Compare, name="less_equal"):
    """x <= y, false for NaN. PTX `setp.le`."""

    llvm = {
        "f": "fcmp ole {t} {0}, {1}",
        "i": "icmp sle {t} {0}, {1}",
        **dict.fromkeys("ub", "icmp ule {t} {0}, {1}"),
    }


class Select(Elementwise, name="select"):
    """x where the predicate holds, else y. PTX `selp`."""

    predicate: Value = operand()
    x: Value = operand()
    y: Value = operand()
    llvm = dict.fromkeys("fiub", "select i1 {0}, {t} {1}, {t} {2}")

    def result_dtype(self) -> DType:
        return self.x.type.dtype

    def range(self) -> Range | None:
        a, b = self.x.facts, self.y.facts
        return None if a is None or b is None else facts.union(a, b)


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
