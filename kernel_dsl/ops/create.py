"""Making values: constants and index arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes as dt
from ..dtypes import as_dtype
from ..errors import BadArgument, BadArgumentType
from ..facts import Range
from ..ir import ArrayType, Op, attr
from ..layout import SCALAR
from ..layouts import resolve_rule
from ..memory import as_shape
from ..promote import computing
from ..trace import LayoutVar, traced
from ..values import Array
from .cast import rounded
from .elementwise import Broadcast, as_value, item_type
from .reduce import axes_of

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

    shape: tuple[int, ...] = attr()
    dtype: dt.DType = attr()
    dim: int = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType(self.shape, self.dtype, self.layout),)

    def range(self) -> Range | None:
        return Range(0, max(self.shape[self.dim] - 1, 0))


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Array:
    """A value of one number everywhere; the number may be traced.

    >>> run(lambda x: kd.full((2, 2), x[0]), [7, 8])
    [[7 7]
     [7 7]]
    """
    to = as_shape(shape, "full")
    own, weak = item_type(fill_value, "full")
    out = as_dtype(dtype) if dtype is not None else own
    value = as_value(fill_value, "full", out)
    if value.ndim:
        raise BadArgument(op="full", what=f"a fill of shape {value.shape}", hint="fill with one number")
    del weak
    if not to:
        return traced(Broadcast(value, to, SCALAR))
    return traced(Broadcast(value, to, LayoutVar(to)))


def zeros(shape: Any, dtype: Any = None) -> Array:
    """Zeros, float32 by default.

    >>> run(lambda: kd.zeros((2,), kd.int32))
    [0 0]
    """
    return full(shape, 0, dt.float32 if dtype is None else dtype)


def ones(shape: Any, dtype: Any = None) -> Array:
    """Ones, float32 by default.

    >>> run(lambda: kd.ones((2,)))
    [1. 1.]
    """
    return full(shape, 1, dt.float32 if dtype is None else dtype)


def full_like(x: Any, fill_value: Any, dtype: Any = None) -> Array:
    """`full` with the shape and dtype of `x` (a value or a Ref).

    >>> run(lambda x: kd.full_like(x, 5), [1, 2])
    [5 5]
    """
    return full(x.shape, fill_value, x.dtype if dtype is None else dtype)


def zeros_like(x: Any, dtype: Any = None) -> Array:
    """Zeros with the shape and dtype of `x`.

    >>> run(kd.zeros_like, [1, 2])
    [0 0]
    """
    return full_like(x, 0, dtype)


def ones_like(x: Any, dtype: Any = None) -> Array:
    """Ones with the shape and dtype of `x`.

    >>> run(kd.ones_like, [1, 2])
    [1 1]
    """
    return full_like(x, 1, dtype)


def broadcasted_iota(dtype: Any, shape: Any, dimension: int, *, layout: Any = None) -> Array:
    """Each element's index along `dimension`. `layout`: how to spread the value.

    >>> run(lambda: kd.broadcasted_iota(kd.int32, (2, 3), 1))
    [[0 1 2]
     [0 1 2]]
    """
    to = as_shape(shape, "broadcasted_iota")
    (dim,) = axes_of(dimension, len(to), to)
    where = LayoutVar(to) if layout is None else resolve_rule(layout, to, "broadcasted_iota")
    return traced(Iota(to, as_dtype(dtype), dim, where))


def iota(dtype: Any, size: int) -> Array:
    """0, 1, ... size - 1.

    >>> run(lambda: kd.iota(kd.int32, 4))
    [0 1 2 3]
    """
    return broadcasted_iota(dtype, (size,), 0)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Array:
    """NumPy's arange with static bounds, int32 by default (float32 where a bound is a float).

    >>> run(lambda: kd.arange(2, 11, 3))
    [2 5 8]
    """
    if stop is None:
        start, stop = 0, start
    if any(isinstance(x, Array) for x in (start, stop, step)):
        hint = "use `start + kd.arange(size)`"
        raise BadArgumentType(op="arange", what="the bounds must be static", hint=hint)
    if step == 0:
        raise BadArgument(op="arange", what="a step of 0", hint="any other step")
    size = max(0, int(np.ceil((stop - start) / step)))
    floats = any(isinstance(x, float) for x in (start, stop, step))
    out = as_dtype(dtype) if dtype is not None else (dt.float32 if floats else dt.int32)
    wide = computing(out) if out.is_float or out.is_integer else dt.int32
    count = iota(wide, size)
    moved = count if abs(step) == 1 else count * abs(step)
    if step < 0:  # what has no sign has no negative step, and yet can be counted down
        moved = start - moved
    elif start:
        moved = moved + start
    return rounded(moved, out)
