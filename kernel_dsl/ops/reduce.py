"""Reductions over axes."""

from __future__ import annotations

from enum import Enum
from typing import Any

from .. import dtypes as dt
from ..dtypes import as_dtype
from ..errors import BadAxis, EmptyReduction, UnsupportedDType
from ..ir import ArrayType, Op, Value, array_type, attr, attribute_type, operand
from ..promote import accumulating
from ..trace import resolve, traced
from ..values import Array
from .cast import astype
from .elementwise import Expand, as_value

__all__ = ["max", "sum"]


@attribute_type
class Reduction(Enum):
    """The combining operation of a reduction."""

    SUM = "sum"
    PROD = "prod"
    MAX = "max"
    MIN = "min"
    AND = "and"
    OR = "or"


class Reduce(Op, name="reduce"):
    """Combine along axes, which vanish, in a fixed order: registers, then lanes, then warps. PTX `shfl.sync.bfly`, SMEM."""

    x: Value = operand()
    axes: tuple[int, ...] = attr()
    kind: Reduction = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.x)
        shape = tuple(n for i, n in enumerate(t.shape) if i not in self.axes)
        return (ArrayType(shape, t.dtype, self.layout),)


def normalise_axes(axis: Any, value: Array) -> tuple[int, ...]:
    """Axes as sorted non-negative ints. Raises `BadAxis`."""
    if axis is None:
        return tuple(range(value.ndim))
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    out: list[int] = []
    for a in axes:
        good = isinstance(a, int) and not isinstance(a, bool) and -value.ndim <= a < value.ndim
        if not good or a % value.ndim in out:
            raise BadAxis(axis=axis, shape=value.shape, lo=-value.ndim, hi=value.ndim - 1)
        out.append(a % value.ndim)
    return tuple(sorted(out))


def expand_dims_free(value: Array, dims: tuple[int, ...]) -> Array:
    """`value` with new dimensions of extent 1 at `dims` of the result."""
    if not dims:
        return value
    return traced(Expand(value, dims, resolve(value.type.layout).expand(dims)))


def reduce_axes(x: Array, axes: tuple[int, ...], kind: Reduction, keepdims: bool) -> Array:
    """One reduction of a value whose dtype is already the accumulating one."""
    if not axes:
        return x
    layout = resolve(x.type.layout).reduce(axes, keepdims=False)
    result = traced(Reduce(x, axes, kind, layout))
    return expand_dims_free(result, axes) if keepdims else result


def sum(x: Any, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Array:
    """The sum along `axis` (an int, several, or None for all).

    float16, bfloat16 and fp8 accumulate in float32 and return their own dtype; bool and narrow ints accumulate in and
    return int32 (uint32 for unsigned); `dtype` overrides both.
    """
    value = as_value(x, "sum")
    axes = normalise_axes(axis, value)
    if dtype is not None:
        out = acc = as_dtype(dtype)
    else:
        acc = accumulating(value.dtype)
        out = value.dtype if value.dtype.is_float else acc
    if acc.is_float:
        acc = accumulating(acc)
    return astype(reduce_axes(astype(value, acc), axes, Reduction.SUM, keepdims), out)


def max(x: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    """The largest element along `axis`; NaN where any is. Raises `EmptyReduction` over no elements."""
    return _extreme(x, axis, keepdims, Reduction.MAX, "max")


def _extreme(x: Any, axis: Any, keepdims: bool, kind: Reduction, op: str) -> Array:
    value = as_value(x, op)
    axes = normalise_axes(axis, value)
    if any(value.shape[a] == 0 for a in axes):
        raise EmptyReduction(op=op)
    if value.dtype.kind is dt.Kind.OPAQUE:
        raise UnsupportedDType(op=op, dtype=value.dtype, hint="complex values are only copied")
    if value.dtype.is_bool:
        kind = Reduction.OR if kind is Reduction.MAX else Reduction.AND
    wide = accumulating(value.dtype) if value.dtype.is_float else value.dtype
    return astype(reduce_axes(astype(value, wide), axes, kind, keepdims), value.dtype)
