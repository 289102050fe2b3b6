"""Making values: constants and index arrays."""

from __future__ import annotations

import math
from typing import Any

from .. import dtypes as dt
from ..argument_kinds import NUMBER
from ..arguments import convert, of_dims
from ..dtypes import as_dtype
from ..errors import BadArgument, BadArgumentType, LiteralOutOfRange, UnsupportedDType
from ..facts import Range, any_of
from ..ir import ArrayType, Op, attr
from ..layout import SCALAR
from ..layouts import resolve_rule
from ..memory import as_shape
from ..promote import computing
from ..refs import Ref
from ..trace import LayoutVar, traced
from ..values import Array
from .axes import axes_of
from .broadcast import Broadcast
from .cast import as_value, item_type, rounded

__all__ = [
    "arange",
    "broadcasted_iota",
    "full",
    "full_like",
    "iota",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]


class Iota(Op, name="iota"):
    """Each element's own index along `dim`. No shuffle. PTX `add` of the lane's and the register's share."""

    again = True
    shape: tuple[int, ...] = attr()
    dtype: dt.DType = attr()
    dim: int = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType(self.shape, self.dtype, self.layout),)

    def range(self) -> Range | None:
        return Range(0, max(self.shape[self.dim] - 1, 0))


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Array:
    """A value whose elements are all one number; the number may be traced.

    >>> run(lambda x: kd.full((2, 2), x[0]), [7, 8])
    [[7 7]
     [7 7]]
    """
    return _filled(shape, fill_value, dtype, "full")


def _filled(shape: Any, fill_value: Any, dtype: Any, op: str) -> Array:
    to = as_shape(shape, op)
    own, _ = item_type(fill_value, op)
    out = as_dtype(dtype) if dtype is not None else own
    value = as_value(fill_value, op, out)
    if value.ndim:
        raise BadArgument(op=op, what=f"a fill of shape {value.shape}", hint="fill with one number")
    if not to:
        return traced(Broadcast(value, to, SCALAR))
    return traced(Broadcast(value, to, LayoutVar(to)))


def zeros(shape: Any, dtype: Any = None) -> Array:
    """Zeros, float32 by default.

    >>> run(lambda: kd.zeros((2,), kd.int32))
    [0 0]
    """
    return _filled(shape, 0, dt.float32 if dtype is None else dtype, "zeros")


def ones(shape: Any, dtype: Any = None) -> Array:
    """Ones, float32 by default.

    >>> run(lambda: kd.ones((2,)))
    [1. 1.]
    """
    return _filled(shape, 1, dt.float32 if dtype is None else dtype, "ones")


def full_like(x: Any, fill_value: Any, dtype: Any = None) -> Array:
    """`full` with the shape and dtype of `x` (a value or a Ref).

    >>> run(lambda x: kd.full_like(x, 5), [1, 2])
    [5 5]
    """
    return _filled_like(x, fill_value, dtype, "full_like")


def _filled_like(x: Any, fill_value: Any, dtype: Any, op: str) -> Array:
    like = x if isinstance(x, Ref) else as_value(x, op)
    return _filled(like.shape, fill_value, like.dtype if dtype is None else dtype, op)


def zeros_like(x: Any, dtype: Any = None) -> Array:
    """Zeros with the shape and dtype of `x`.

    >>> run(kd.zeros_like, [1, 2])
    [0 0]
    """
    return _filled_like(x, 0, dtype, "zeros_like")


def ones_like(x: Any, dtype: Any = None) -> Array:
    """Ones with the shape and dtype of `x`.

    >>> run(kd.ones_like, [1, 2])
    [1 1]
    """
    return _filled_like(x, 1, dtype, "ones_like")


def broadcasted_iota(dtype: Any, shape: Any, dimension: int, *, layout: Any = None) -> Array:
    """Each element's index along `dimension`. `layout`: the layout of the value.

    >>> run(lambda: kd.broadcasted_iota(kd.int32, (2, 3), 1))
    [[0 1 2]
     [0 1 2]]
    """
    to = as_shape(shape, "broadcasted_iota")
    (dim,) = axes_of(dimension, len(to), to)
    where = LayoutVar(to) if layout is None else resolve_rule(layout, to, "broadcasted_iota")
    return _indices(as_dtype(dtype), to, dim, where, "broadcasted_iota")


def _indices(dtype: dt.DType, shape: tuple[int, ...], dim: int, layout: Any, op: str) -> Array:
    if not (dtype.is_integer or dtype.is_float):
        raise UnsupportedDType(op=op, dtype=dtype, hint="indices are integers or floats")
    held = any_of(dtype)
    if held is not None and shape[dim] - 1 > held.hi:
        hint = "use a wider dtype: each element is its own index"
        raise LiteralOutOfRange(value=shape[dim] - 1, dtype=dtype, hint=hint)
    return traced(Iota(shape, dtype, dim, layout))


def iota(dtype: Any, size: int) -> Array:
    """0, 1, ... size - 1.

    >>> run(lambda: kd.iota(kd.int32, 4))
    [0 1 2 3]
    """
    shape = as_shape(size, "iota")
    return _indices(as_dtype(dtype), shape, 0, LayoutVar(shape), "iota")


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Array:
    """NumPy's arange with static bounds, int32 by default (float32 if a bound is a float).

    >>> run(lambda: kd.arange(2, 11, 3))
    [2 5 8]
    """
    if stop is None:
        start, stop = 0, start
    traced = next((x for x in (start, stop, step) if isinstance(x, Array)), None)
    if traced is not None:
        hint = of_dims(traced, "use `start + kd.arange(size)`")
        raise BadArgumentType(op="arange", what="the bounds must be static", hint=hint)
    start, stop, step = (_number(x, name) for x, name in ((start, "start"), (stop, "stop"), (step, "step")))
    if step == 0:
        raise BadArgument(op="arange", what="a step of 0", hint="give a step other than 0")
    floats = any(isinstance(x, float) for x in (start, stop, step))
    # ints are exact; floats would round those beyond 2**53
    size = max(0, math.ceil((stop - start) / step) if floats else -((start - stop) // step))
    out = as_dtype(dtype) if dtype is not None else (dt.float32 if floats else dt.int32)
    wide = computing(out) if out.is_float or out.is_integer else dt.int32
    shape = as_shape(size, "arange")
    count = _indices(wide, shape, 0, LayoutVar(shape), "arange")
    moved = count if abs(step) == 1 else count * abs(step)
    if step < 0:  # an unsigned dtype can't hold a negative step, but can count down
        moved = start - moved
    elif start:
        moved = moved + start
    return rounded(moved, out)


def _number(value: Any, name: str) -> int | float:
    """A bound of `arange`: a finite number. Raises `BadArgumentType`, `BadArgument`."""
    number: int | float = convert(value, NUMBER, "arange", name)
    if not math.isfinite(number):
        raise BadArgument(op="arange", what=f"{name}={number}", hint="a finite number")
    return number
