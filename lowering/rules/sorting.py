"""Sorting: keys that compare as unsigned integers, in SMEM, by Batcher's bitonic network.

K. E. Batcher, "Sorting networks and their applications", 1968. The network is a loop in the kernel, so that its code does
not grow with the length; a step is one pass of the warpgroup over all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import ml_dtypes

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.layout import pow2_ceil
from kernel_dsl.ops.sorting import ArgSort, Sort
from kernel_dsl.refs import View, ViewDim, strides_of

from ..context import WARPGROUP, Context, Rules
from ..emit import Regs, llvm_type
from .access import emit_load, emit_store, inside
from .exchange import Window, read_view


def _to_key(ctx: Context, name: str, dtype: DType, indices: bool) -> str:
    """An unsigned integer in the order of the element: NaN above all.

    Without `indices` every element has a key of its own: `_from_key` gives all its bits back. With them zeros are one
    key, and NaNs are, so that the indices decide.
    """
    e = ctx.e
    t, bits = llvm_type(dtype), dtype.bits
    i, top = f"i{bits}", -(1 << bits - 1)
    if not dtype.is_float:
        return e.v(f"xor {t} {name}, {top}") if dtype.is_signed else name
    raw = name if t == i else e.v(f"bitcast {t} {name} to {i}")

    def key(raw: str) -> str:
        negative = e.v(f"icmp slt {i} {raw}, 0")
        return e.v(f"xor {i} {raw}, {e.v(f'select i1 {negative}, {i} -1, {i} {top}')}")

    if not indices:
        return e.v(f"sub {i} {key(raw)}, {_nans(dtype)}")  # negative NaNs, which come first, wrap around
    magnitude = e.v(f"and {i} {raw}, {~top}")
    zero, nan = e.v(f"icmp eq {i} {magnitude}, 0"), e.v(f"icmp ugt {i} {magnitude}, {~top - _nans(dtype)}")
    ordered = key(e.v(f"select i1 {zero}, {i} 0, {i} {raw}"))
    return e.v(f"select i1 {nan}, {i} -1, {i} {ordered}")


def _nans(dtype: DType) -> int:
    """How many bit patterns of either sign are NaN."""
    return 1 if dtype == dt.float8_e4m3fn else (1 << ml_dtypes.finfo(dtype.numpy).nmant) - 1


def _from_key(ctx: Context, key: str, dtype: DType) -> str:
    e = ctx.e
    t, bits = llvm_type(dtype), dtype.bits
    i, top = f"i{bits}", -(1 << bits - 1)
    if not dtype.is_float:
        return e.v(f"xor {t} {key}, {top}") if dtype.is_signed else key
    key = e.v(f"add {i} {key}, {_nans(dtype)}")
    positive = e.v(f"icmp slt {i} {key}, 0")
    raw = e.v(f"xor {i} {key}, {e.v(f'select i1 {positive}, {i} {top}, {i} -1')}")
    return raw if t == i else e.v(f"bitcast {i} {raw} to {t}")


class _Network:
    """The keys of `rows` rows from `first` on in SMEM, each padded to a power of two, and their indices where wanted."""

    def __init__(self, ctx: Context, first: int, rows: int, length: int, key_bits: int, indices: bool) -> None:
        self.ctx = ctx
        self.first = first
        self.rows = rows
        self.length = length
        self.bits = key_bits
        self.item = key_bits // 8
        self.indices = indices
        count = self.rows * self.length
        keys = -(-count * self.item // 4) * 4  # the indices are aligned
        size = keys + (4 * count if indices else 0)
        self.base = ctx.exchange(size) if size <= ctx.exchange_room() else ctx.exchange_whole(size)
        self.index_base = ctx.e.v(f"add i32 {self.base}, {keys}") if indices else ""
        self.key = f"i{key_bits}"

    def at(self, base: str, index: str, item: int) -> tuple[str, int]:
        return self.ctx.e.v(f"add i32 {base}, {self.ctx.e.v(f'mul i32 {index}, {item}')}"), 0

    def load(self, index: str) -> tuple[str, str]:
        dtype = _uint(self.bits)
        (key,) = emit_load(self.ctx, "shared", self.at(self.base, index, self.item), dtype, 1, None, pure=False)
        if not self.indices:
            return key, ""
        where = self.at(self.index_base, index, 4)
        (number,) = emit_load(self.ctx, "shared", where, _uint(32), 1, None, pure=False)
        return key, number

    def store(self, index: str, pair: tuple[str, str], predicate: str | None) -> None:
        where = self.at(self.base, index, self.item)
        emit_store(self.ctx, "shared", where, _uint(self.bits), [pair[0]], predicate)
        if self.indices:
            emit_store(self.ctx, "shared", self.at(self.index_base, index, 4), _uint(32), [pair[1]], predicate)

    def sort(self) -> None:
        """for size = 2, 4 .. length: for step = size / 2 .. 1: compare and exchange all pairs, then meet."""
        ctx, e = self.ctx, self.ctx.e
        ctx.sync()
        sizes = _Loop(ctx, "2", f"icmp ule i32 {{i}}, {self.length}", "shl i32 {i}, 1")
        half = e.v(f"lshr i32 {sizes.index}, 1")
        steps = _Loop(ctx, half, "icmp ugt i32 {i}, 0", "lshr i32 {i}, 1")
        pairs = self.rows * self.length // 2
        lanes = _Loop(ctx, ctx.local_thread(), f"icmp ult i32 {{i}}, {pairs}", f"add i32 {{i}}, {WARPGROUP}")
        self._exchange(lanes.index, sizes.index, steps.index)
        lanes.close()
        ctx.sync()
        steps.close()
        sizes.close()

    def _exchange(self, pair: str, size: str, step: str) -> None:
        """Put pair number `pair` in order. Its lower index has a zero inserted at the bit of `step`."""
        e = self.ctx.e
        low_bits = e.v(f"and i32 {pair}, {e.v(f'sub i32 {step}, 1')}")
        high_bits = e.v(f"shl i32 {e.v(f'sub i32 {pair}, {low_bits}')}, 1")
        first = e.v(f"or i32 {high_bits}, {low_bits}")
        second = e.v(f"or i32 {first}, {step}")
        # the last merge of a row is ascending in every row: only the place within the row counts
        place = e.v(f"and i32 {first}, {self.length - 1}")
        descending = e.v(f"icmp ne i32 {e.v(f'and i32 {place}, {size}')}, 0")
        a, b = self.load(first), self.load(second)
        greater = e.v(f"icmp ugt {self.key} {a[0]}, {b[0]}")
        if self.indices:
            same = e.v(f"icmp eq {self.key} {a[0]}, {b[0]}")
            later = e.v(f"icmp ugt i32 {a[1]}, {b[1]}")
            greater = e.v(f"or i1 {greater}, {e.v(f'and i1 {same}, {later}')}")
        swap = e.v(f"xor i1 {greater}, {descending}")
        self.store(first, b, swap)
        self.store(second, a, swap)


def _uint(bits: int) -> DType:
    from kernel_dsl.dtypes import BY_NAME

    return BY_NAME[f"uint{bits}"]


class _Loop:
    """A loop over one i32, written by hand: everything until `close` is its body."""

    def __init__(self, ctx: Context, start: str, test: str, following: str) -> None:
        e = ctx.e
        self.e = e
        self.following = following
        before, self.header, body, self.end = e.block, e.label(), e.label(), e.label()
        e.jump(self.header)
        e.begin(self.header)
        self.index = e.phi("i32", [(start, before)])
        self.place = len(e.lines) - 1
        e.branch(e.v(test.format(i=self.index)), body, self.end)
        e.begin(body)

    def close(self) -> None:
        e = self.e
        value = e.v(self.following.format(i=self.index))
        text, comma, debug = e.lines[self.place].partition(", !dbg")
        e.lines[self.place] = f"{text}, [ {value}, %{e.block} ]{comma}{debug}"
        e.jump(self.header)
        e.begin(self.end)


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
    e = ctx.e
    dtype: DType = op.x.type.dtype
    shape: tuple[int, ...] = op.x.type.shape
    layout = layout_of(op.x)
    strides = (*(s * network.length for s in strides_of(shape[:-1])), 1)
    owner = ctx.owner(layout)
    lane = ctx.lane_sum([(i, b[1] * strides[b[0]]) for i, b in enumerate(layout.bits) if b is not None])
    along = ctx.lane_coord(layout, len(shape) - 1)
    for name, coord in zip(ctx.regs(op.x), layout.register_coords, strict=True):
        predicate = owner
        for dim, size in enumerate(shape):
            predicate = e.both(predicate, inside(ctx, layout, dim, size, coord[dim]))
        if predicate == "false":
            continue
        constant = sum(c * s for c, s in zip(coord, strides, strict=True)) - network.first * network.length
        place = e.v(f"add i32 {lane}, {constant}")
        if not whole:
            predicate = e.both(predicate, e.v(f"icmp ult i32 {place}, {network.rows * network.length}"))
        number = e.v(f"add i32 {along}, {coord[-1]}")
        network.store(place, (_to_key(ctx, name, dtype, network.indices), number), predicate)


def _fill(ctx: Context, network: _Network) -> None:
    """Pad every row with keys above all others, whose indices come last."""
    e = ctx.e
    count = network.rows * network.length
    loop = _Loop(ctx, ctx.local_thread(), f"icmp ult i32 {{i}}, {count}", f"add i32 {{i}}, {WARPGROUP}")
    number = e.v(f"or i32 {e.v(f'and i32 {loop.index}, {network.length - 1}')}, 1073741824")
    network.store(loop.index, ("-1", number), None)
    loop.close()
    ctx.sync()


def _view(shape: tuple[int, ...]) -> View:
    return View(tuple(ViewDim(n, i) for i, n in enumerate(shape)), (0,) * len(shape))


def _sorted(ctx: Context, op: Sort | ArgSort, indices: bool) -> Regs:
    """The first elements of every padded row: keys, or their indices."""
    shape: tuple[int, ...] = op.x.type.shape
    layout = layout_of(op.results[0])
    dtype = _uint(32 if indices else op.x.type.dtype.bits)
    out: Regs = []
    for network in _networks(ctx, op, indices):
        row = network.length * dtype.itemsize
        whole = network.rows == prod(shape[:-1])
        start = network.index_base if indices else network.base
        window = Window(start, network.first * row, network.rows * row, whole)
        strides = [s * network.length for s in strides_of(shape[:-1])] + [1]
        found = read_view(ctx, window, dtype, shape, _view(shape), (), layout, strides=strides)
        out = [r.onto(ctx, old) for r, old in zip(found, out or [""] * len(found), strict=True)]
    return out


def lower_sort(ctx: Context, op: Sort) -> None:
    dtype: DType = op.x.type.dtype
    ctx.values[op.result] = [_from_key(ctx, k, dtype) for k in _sorted(ctx, op, indices=False)]


def lower_argsort(ctx: Context, op: ArgSort) -> None:
    ctx.values[op.result] = _sorted(ctx, op, indices=True)


RULES: Rules = {Sort: lower_sort, ArgSort: lower_argsort}
