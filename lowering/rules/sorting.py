"""Sorting: keys that compare as unsigned integers, in SMEM, by Batcher's bitonic network.

K. E. Batcher, "Sorting networks and their applications", 1968. The network is a loop in the kernel, so that its code does
not grow with the length; a step is one pass of the warpgroup over all pairs.
"""

from __future__ import annotations

from math import prod

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import MemorySpace, RefType, layout_of
from kernel_dsl.layout import Layout, pow2_ceil
from kernel_dsl.ops.sorting import ArgSort, Sort
from kernel_dsl.refs import View, ViewDim, strides_of

from ..context import WARPGROUP, Buffer, Context
from ..emit import Regs, literal, llvm_type
from .access import Place, emit_load, emit_store, inside


def _to_key(ctx: Context, name: str, dtype: DType, equal_zeros: bool) -> str:
    """An unsigned integer in the order of the element: NaN above all."""
    e = ctx.e
    t, bits = llvm_type(dtype), dtype.bits
    if not dtype.is_float:
        return e.v(f"xor {t} {name}, {-(1 << bits - 1)}") if dtype.is_signed else name
    if equal_zeros:  # -0.0 and 0.0 keep their order
        zero = e.v(f"fcmp oeq {t} {name}, {literal(0, dtype)}")
        name = e.v(f"select i1 {zero}, {t} {literal(0, dtype)}, {t} {name}")
    raw = e.v(f"bitcast {t} {name} to i{bits}")
    negative = e.v(f"icmp slt i{bits} {raw}, 0")
    flip = e.v(f"select i1 {negative}, i{bits} -1, i{bits} {-(1 << bits - 1)}")
    key = e.v(f"xor i{bits} {raw}, {flip}")
    nan = e.v(f"fcmp uno {t} {name}, {name}")
    return e.v(f"select i1 {nan}, i{bits} -1, i{bits} {key}")


def _from_key(ctx: Context, key: str, dtype: DType) -> str:
    e = ctx.e
    t, bits = llvm_type(dtype), dtype.bits
    if not dtype.is_float:
        return e.v(f"xor {t} {key}, {-(1 << bits - 1)}") if dtype.is_signed else key
    positive = e.v(f"icmp slt i{bits} {key}, 0")
    flip = e.v(f"select i1 {positive}, i{bits} {-(1 << bits - 1)}, i{bits} -1")
    return e.v(f"bitcast i{bits} {e.v(f'xor i{bits} {key}, {flip}')} to {t}")


class _Network:
    """The keys of all rows in SMEM, each row padded to a power of two, and indices beside them where they are wanted."""

    def __init__(self, ctx: Context, shape: tuple[int, ...], key_bits: int, indices: bool) -> None:
        self.ctx = ctx
        self.length = pow2_ceil(shape[-1])
        self.rows = prod(shape[:-1])
        self.bits = key_bits
        self.item = key_bits // 8
        self.indices = indices
        count = self.rows * self.length
        keys = -(-count * self.item // 4) * 4  # the indices are aligned
        self.base = ctx.exchange(keys + (4 * count if indices else 0))
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


def _run(ctx: Context, op: Sort | ArgSort, indices: bool) -> tuple[_Network, Layout]:
    """Write keys, pad the rows, and sort."""
    e = ctx.e
    dtype: DType = op.x.type.dtype
    shape: tuple[int, ...] = op.x.type.shape
    layout = layout_of(op.x)
    network = _Network(ctx, shape, dtype.bits, indices)
    _fill(ctx, network)
    strides = (*(s * network.length for s in strides_of(shape[:-1])), 1)
    owner = ctx.owner(layout)
    terms = [(i, b[1] * strides[b[0]]) for i, b in enumerate(layout.bits) if b is not None]
    lane = ctx.lane_sum(terms)
    along = ctx.lane_coord(layout, len(shape) - 1)
    for name, coord in zip(ctx.regs(op.x), layout.register_coords, strict=True):
        predicate = owner
        for dim, size in enumerate(shape):
            predicate = e.both(predicate, inside(ctx, layout, dim, size, coord[dim]))
        if predicate == "false":
            continue
        constant = sum(c * s for c, s in zip(coord, strides, strict=True))
        place = e.v(f"add i32 {lane}, {constant}")
        number = e.v(f"add i32 {along}, {coord[-1]}")
        network.store(place, (_to_key(ctx, name, dtype, indices), number), predicate)
    network.sort()
    return network, layout_of(op.results[0])


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


def _read(ctx: Context, base: str, dtype: DType, shape: tuple[int, ...], length: int, layout: Layout) -> Regs:
    """The first elements of every padded row."""
    padded = (*shape[:-1], length)
    type = RefType(MemorySpace.SMEM, padded, dtype)
    place = Place(ctx, type, Buffer(base, strides_of(padded)), _view(shape), layout, ())
    out: Regs = []
    for coord in layout.register_coords:
        predicate = place.padding(coord)
        if predicate == "false":
            out.append("0")
        else:
            out += emit_load(ctx, "shared", place.address(coord), dtype, 1, predicate, pure=False)
    return out


def lower_sort(ctx: Context, op: Sort) -> None:
    network, layout = _run(ctx, op, indices=False)
    dtype: DType = op.x.type.dtype
    keys = _read(ctx, network.base, _uint(dtype.bits), op.x.type.shape, network.length, layout)
    ctx.values[op.result] = [_from_key(ctx, k, dtype) for k in keys]


def lower_argsort(ctx: Context, op: ArgSort) -> None:
    network, layout = _run(ctx, op, indices=True)
    ctx.values[op.result] = _read(ctx, network.index_base, _uint(32), op.x.type.shape, network.length, layout)


RULES = {Sort: lower_sort, ArgSort: lower_argsort}
