"""Running sums, products and maxima along an axis."""

from __future__ import annotations

from typing import Any

from .. import dtypes as dt
from ..errors import UnsupportedDType
from ..ir import ArrayType, Op, Value, array_type, attr, operand
from ..promote import accumulating
from ..trace import resolve, traced
from ..values import Array
from .cast import astype, rounded
from .elementwise import as_value
from .reduce import Reduction, one_axis, sum_dtypes

__all__ = ["cummax", "cumprod", "cumsum"]


class Scan(Op, name="scan"):
    """Each element combined with those before it along an axis. Registers, lanes, warps. PTX `shfl.sync.up`, SMEM."""

    x: Value = operand()
    axis: int = attr()
    kind: Reduction = attr()

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.x)
        return (ArrayType(t.shape, t.dtype, t.layout),)


def _scan(x: Array, axis: Any, kind: Reduction) -> Array:
    if axis is None:
        from .shape import reshape

        x, dim = reshape(x, (x.size,)), 0
    else:
        dim = one_axis(axis, x.ndim, x.shape)
    resolve(x.type.layout)
    return traced(Scan(x, dim, kind))


def cumsum(x: Any, axis: Any = None, *, dtype: Any = None) -> Array:
    """The running sum along `axis` (of the flattened value where None), with the dtypes of `sum`.

    >>> run(kd.cumsum, [1, 2, 3])
    [1 3 6]
    """
    return _running(x, axis, dtype, Reduction.SUM, "cumsum")


def cumprod(x: Any, axis: Any = None, *, dtype: Any = None) -> Array:
    """The running product along `axis`, with the dtypes of `sum`.

    >>> run(kd.cumprod, [1, 2, 3, 4])
    [ 1  2  6 24]
    """
    return _running(x, axis, dtype, Reduction.PROD, "cumprod")


def _running(x: Any, axis: Any, dtype: Any, kind: Reduction, op: str) -> Array:
    value = as_value(x, op)
    acc, out = sum_dtypes(value.dtype, dtype, op)
    return rounded(_scan(astype(value, acc), axis, kind), out)


def cummax(x: Any, axis: Any = None) -> Array:
    """The running maximum along `axis`; NaN from the first NaN on.

    >>> run(kd.cummax, [1, 3, 2, 4])
    [1 3 3 4]
    """
    value = as_value(x, "cummax")
    if value.dtype.kind is dt.Kind.OPAQUE:
        raise UnsupportedDType(op="cummax", dtype=value.dtype, hint="complex values are only copied")
    kind = Reduction.OR if value.dtype.is_bool else Reduction.MAX
    wide = accumulating(value.dtype) if value.dtype.is_float else value.dtype
    return rounded(_scan(astype(value, wide), axis, kind), value.dtype)
