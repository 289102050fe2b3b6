"""Sorting along an axis."""

from __future__ import annotations

from typing import Any

from .. import dtypes as dt
from ..arguments import an_int, static_int
from ..diagnostics import shown
from ..errors import BadArgument, ShapeMismatch, UnsupportedDType
from ..facts import Range
from ..ir import ArrayType, Op, Value, array_type, attr, operand, option
from ..trace import LayoutVar, traced
from ..values import Array
from .axes import one_axis
from .cast import as_value, astype
from .lookup import taken

__all__ = ["argsort", "sort", "top_k"]


class Sort(Op, name="sort"):
    """Elements in order along the last axis, NaN last: a bitonic network in SMEM. Several PTX instructions."""

    x: Value = operand()
    layout: Any = attr()
    descending: bool = option(False)

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.x)
        return (ArrayType(t.shape, t.dtype, self.layout),)


class ArgSort(Op, name="argsort"):
    """The indices (int32) that sort stably along the last axis, NaN last. Several PTX instructions, and SMEM.

    `first`: at most this many of each row; 0: all.
    """

    x: Value = operand()
    layout: Any = attr()
    descending: bool = option(False)
    first: int = option(0)

    def infer(self) -> tuple[Any, ...]:
        shape = array_type(self.x).shape
        return (ArrayType((*shape[:-1], self.first or shape[-1]), dt.int32, self.layout),)

    def range(self) -> Range | None:
        return Range(0, array_type(self.x).shape[-1] - 1)


def _last(x: Any, axis: int | None, op: str) -> tuple[Array, int]:
    """The value with the sorted axis last, and that axis' earlier position."""
    value = as_value(x, op)
    if value.dtype.kind is dt.Kind.OPAQUE:
        raise UnsupportedDType(op=op, dtype=value.dtype, hint=value.dtype.only_copied)
    if axis is None:
        from .shape import reshape

        return reshape(value, (value.size,)), 0
    if value.ndim == 0:
        raise BadArgument(op=op, what="a rank-0 value", hint="pass a value with an axis to sort along")
    dim = one_axis(axis, value.ndim, value.shape)
    return _moved(value, dim), dim


def _moved(value: Array, dim: int) -> Array:
    from .shape import swapaxes

    return value if dim == value.ndim - 1 else swapaxes(value, dim, -1)


def sort(keys: Any, *values: Any, axis: int | None = -1, descending: bool = False) -> Any:
    """Sort along `axis` (flattened for None), NaN last in both directions. Returns a value, or with `values` a tuple.

    `values` have the shape of `keys` and move with them: the result is (keys, *values). Equal keys keep their order,
    also with `descending`; zeros of either sign are equal, and so are all NaNs. Keys alone are sorted with -0.0 before
    0.0 (after it where descending). Every element keeps its bits. Raises `BadArgument`, `ShapeMismatch`, `SmemExceeded`
    for rows that SMEM can't hold.

    >>> run(kd.sort, [3, 1, 2])
    [1 2 3]
    >>> run(lambda x: kd.sort(x % 10, x, descending=True)[1], [13, 21, 43, 32])
    [13 43 32 21]
    """
    for number, value in enumerate(values):
        if value is None or static_int(value) is not None:
            what = f"{shown(value)} as argument {number + 2}"
            hint = f"give the axis by its name, `sort(keys, axis={shown(value)})`; other arguments move with the keys"
            raise BadArgument(op="sort", what=what, hint=hint)
    value, dim = _last(keys, axis, "sort")
    own = value.dtype
    wide = astype(value, dt.uint8) if own.is_bool else value
    moving = value.shape[-1] > 1 and value.size > 0
    if not values:
        if moving:
            wide = traced(Sort(wide, LayoutVar(value.shape), descending))
        return _moved(astype(wide, own), dim)
    others = [as_value(v, "sort") for v in values]
    shape = as_value(keys, "sort").shape
    if any(v.shape != shape for v in others):
        raise ShapeMismatch(op="sort", shapes=" and ".join(str(s) for s in (shape, *(v.shape for v in others))))
    rows = [value, *(_in_rows(v, axis) for v in others)]
    if moving:
        order = traced(ArgSort(wide, LayoutVar(value.shape), descending, 0))
        rows = [taken(row, order, value.ndim - 1, "sort") for row in rows]
    return tuple(_moved(row, dim) for row in rows)


def _in_rows(value: Array, axis: int | None) -> Array:
    from .shape import reshape

    if axis is None:
        return reshape(value, (value.size,))
    return _moved(value, one_axis(axis, value.ndim, value.shape))


def argsort(x: Any, axis: int | None = -1, *, descending: bool = False) -> Array:
    """The int32 indices that sort along `axis` (flattened for None); stable and NaN last in both directions.

    >>> run(kd.argsort, [3, 1, 2])
    [1 2 0]
    """
    value, dim = _last(x, axis, "argsort")
    return _moved(_order(value, descending, 0), dim)


def _order(value: Array, descending: bool, first: int) -> Array:
    if value.dtype.is_bool:
        value = astype(value, dt.uint8)
    shape = (*value.shape[:-1], first or value.shape[-1])
    if value.shape[-1] <= 1 or not value.size:
        from .create import zeros

        return zeros(shape, dt.int32)
    return traced(ArgSort(value, LayoutVar(shape), descending, first))


def top_k(x: Any, k: int, axis: int = -1) -> tuple[Array, Array]:
    """(values, int32 indices) of the `k` largest elements along `axis`, the largest first; of equal ones the lower index first.

    They are the first of `sort(x, descending=True)`, so NaN counts as the least. Raises `BadArgument` for a `k` over the extent.

    >>> run(lambda x: kd.top_k(x, 2)[1], [3, 9, 1, 9])
    [1 3]
    """
    value, dim = _last(x, axis, "top_k")
    an_int(k, "top_k", "k", low=0, high=value.shape[-1])
    if not k or not value.size:
        from .create import zeros

        shape = (*value.shape[:-1], k)
        return _moved(zeros(shape, value.dtype), dim), _moved(zeros(shape, dt.int32), dim)
    order = _order(value, True, k)
    return _moved(taken(value, order, value.ndim - 1, "top_k"), dim), _moved(order, dim)
