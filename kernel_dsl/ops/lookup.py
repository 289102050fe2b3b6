"""Elements of a value by indices that are values themselves."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from .. import dtypes as dt
from ..errors import BadArgument, BadIndex, UnsupportedDType
from ..facts import certain
from ..indices import array_of, from_start, has_arrays
from ..values import Array
from .axes import one_axis
from .broadcast import broadcast_shapes, broadcast_to
from .cast import as_value, astype
from .compare import where
from .create import full_like
from .elementwise import common_dtype

__all__ = ["searchsorted", "take_along_axis"]


def take_along_axis(x: Any, indices: Any, axis: int | None = -1) -> Array:
    """`x[..., indices, ...]` along `axis` (flattened for None): the elements of `x` with these indices.

    `x` and `indices` have one rank, and broadcast together in the other dimensions. Traced indices never wrap; those
    out of range give 0. Static ones (NumPy arrays) count from the end if negative, as in NumPy. The values go through
    SMEM. Raises `BadIndex`, `IndexOutOfRange`, `ShapeMismatch`.

    >>> run(lambda x, i: kd.take_along_axis(x, i), [5, 6, 7], [2, 0, 2, 9])
    [7 5 7 0]
    """
    op = "take_along_axis"
    value = as_value(x, op)
    if axis is None:
        from .shape import reshape

        value, axis = reshape(value, (value.size,)), 0
    dim = one_axis(axis, value.ndim, value.shape)
    index = _index(indices, value.shape[dim], dim)
    if index.ndim != value.ndim:
        what = f"indices of rank {index.ndim} along an axis of shape {value.shape}"
        raise BadIndex(what=what, hint="give them the rank of the value: `indices[:, None]` and the like add axes")
    rest = [tuple(1 if i == dim else n for i, n in enumerate(v.shape)) for v in (value, index)]
    shape = list(broadcast_shapes(rest, op))
    shape[dim] = index.shape[dim]
    return taken(value, broadcast_to(index, tuple(shape)), dim, op)


def _index(indices: Any, extent: int, dim: int) -> Array:
    if isinstance(indices, (list, np.ndarray)):
        static = array_of(indices)
        if static.dtype.kind in "iu":
            return as_value(from_start(static, dim, extent), "take_along_axis")
        indices = static
    index = as_value(indices, "take_along_axis")
    if not index.dtype.is_integer:
        raise BadIndex(what=f"a {index.dtype} value", hint="index by integers; choose by bools with `kd.where`")
    return index


def taken(value: Array, index: Array, dim: int, op: str) -> Array:
    """Elements of a value along a dimension, one for each index; the other dimensions of both broadcast. Through SMEM."""
    from .create import broadcasted_iota, full
    from .ref import load
    from .scope import allocate_own, scope

    if value.dtype.is_packed:  # two elements share a byte of SMEM, and an index can't tell them apart
        wide = dt.float16 if value.dtype is dt.float4_e2m1fn else dt.int8  # which have all its values
        return astype(taken(astype(value, wide), index, dim, op), value.dtype)
    extent = value.shape[dim]
    if 0 in index.shape or 0 in value.shape:
        return full(index.shape, 0, value.dtype)
    known = certain(index.facts, index.dtype)
    mask: Any = None
    if known is None or known.lo < 0 or known.hi >= extent:
        mask = index < extent
        if index.dtype.is_signed:
            mask = mask & (index >= 0)
    narrow = astype(index, dt.int32)
    place = tuple(
        narrow if i == dim else broadcasted_iota(dt.int32, index.shape, i) if n > 1 else 0
        for i, n in enumerate(value.shape)
    )
    with scope():
        held = allocate_own(value.shape, value.dtype, f"{op} operand")
        held[...] = value
        return load(held, place, mask=mask, fill=None if mask is None else 0)


def searchsorted(sorted: Any, values: Any, side: Literal["left", "right"] = "left") -> Array:
    """The index (int32) at which each of `values` belongs in `sorted`, as in NumPy.

    `sorted` is a value of rank 1 in ascending order. `side`: "left" is before equal elements, "right" after them. NaN
    comes last. Each lane makes a binary search in SMEM.

    >>> run(lambda s, v: kd.searchsorted(s, v), [1, 3, 3, 7], [0, 3, 8])
    [0 1 4]
    >>> run(lambda s, v: kd.searchsorted(s, v, side="right"), [1, 3, 3, 7], [0, 3, 8])
    [0 3 4]
    """
    from .create import full
    from .logic import logical_not
    from .ref import load
    from .scope import allocate_own, scope

    op = "searchsorted"
    dtype = common_dtype((sorted, values), op)
    if dtype.kind is dt.Kind.OPAQUE:
        raise UnsupportedDType(op=op, dtype=dtype, hint=dtype.only_copied)
    table, value = as_value(sorted, op, dtype), as_value(values, op, dtype)
    if table.ndim != 1:
        raise BadArgument(op=op, what=f"sorted of shape {table.shape}", hint="pass a value of rank 1 to search in")
    count = table.shape[0]
    place: Any = full(value.shape, 0, dt.int32)
    if not count or 0 in value.shape:
        return place
    with scope():
        held = allocate_own(table.shape, dtype, f"{op} operand")
        held[...] = table
        step = 1 << count.bit_length() - 1
        while step:
            further = place + step
            inside = further <= count
            at = (further - 1).astype(dt.int32)
            found: Any = load(held, (_within(at, count),))
            goes: Any = _less(found, value) if side == "left" else logical_not(_less(value, found))
            place = _chosen(inside & goes, further, place)
            step //= 2
    return place


def _within(index: Any, count: int) -> Any:
    from .compare import minimum

    return minimum(index, count - 1)


def _chosen(condition: Any, x: Any, y: Any) -> Any:
    from .compare import where

    return where(condition, x, y)


def _less(a: Any, b: Any) -> Any:
    """Whether a comes before b: NaN comes last."""
    from .numeric import isnan

    before = a < b
    return before | (isnan(b) & ~isnan(a)) if a.dtype.is_float else before


def element(value: Array, index: Any) -> Array:
    """`value[index]`, as `shape.getitem`, and by arrays of integers. Raises `BadIndex`, `IndexOutOfRange`."""
    from .shape import getitem

    items = index if isinstance(index, tuple) else (index,)
    return gathered(value, items) if has_arrays(items) else getitem(value, index)


def gathered(value: Array, items: tuple[Any, ...]) -> Array:
    """`value[items]`, of which some are arrays of integers, through SMEM. Traced indices out of range give 0."""
    from ..indices import is_index
    from ..refs import Ref
    from .logic import logical_and
    from .ref import load
    from .scope import allocate_own, scope
    from .shape import reshape

    with scope():
        held: Ref = allocate_own(value.shape, value.dtype, "gather operand")
        held[...] = value
        entries = held.normalise(items)
        place: list[Any] = []
        inside: Any = None
        for dim, item in entries:
            if dim is None or not (isinstance(item, (list, np.ndarray)) or (isinstance(item, Array) and item.ndim)):
                place.append(item)
                continue
            index, extent = _index(item, value.shape[dim], dim), value.shape[dim]
            known = certain(index.facts, index.dtype)
            if known is None or known.lo < 0 or known.hi >= extent:
                good = logical_and(index >= 0, index < extent)
                inside = good if inside is None else logical_and(inside, good)
                index = where(good, index, 0)
            place.append(index)
        found = load(held, tuple(place))
        if inside is None:
            return found
        # the position of the arrays' dimensions, as in gather.py
        arrays = [isinstance(p, Array) and bool(p.ndim) for p in place]
        at = [i for i, (a, p) in enumerate(zip(arrays, place, strict=True)) if a or (p is not None and is_index(p))]
        together = at == list(range(at[0], at[0] + len(at)))
        before = at[0] if together else 0
        common = broadcast_shapes([p.shape for a, p in zip(arrays, place, strict=True) if a], "gather")
        after = found.ndim - before - len(common)
        inside = reshape(broadcast_to(inside, common), (*common, *(1,) * after))
        return where(broadcast_to(inside, found.shape), found, full_like(found, 0))
