"""Functions of the language on NumPy arrays: with this module as `kd`, the text of a body computes what its kernel must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from kernel_dsl.dtypes import as_dtype
from tests.ops.test_random import words
from tests.ops.test_sorts import order

int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
float16, float32, float64, bool_ = np.float16, np.float32, np.float64, np.bool_
bfloat16, float8_e4m3fn, float8_e5m2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
float4_e2m1fn, float8_e8m0fnu = ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e8m0fnu

# --- memory --------------------------------------------------------------------------------------


class ds:  # noqa: N801
    """`size` indices from `start` on."""

    def __init__(self, start: Any, size: int, stride: int = 1) -> None:
        self.indices = int(start) + stride * np.arange(size)


class Ref:
    """An array that loads and stores change in place; elements outside it are zeros, and stores to them do nothing."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape = tuple(np.int32(n) for n in array.shape)
        self.dtype = array.dtype

    @property
    def at(self) -> Any:
        return _At(self)

    @property
    def T(self) -> Ref:  # noqa: N802
        return Ref(self.array.T)

    def reshape(self, *shape: int) -> Ref:
        view = self.array.view()
        view.shape = shape  # never a copy
        return Ref(view)

    def __getitem__(self, index: Any) -> Any:
        parts = _parts(index)
        if ds not in map(type, parts):
            return np.array(self.array[_plain(parts)])
        indices, inside = _chosen(self.array.shape, parts)
        return np.where(inside, self.array[indices], np.zeros((), self.dtype))

    def __setitem__(self, index: Any, value: Any) -> None:
        parts = _parts(index)
        value = np.asarray(value)
        assert value.dtype == self.dtype, "a stored value has the Ref's dtype"
        if ds not in map(type, parts):
            self.array[_plain(parts)] = value
            return
        indices, inside = _chosen(self.array.shape, parts)
        kept = np.broadcast_to(inside, value.shape)
        full = tuple(np.broadcast_to(i, value.shape)[kept] for i in indices)
        self.array[full] = value[kept]


class _At:
    def __init__(self, ref: Ref) -> None:
        self.ref = ref

    def __getitem__(self, index: Any) -> Ref:
        view = self.ref.array[(*_plain(_parts(index)), ...)]
        assert np.shares_memory(view, self.ref.array) or not view.size
        return Ref(view)


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _plain(parts: tuple[Any, ...]) -> Any:
    return tuple(int(p) if isinstance(p, np.ndarray) and not p.ndim else p for p in parts)


def _chosen(shape: tuple[int, ...], parts: tuple[Any, ...]) -> tuple[Any, Any]:
    """Index arrays of one dimension for each axis, clipped, and which of them are inside."""
    indices: list[Any] = []
    inside: Any = True
    for axis, n in enumerate(shape):
        part = parts[axis] if axis < len(parts) else slice(None)
        along = part.indices if isinstance(part, ds) else np.arange(n)[part]
        along = along.reshape(-1, *(1 for _ in shape[axis + 1 :]))
        inside = inside & (along >= 0) & (along < n)
        indices.append(np.clip(along, 0, n - 1 if n else 0))
    return tuple(indices), inside


def SMEM(shape: tuple[int, ...], dtype: Any) -> Ref:  # noqa: N802
    return Ref(np.full(shape, 77, dtype))


def run_scoped(f: Callable[..., Any], *types: Ref) -> Any:
    return f(*types)


def load(ref: Ref, index: Any = ..., *, layout: Any = None, mask: Any = None, fill: Any = None) -> Any:
    value = ref[index]
    return value if mask is None else np.where(mask, value, np.asarray(fill or 0).astype(value.dtype))


def store(ref: Ref, index: Any, value: Any, *, mask: Any = True) -> None:
    ref[index] = np.where(mask, value, ref[index])


def atomic_add(ref: Ref, value: Any, *, mask: Any = True) -> Any:
    old = np.array(ref.array)
    ref.array[...] += np.where(mask, value, 0).astype(ref.dtype)
    return old


def atomic_max(ref: Ref, value: Any, *, mask: Any = True) -> Any:
    old = np.array(ref.array)
    ref.array[...] = np.where(mask, np.maximum(old, value), old)
    return old


# --- control flow --------------------------------------------------------------------------------


def fori_loop(lower: Any, upper: Any, body: Callable[..., Any], value: Any, *, unroll: Any = None) -> Any:
    for i in range(int(lower), int(upper)):
        value = body(np.array(i, np.int32), value)
    return value


def loop(lower: Any, upper: Any, *, step: int = 1, unroll: Any = None, init_carry: Any = None) -> Any:
    def run(body: Callable[..., Any]) -> Any:
        carry = init_carry
        for i in range(int(lower), int(upper), step):
            at = np.array(i, np.int32)
            carry = body(at) if init_carry is None else body(at, carry)
        return carry

    return run


def while_loop(condition: Callable[..., Any], body: Callable[..., Any], value: Any) -> Any:
    while condition(value):
        value = body(value)
    return value


def cond(p: Any, yes: Callable[..., Any], no: Callable[..., Any], *operands: Any) -> Any:
    return (yes if p else no)(*operands)


def switch(index: Any, branches: list[Callable[..., Any]], *operands: Any) -> Any:
    return branches[int(np.clip(index, 0, len(branches) - 1))](*operands)


def when(p: Any) -> Any:
    return lambda body: body() if p else None


# --- values --------------------------------------------------------------------------------------


def astype(x: Any, dtype: Any) -> Any:
    x = np.asarray(x)
    if np.dtype(dtype).kind in "iu" and x.dtype.kind not in "iub":
        info, wide = np.iinfo(dtype), np.nan_to_num(x.astype(np.float64), nan=0.0)
        return np.where(wide >= info.max, info.max, np.clip(wide, info.min, info.max - 1)).astype(dtype)
    return x.astype(dtype)


def layout_cast(x: Any, layout: Any) -> Any:
    return x


def Layout(*fields: Any) -> None:  # noqa: N802
    return None


def full(shape: Any, value: Any, dtype: Any) -> Any:
    return np.full(shape, value, dtype)


def arange(n: int) -> Any:
    return np.arange(n, dtype=np.int32)


def _summed(x: Any) -> Any:
    wide = np.int32 if x.dtype.kind in "ib" else np.uint32
    return x.astype(wide) if x.dtype.kind in "iub" and x.dtype.itemsize < 4 else x


def sum(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    x = _summed(np.asarray(x))
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype))


def max(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    return np.asarray(np.max(x, axis=axis, keepdims=keepdims))


def argmax(x: Any, axis: Any = None) -> Any:
    return np.asarray(np.argmax(x, axis=axis)).astype(np.int32)


def argmin(x: Any, axis: Any = None) -> Any:
    return np.asarray(np.argmin(x, axis=axis)).astype(np.int32)


def where(p: Any, x: Any, y: Any) -> Any:
    """A Python number takes the dtype of the other side."""
    weak = [isinstance(v, (int, float)) for v in (x, y)]
    x = np.asarray(x).astype(y.dtype) if weak[0] else x
    return np.where(p, x, np.asarray(y).astype(x.dtype) if weak[1] else y)


maximum, minimum, concatenate, stack, pad, flip = np.maximum, np.minimum, np.concatenate, np.stack, np.pad, np.flip
transpose, reshape, expand_dims, broadcast_to, squeeze, gcd = (
    np.transpose, np.reshape, np.expand_dims, np.broadcast_to, np.squeeze, np.gcd
)  # fmt: skip


def mulhi(x: Any, y: Any) -> Any:
    x, y = np.asarray(x), np.asarray(y)
    bits = x.dtype.itemsize * 8
    made = (x.astype(object) * y.astype(object)) >> bits
    unsigned = np.asarray(made & ((1 << bits) - 1)).astype(f"u{x.dtype.itemsize}")
    return unsigned.astype(x.dtype) if x.dtype.kind == "u" else unsigned.view(x.dtype)


def _running(name: str, first: Callable[[Any], Any]) -> Any:
    def run(x: Any, axis: Any = None, *, reverse: bool = False, exclusive: bool = False) -> Any:
        x = np.asarray(x)
        if name in ("add", "multiply"):
            x = _summed(x)
        if axis is None:
            x, axis = x.reshape(-1), 0
        rows = np.flip(x, axis) if reverse else x
        made = getattr(np, name).accumulate(rows, axis=axis, dtype=x.dtype) if x.size else rows
        if exclusive and x.size:
            head = np.full_like(np.take(made, [0], axis), first(x.dtype))
            made = np.concatenate([head, np.take(made, range(x.shape[axis] - 1), axis)], axis)
        return np.flip(made, axis) if reverse else made

    return run


def _least(dtype: Any) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else (False if dtype.kind == "b" else -np.inf)


def _greatest(dtype: Any) -> Any:
    return np.iinfo(dtype).max if dtype.kind in "iu" else (True if dtype.kind == "b" else np.inf)


cumsum, cumprod = _running("add", lambda d: 0), _running("multiply", lambda d: 1)
cummax, cummin = _running("maximum", _least), _running("minimum", _greatest)


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [x for key in sorted(tree) for x in _leaves(tree[key])]
    return [x for part in tree for x in _leaves(part)] if isinstance(tree, (tuple, list)) else [tree]


def _mapped(f: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _mapped(f, value) for key, value in tree.items()}
    return type(tree)(_mapped(f, x) for x in tree) if isinstance(tree, (tuple, list)) else f(tree)


def associative_scan(fn: Callable[..., Any], tree: Any, axis: int = 0, *, reverse: bool = False) -> Any:
    """One element after another; a slice keeps the axis, with one element."""
    n = _leaves(tree)[0].shape[axis]
    places = range(n - 1, -1, -1) if reverse else range(n)
    rows: list[Any] = []
    for place in places:
        here = _mapped(lambda x, p=place: np.take(x, p, axis), tree)
        rows.append(fn(rows[-1], here) if rows else here)
    rows = rows[::-1] if reverse else rows
    flat = [np.stack(column, axis) for column in zip(*(_leaves(row) for row in rows), strict=True)]
    left = iter(flat)
    return _filled(tree, left)


def _filled(tree: Any, left: Any) -> Any:
    if isinstance(tree, dict):
        made = {key: _filled(tree[key], left) for key in sorted(tree)}
        return {key: made[key] for key in tree}
    return type(tree)(_filled(x, left) for x in tree) if isinstance(tree, (tuple, list)) else next(left)


def sort(keys: Any, *values: Any, axis: int | None = -1, descending: bool = False) -> Any:
    if axis is None:
        keys, values, axis = keys.reshape(-1), tuple(v.reshape(-1) for v in values), 0
    places = order(keys, axis, descending)
    made = tuple(np.take_along_axis(x, places, axis) for x in (keys, *values))
    return made if values else made[0]


def argsort(x: Any, axis: int | None = -1, *, descending: bool = False) -> Any:
    if axis is None:
        x, axis = x.reshape(-1), 0
    return order(x, axis, descending).astype(np.int32)


def top_k(x: Any, k: int, axis: int = -1) -> Any:
    places = np.take(order(x, axis, True), range(k), axis)
    return np.take_along_axis(x, places, axis), places.astype(np.int32)


def take_along_axis(x: Any, indices: Any, axis: int | None = -1) -> Any:
    if axis is None:
        x, axis = x.reshape(-1), 0
    wide = indices.astype(object) if indices.dtype == np.uint64 else indices.astype(np.int64)
    good = ((wide >= 0) & (wide < x.shape[axis])).astype(bool)
    made = np.take_along_axis(x, np.where(good, wide, 0).astype(np.int64), axis)
    return np.where(good, made, np.zeros((), x.dtype))


def searchsorted(sorted: Any, values: Any, side: str = "left") -> Any:
    return np.searchsorted(sorted, values, side=side).astype(np.int32)


def dot(a: Any, b: Any, *, acc: Any = None, precision: Any = None) -> Any:
    """Of small integers, also those in floats, which are exact."""
    if a.dtype.kind in "iu":
        made = np.matmul(a.astype(np.int32), b.astype(np.int32))
    else:
        made = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(
            np.float64 if a.dtype == float64 else np.float32
        )
    return made if acc is None else made + acc


matmul = dot


class random:  # noqa: N801
    @staticmethod
    def bits(seed: Any, shape: Any, offset: Any = 0) -> Any:
        return words(int(seed), int(np.prod(shape)), int(offset)).reshape(shape)

    @staticmethod
    def uniform(seed: Any, shape: Any, dtype: Any = np.float32, offset: Any = 0) -> Any:
        return ((random.bits(seed, shape, offset) >> 8).astype(np.float64) / 2**24).astype(np.float32)

    @staticmethod
    def bernoulli(seed: Any, p: Any, shape: Any, offset: Any = 0) -> Any:
        return random.uniform(seed, shape, offset=offset) < p


def numpy(name: str) -> Any:
    return as_dtype(name).numpy
