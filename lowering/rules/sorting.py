"""Sorting: keys that compare as unsigned integers, in SMEM, by Batcher's bitonic network.

K. E. Batcher, "Sorting networks and their applications", 1968. The network is a loop in the kernel, so that its code does
not grow with the length; a step is one pass of the warpgroup over all pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import ml_dtypes

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import BY_NAME, DType
from kernel_dsl.ir import layout_of
from kernel_dsl.layout import pow2_ceil
from kernel_dsl.ops.sorting import ArgSort, Sort
from kernel_dsl.refs import View, ViewDim, strides_of

from ..context import Context, Rules
from ..llvm_types import llvm_type
from ..position import WARPGROUP
from ..value import Regs, V
from ..writer import Loop
from .access import emit_load, emit_store, inside_shape
from .exchange import Window, read_view

Pair = tuple[V, V]  # a key and its index


def _to_key(name: V, dtype: DType, indices: bool, descending: bool) -> V:
    """An unsigned integer whose order is that of the elements, or the opposite with `descending`; NaN is above all.
    Without `indices` every element has its own key, and `_from_key` restores all of its bits. With them both zeros have
    one key, and so have all NaNs, so that the indices decide.
    """
    top = -(1 << dtype.bits - 1)
    if not dtype.is_float:
        return name ^ _turning(dtype, descending)
    raw = name.bitcast(f"i{dtype.bits}")

    def key(raw: V) -> V:
        return raw ^ raw.lt(0).where(-1, top, raw.type)

    if not indices:
        number = key(raw) - _nans(dtype)  # negative NaNs, which come first, wrap around
        return _turned(number, dtype) if descending else number
    magnitude = raw & ~top
    zero, nan = magnitude.equal(0), magnitude.above(~top - _nans(dtype))
    ordered = key(zero.where(0, raw))
    return nan.where(-1, ordered ^ -1 if descending else ordered)


def _turning(dtype: DType, descending: bool) -> int:
    """The bits to flip between an integer and its key: for its sign, and for `descending`."""
    return (-(1 << dtype.bits - 1) if dtype.is_signed else 0) ^ (-1 if descending else 0)


def _turned(key: V, dtype: DType) -> V:
    """The keys of numbers in the opposite order. The keys of NaN, which are above them, stay."""
    numbers = (1 << dtype.bits) - 2 * _nans(dtype)
    return key.below(numbers).where(numbers - 1 - key, key)


def _nans(dtype: DType) -> int:
    """The number of bit patterns of either sign that are NaN."""
    return 1 if dtype == dt.float8_e4m3fn else (1 << ml_dtypes.finfo(dtype.numpy).nmant) - 1


def _from_key(key: V, dtype: DType, descending: bool) -> V:
    top = -(1 << dtype.bits - 1)
    if not dtype.is_float:
        return key ^ _turning(dtype, descending)
    key = _turned(key, dtype) if descending else key
    key = key + _nans(dtype)
    return (key ^ key.lt(0).where(top, -1, key.type)).bitcast(llvm_type(dtype))


class _Network:
    """The keys of `rows` rows from `first` on in SMEM, each padded to a power of two, with their indices if needed."""

    def __init__(self, ctx: Context, first: int, rows: int, length: int, key_bits: int, indices: bool) -> None:
        self.ctx = ctx
        self.first = first
        self.rows = rows
        self.length = length
        self.key = BY_NAME[f"uint{key_bits}"]
        self.indices = indices
        count = self.rows * self.length
        keys = -(-count * self.key.itemsize // 4) * 4  # the indices are aligned
        size = keys + (4 * count if indices else 0)
        self.base = ctx.exchange(size) if size <= ctx.exchange_room() else ctx.exchange_whole(size)
        self.index_base = self.base + keys if indices else self.base

    def load(self, index: V) -> Pair:
        where = self.base + index.times(self.key.itemsize), 0
        (key,) = emit_load(self.ctx, "shared", where, self.key, 1, None, pure=False)
        if not self.indices:
            return key, key
        where = self.index_base + index * 4, 0
        (number,) = emit_load(self.ctx, "shared", where, dt.uint32, 1, None, pure=False)
        return key, number

    def store(self, index: V, pair: Pair, predicate: V | None) -> None:
        where = self.base + index.times(self.key.itemsize), 0
        emit_store(self.ctx, "shared", where, self.key, [pair[0]], predicate)
        if self.indices:
            where = self.index_base + index * 4, 0
            emit_store(self.ctx, "shared", where, dt.uint32, [pair[1]], predicate)

    def sort(self) -> None:
        """for size = 2, 4 .. length: for step = size / 2 .. 1: compare and exchange all pairs, then synchronise."""
        ctx = self.ctx
        ctx.sync()
        sizes = _Counter(ctx, ctx.e.i32(2), lambda i: i.at_most(self.length))
        steps = _Counter(ctx, sizes.index >> 1, lambda i: i.above(0))
        pairs = self.rows * self.length // 2
        lanes = _Counter(ctx, ctx.local_thread(), lambda i: i.below(pairs))
        self._exchange(lanes.index, sizes.index, steps.index)
        lanes.close(lanes.index + WARPGROUP)
        ctx.sync()
        steps.close(steps.index >> 1)
        sizes.close(sizes.index << 1)

    def _exchange(self, pair: V, size: V, step: V) -> None:
        """Put pair number `pair` in order. Its lower index has a zero inserted at the bit of `step`."""
        low_bits = pair & step - 1
        high_bits = (pair - low_bits) << 1
        first = high_bits | low_bits
        second = first | step
        # the last merge of a row is ascending in every row: only the place within the row counts
        descending = (first & self.length - 1 & size).differs(0)
        a, b = self.load(first), self.load(second)
        greater = a[0].above(b[0])
        if self.indices:
            greater = greater | (a[0].equal(b[0]) & a[1].above(b[1]))
        swap = greater ^ descending
        self.store(first, b, swap)
        self.store(second, a, swap)


class _Counter:
    """A loop over one i32, while `test` holds: everything until `close` is its body."""

    def __init__(self, ctx: Context, start: V, test: Callable[[V], V]) -> None:
        e = self.e = ctx.e
        header, body, self.end = e.label(), e.label(), e.label()
        self.loop = Loop(e, [start], header)
        (self.index,) = self.loop.carried
        e.branch(test(self.index), body, self.end)
        e.begin(body)

    def close(self, following: V) -> None:
        """`following`: the next index."""
        self.loop.close([following])
        self.e.begin(self.end)


def _networks(ctx: Context, op: Sort | ArgSort, indices: bool) -> Iterator[_Network]:
    """The rows sorted, as many at a time as the exchange space holds."""
    dtype: DType = op.x.type.dtype
    shape: tuple[int, ...] = op.x.type.shape
    length, rows = pow2_ceil(shape[-1]), prod(shape[:-1])
    fit = max(ctx.exchange_room() // (length * (dtype.itemsize + (4 if indices else 0))), 1)
    for first in range(0, rows, fit):
        network = _Network(ctx, first, min(fit, rows - first), length, dtype.bits, indices)
        _fill(ctx, network)
        _write(ctx, op, network, whole=fit >= rows)
        network.sort()
        yield network


def _write(ctx: Context, op: Sort | ArgSort, network: _Network, whole: bool) -> None:
    """The keys of the network's rows; `whole`: those are all."""
    dtype: DType = op.x.type.dtype
    shape: tuple[int, ...] = op.x.type.shape
    layout = layout_of(op.x)
    strides = (*(s * network.length for s in strides_of(shape[:-1])), 1)
    owner = ctx.owner(layout)
    lane = ctx.lane_sum([(i, b[1] * strides[b[0]]) for i, b in enumerate(layout.bits) if b is not None])
    along = ctx.lane_coord(layout, len(shape) - 1)
    for name, coord in zip(ctx.regs(op.x), layout.register_coords, strict=True):
        predicate = inside_shape(ctx, layout, shape, coord, owner)
        if predicate == "false":
            continue
        constant = sum(c * s for c, s in zip(coord, strides, strict=True)) - network.first * network.length
        place = lane.plus(constant)
        if not whole:
            predicate = ctx.e.both(predicate, place.below(network.rows * network.length))
        number = along.plus(coord[-1])
        network.store(place, (_to_key(name, dtype, network.indices, op.descending), number), predicate)


def _fill(ctx: Context, network: _Network) -> None:
    """Pad every row with keys above all others, with the last indices."""
    count = network.rows * network.length
    loop = _Counter(ctx, ctx.local_thread(), lambda i: i.below(count))
    number = loop.index & network.length - 1 | 1 << 30
    network.store(loop.index, (ctx.e.value(-1, llvm_type(network.key)), number), None)
    loop.close(loop.index + WARPGROUP)
    ctx.sync()


def _view(shape: tuple[int, ...]) -> View:
    return View(tuple(ViewDim(n, i) for i, n in enumerate(shape)), (0,) * len(shape))


def _sorted(ctx: Context, op: Sort | ArgSort, indices: bool) -> Regs:
    """The first elements of every padded row: keys, or their indices."""
    shape: tuple[int, ...] = op.x.type.shape
    layout = layout_of(op.results[0])
    out: Regs = []
    for network in _networks(ctx, op, indices):
        dtype = dt.uint32 if indices else network.key
        row = network.length * dtype.itemsize
        whole = network.rows == prod(shape[:-1])
        start = network.index_base if indices else network.base
        window = Window(start, network.first * row, network.rows * row, whole)
        strides = [s * network.length for s in strides_of(shape[:-1])] + [1]
        found = read_view(ctx, window, dtype, shape, _view(op.results[0].type.shape), (), layout, strides=strides)
        out = [r.onto(old) for r, old in zip(found, out or [None] * len(found), strict=True)]
    return out


def lower_sort(ctx: Context, op: Sort) -> None:
    dtype: DType = op.x.type.dtype
    ctx.values[op.result] = [_from_key(k, dtype, op.descending) for k in _sorted(ctx, op, indices=False)]


def lower_argsort(ctx: Context, op: ArgSort) -> None:
    ctx.values[op.result] = _sorted(ctx, op, indices=True)


RULES: Rules = {Sort: lower_sort, ArgSort: lower_argsort}
