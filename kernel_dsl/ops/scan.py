"""Running sums, products, maxima and minima along an axis."""

from __future__ import annotations

from typing import Any

from .. import dtypes as dt
from ..errors import UnsupportedDType
from ..ir import ArrayType, Op, Value, array_type, attr, operand, option
from ..promote import accumulating
from ..trace import resolve, traced
from ..values import Array
from .axes import one_axis
from .cast import as_value, astype, rounded
from .reduce import Reduction, sum_dtypes

__all__ = ["cummax", "cummin", "cumprod", "cumsum"]


class Scan(Op, name="scan"):
    """Each element combined with those before it along an axis. Registers, lanes, warps. PTX `shfl.sync.bfly`, SMEM.

    `reverse`: with those after it. `exclusive`: without itself, so that the first one is the neutral element.
    """

    x: Value = operand()
    axis: int = attr()
    kind: Reduction = attr()
    reverse: bool = option(False)
    exclusive: bool = option(False)

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.x)
        return (ArrayType(t.shape, t.dtype, t.layout),)


def _scan(x: Array, axis: Any, kind: Reduction, reverse: bool, exclusive: bool) -> Array:
    if axis is None:
        from .shape import reshape

        x, dim = reshape(x, (x.size,)), 0
    else:
        dim = one_axis(axis, x.ndim, x.shape)
    resolve(x.type.layout)
    return traced(Scan(x, dim, kind, reverse, exclusive))


def cumsum(x: Any, axis: Any = None, *, dtype: Any = None, reverse: bool = False, exclusive: bool = False) -> Array:
    """The running sum along `axis` (of the flattened value where None), with the dtypes of `sum`.

    `reverse`: of each element and those after it. `exclusive`: without the element itself, so that the first sum is 0.

    >>> run(kd.cumsum, [1, 2, 3])
    [1 3 6]
    >>> run(lambda x: kd.cumsum(x, reverse=True, exclusive=True), [1, 2, 3])
    [5 3 0]
    """
    return _running(x, axis, dtype, Reduction.SUM, "cumsum", reverse, exclusive)


def cumprod(x: Any, axis: Any = None, *, dtype: Any = None, reverse: bool = False, exclusive: bool = False) -> Array:
    """The running product along `axis`, with the dtypes of `sum`; `reverse` and `exclusive` as for `cumsum`, from 1.

    >>> run(kd.cumprod, [1, 2, 3, 4])
    [ 1  2  6 24]
    """
    return _running(x, axis, dtype, Reduction.PROD, "cumprod", reverse, exclusive)


def _running(x: Any, axis: Any, dtype: Any, kind: Reduction, op: str, reverse: bool, exclusive: bool) -> Array:
    value = as_value(x, op)
    acc, out = sum_dtypes(value.dtype, dtype, op)
    total: Any = _scan(astype(value, acc), axis, kind, reverse, exclusive)
    if exclusive and acc.is_float and kind is Reduction.SUM:
        total = total + 0.0  # -0.0 is the neutral element of sums, but the sum of nothing is 0.0
    return rounded(total, out)


def cummax(x: Any, axis: Any = None, *, reverse: bool = False, exclusive: bool = False) -> Array:
    """The running maximum along `axis`; NaN from the first NaN on. `reverse` and `exclusive` as for `cumsum`.

    An exclusive one starts with minus infinity, or the dtype's least number if it has none.

    >>> run(kd.cummax, [1, 3, 2, 4])
    [1 3 3 4]
    """
    return _extreme(x, axis, Reduction.MAX, "cummax", reverse, exclusive)


def cummin(x: Any, axis: Any = None, *, reverse: bool = False, exclusive: bool = False) -> Array:
    """The running minimum along `axis`; NaN from the first NaN on. `reverse` and `exclusive` as for `cumsum`.

    An exclusive one starts with infinity, or the dtype's largest number if it has none.

    >>> run(kd.cummin, [4, 2, 3, 1])
    [4 2 2 1]
    """
    return _extreme(x, axis, Reduction.MIN, "cummin", reverse, exclusive)


def _extreme(x: Any, axis: Any, kind: Reduction, op: str, reverse: bool, exclusive: bool) -> Array:
    value = as_value(x, op)
    if value.dtype.kind is dt.Kind.OPAQUE:
        raise UnsupportedDType(op=op, dtype=value.dtype, hint=value.dtype.only_copied)
    if value.dtype.is_bool:
        kind = Reduction.OR if kind is Reduction.MAX else Reduction.AND
    wide = accumulating(value.dtype) if value.dtype.is_float else value.dtype
    return rounded(_scan(astype(value, wide), axis, kind, reverse, exclusive), value.dtype)
