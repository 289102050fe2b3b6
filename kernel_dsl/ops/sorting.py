"""Sorting along an axis."""

from __future__ import annotations

from typing import Any

from .. import dtypes as dt
from ..errors import BadArgument, UnsupportedDType
from ..ir import ArrayType, Op, Value, array_type, attr, operand
from ..trace import LayoutVar, traced
from ..values import Array
from .cast import astype
from .elementwise import as_value
from .reduce import one_axis

__all__ = ["argsort", "sort"]


class Sort(Op, name="sort"):
    """Elements in ascending order along the last axis, NaN last: a bitonic network in SMEM. Several PTX instructions."""

    x: Value = operand()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.x)
        return (ArrayType(t.shape, t.dtype, self.layout),)


class ArgSort(Op, name="argsort"):
    """The indices (int32) that sort stably along the last axis, NaN last. Several PTX instructions."""

    x: Value = operand()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType(array_type(self.x).shape, dt.int32, self.layout),)


def _last(x: Any, axis: int | None, op: str) -> tuple[Array, int]:
    """The value with the sorted axis last, and where that axis was."""
    value = as_value(x, op)
    if value.dtype.kind is dt.Kind.OPAQUE:
        raise UnsupportedDType(op=op, dtype=value.dtype, hint="complex values are only copied")
    if axis is None:
        from .shape import reshape

        return reshape(value, (value.size,)), 0
    if value.ndim == 0:
        raise BadArgument(op=op, what="a rank-0 value", hint="it has no axis to sort along")
    dim = one_axis(axis, value.ndim, value.shape)
    return _moved(value, dim), dim


def _moved(value: Array, dim: int) -> Array:
    from .shape import swapaxes

    return value if dim == value.ndim - 1 else swapaxes(value, dim, -1)


def sort(x: Any, axis: int | None = -1) -> Array:
    """Ascending along `axis` (flattened for None), -0.0 before 0.0 and NaN last; every element keeps its bits.

    >>> run(kd.sort, [3, 1, 2])
    [1 2 3]
    """
    value, dim = _last(x, axis, "sort")
    own = value.dtype
    wide = astype(value, dt.uint8) if own.is_bool else value
    if value.shape[-1] > 1 and value.size:
        wide = traced(Sort(wide, LayoutVar(value.shape)))
    return _moved(astype(wide, own), dim)


def argsort(x: Any, axis: int | None = -1) -> Array:
    """The int32 indices that sort along `axis` (flattened for None); stable, NaN last.

    >>> run(kd.argsort, [3, 1, 2])
    [1 2 0]
    """
    value, dim = _last(x, axis, "argsort")
    if value.dtype.is_bool:
        value = astype(value, dt.uint8)
    if value.shape[-1] <= 1 or not value.size:
        from .create import zeros

        return _moved(zeros(value.shape, dt.int32), dim)
    return _moved(traced(ArgSort(value, LayoutVar(value.shape))), dim)
