"""Reductions over axes."""

from __future__ import annotations

from enum import Enum
from typing import Any

from .. import dtypes as dt
from ..attributes import attribute_type
from ..dtypes import as_dtype
from ..errors import BadArgument, EmptyReduction, UnsupportedDType
from ..ir import ArrayType, Op, Value, array_type, attr, operand
from ..promote import accumulating
from ..trace import resolve, traced
from ..values import Array
from .arith import multiply, subtract, true_divide
from .axes import normalise_axes, one_axis
from .broadcast import expanded
from .cast import as_value, astype, rounded
from .create import full
from .shape import reshape

any_of = any  # the builtin: `any` below is the language's

__all__ = ["all", "any", "argmax", "argmin", "max", "mean", "min", "prod", "sum", "var"]


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
    """Combine along axes, which the result lacks, in a fixed order: registers, lanes, warps.

    PTX `shfl.sync.bfly`, SMEM.
    """

    x: Value = operand()
    axes: tuple[int, ...] = attr()
    kind: Reduction = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.x)
        shape = tuple(n for i, n in enumerate(t.shape) if i not in self.axes)
        return (ArrayType(shape, t.dtype, self.layout),)


class ArgReduce(Op, name="arg_reduce"):
    """The first index (int32) of the largest or smallest element along an axis, which the result lacks. NaN wins.

    PTX `shfl.sync.bfly`, `setp`, `selp`, SMEM.
    """

    x: Value = operand()
    axis: int = attr()
    kind: Reduction = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        t = array_type(self.x)
        shape = tuple(n for i, n in enumerate(t.shape) if i != self.axis)
        return (ArrayType(shape, dt.int32, self.layout),)


def reduce_axes(x: Array, axes: tuple[int, ...], kind: Reduction, keepdims: bool) -> Array:
    """One reduction of a value whose dtype is already the accumulating one."""
    if not axes:
        return x
    if any_of(x.shape[a] == 0 for a in axes):
        shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes)
        return full(shape, int(kind in (Reduction.PROD, Reduction.AND)), x.dtype)
    layout = resolve(x.type.layout).reduce(axes, keepdims=False)
    result = traced(Reduce(x, axes, kind, layout))
    return expanded(result, axes) if keepdims else result


def sum(x: Any, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Array:
    """The sum along `axis` (an int, several, or None for all).

    float16, bfloat16 and fp8 accumulate in float32 and return their own dtype; bool and narrow ints accumulate in and
    return int32 (uint32 for unsigned); `dtype` overrides both.

    >>> run(kd.sum, [[1, 2], [3, 4]])
    10
    >>> run(lambda x: kd.sum(x, axis=0, keepdims=True), [[1, 2], [3, 4]])
    [[4 6]]
    """
    return _accumulate(x, axis, keepdims, dtype, Reduction.SUM, "sum")


def prod(x: Any, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Array:
    """The product along `axis`, with the dtypes of `sum`.

    >>> run(kd.prod, [1, 2, 3, 4])
    24
    """
    return _accumulate(x, axis, keepdims, dtype, Reduction.PROD, "prod")


def sum_dtypes(own: dt.DType, dtype: Any, op: str) -> tuple[dt.DType, dt.DType]:
    """The dtypes of (sums, results)."""
    if own.kind is dt.Kind.OPAQUE:
        raise UnsupportedDType(op=op, dtype=own, hint=own.only_copied)
    if dtype is not None:
        out = as_dtype(dtype)
        return (accumulating(out) if out.is_float else out), out
    acc = accumulating(own)
    return acc, own if own.is_float else acc


def _accumulate(x: Any, axis: Any, keepdims: bool, dtype: Any, kind: Reduction, op: str) -> Array:
    value = as_value(x, op)
    axes = normalise_axes(axis, value)
    acc, out = sum_dtypes(value.dtype, dtype, op)
    return rounded(reduce_axes(astype(value, acc), axes, kind, keepdims), out)


def mean(x: Any, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Array:
    """The mean along `axis`: floats keep their dtype and accumulate in float32, ints give float32.

    >>> run(kd.mean, [1, 2, 4])
    2.3333333
    """
    value, axes, out = _for_floats(x, axis, dtype, "mean", "a mean is a float")
    return rounded(_mean(astype(value, accumulating(out)), axes, keepdims), out)


def _for_floats(x: Any, axis: Any, dtype: Any, op: str, hint: str) -> tuple[Array, tuple[int, ...], dt.DType]:
    """(the value, its axes to reduce, the dtype of a result that is a float)."""
    value = as_value(x, op)
    axes = normalise_axes(axis, value)
    out = as_dtype(dtype) if dtype is not None else (value.dtype if value.dtype.is_float else dt.float32)
    if not out.is_float:
        raise UnsupportedDType(op=op, dtype=out, hint=hint)
    return value, axes, out


def _count(value: Array, axes: tuple[int, ...], op: str) -> int:
    count = 1
    for a in axes:
        count *= value.shape[a]
    if not count:
        raise EmptyReduction(op=op)
    return count


def _mean(value: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return true_divide(reduce_axes(value, axes, Reduction.SUM, keepdims), float(_count(value, axes, "mean")))


def var(x: Any, axis: Any = None, *, keepdims: bool = False, ddof: int = 0, dtype: Any = None) -> Array:
    """The variance along `axis`: the mean of the squares of x - mean. `ddof` is subtracted from the count.

    >>> run(kd.var, [1.0, 2.0, 3.0])
    0.6666667
    """
    value, axes, out = _for_floats(x, axis, dtype, "var", "a variance is a float")
    count = _count(value, axes, "var")
    if not 0 <= ddof < count:
        hint = "give 0, or 1 for a sample's variance: the divisor is the count minus this"
        raise BadArgument(op="var", what=f"ddof={ddof} of {count} elements", hint=hint)
    wide = astype(value, accumulating(out))
    centred = subtract(wide, _mean(wide, axes, True))
    squares = reduce_axes(multiply(centred, centred), axes, Reduction.SUM, keepdims)
    return rounded(true_divide(squares, float(count - ddof)), out)


def min(x: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    """The smallest element along `axis`; NaN if any is NaN. Raises `EmptyReduction` over no elements.

    >>> run(lambda x: kd.min(x, axis=-1), [[1, 5], [7, 3]])
    [1 3]
    """
    return _extreme(x, axis, keepdims, Reduction.MIN, "min")


def all(x: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    """Whether every element along `axis` is true (not 0).

    >>> run(lambda x: kd.all(x > 2), [1, 2, 3])
    False
    """
    return _logical(x, axis, keepdims, Reduction.AND, "all")


def any(x: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    """Whether some element along `axis` is true (not 0).

    >>> run(lambda x: kd.any(x > 2), [1, 2, 3])
    True
    """
    return _logical(x, axis, keepdims, Reduction.OR, "any")


def _logical(x: Any, axis: Any, keepdims: bool, kind: Reduction, op: str) -> Array:
    value = astype(as_value(x, op), dt.bool_)
    return reduce_axes(value, normalise_axes(axis, value), kind, keepdims)


def argmax(x: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    """The first index (int32) of the largest element along `axis`, or in the flattened value; NaN is largest.

    >>> run(kd.argmax, [3, 9, 9])
    1
    """
    return _arg(x, axis, keepdims, Reduction.MAX, "argmax")


def argmin(x: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    """The first index (int32) of the smallest element along `axis`, or in the flattened value; NaN is smallest.

    >>> run(lambda x: kd.argmin(x, axis=1), [[3, 9], [4, 2]])
    [0 1]
    """
    return _arg(x, axis, keepdims, Reduction.MIN, "argmin")


def _arg(x: Any, axis: Any, keepdims: bool, kind: Reduction, op: str) -> Array:
    value = as_value(x, op)
    if value.dtype.kind is dt.Kind.OPAQUE:
        raise UnsupportedDType(op=op, dtype=value.dtype, hint=value.dtype.only_copied)
    rank = value.ndim
    if axis is None:
        value, dim = reshape(value, (value.size,)), 0
    else:
        dim = one_axis(axis, rank, value.shape)
    if value.shape[dim] == 0:
        raise EmptyReduction(op=op)
    if value.dtype.is_bool:
        value = astype(value, dt.int32)
    elif value.dtype.is_float:
        value = astype(value, accumulating(value.dtype))
    result = traced(ArgReduce(value, dim, kind, resolve(value.type.layout).reduce((dim,), keepdims=False)))
    if not keepdims:
        return result
    return expanded(result, tuple(range(rank)) if axis is None else (dim,))


def max(x: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    """The largest element along `axis`; NaN if any is NaN. Raises `EmptyReduction` over no elements.

    >>> run(lambda x: kd.max(x, axis=-1), [[1, 5], [7, 3]])
    [5 7]
    """
    return _extreme(x, axis, keepdims, Reduction.MAX, "max")


def _extreme(x: Any, axis: Any, keepdims: bool, kind: Reduction, op: str) -> Array:
    value = as_value(x, op)
    axes = normalise_axes(axis, value)
    _count(value, axes, op)
    if value.dtype.kind is dt.Kind.OPAQUE:
        raise UnsupportedDType(op=op, dtype=value.dtype, hint=value.dtype.only_copied)
    if value.dtype.is_bool:
        kind = Reduction.OR if kind is Reduction.MAX else Reduction.AND
    wide = accumulating(value.dtype) if value.dtype.is_float else value.dtype
    return rounded(reduce_axes(astype(value, wide), axes, kind, keepdims), value.dtype)
