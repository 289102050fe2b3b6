"""Reductions: registers in a tree, lanes by butterfly shuffles, warps through SMEM. Always in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.layout import LANE_BITS, Layout
from kernel_dsl.ops.reduce import ArgReduce, Reduce, Reduction

from ..context import Context, Rules
from ..llvm_types import integer_type, kind_letter, llvm_type, suffix
from ..value import Regs, V
from .access import emit_load, emit_store, inside

T = TypeVar("T")
_COMBINE = {
    (Reduction.SUM, "f"): "fadd {t} %s, %s",
    (Reduction.SUM, "i"): "add {t} %s, %s",
    (Reduction.PROD, "f"): "fmul {t} %s, %s",
    (Reduction.PROD, "i"): "mul {t} %s, %s",
    (Reduction.MAX, "f"): "call {t} @llvm.maximum.{s}({t} %s, {t} %s)",
    (Reduction.MIN, "f"): "call {t} @llvm.minimum.{s}({t} %s, {t} %s)",
    (Reduction.MAX, "i"): "call {t} @llvm.smax.{s}({t} %s, {t} %s)",
    (Reduction.MIN, "i"): "call {t} @llvm.smin.{s}({t} %s, {t} %s)",
    (Reduction.MAX, "u"): "call {t} @llvm.umax.{s}({t} %s, {t} %s)",
    (Reduction.MIN, "u"): "call {t} @llvm.umin.{s}({t} %s, {t} %s)",
    (Reduction.AND, "i"): "and {t} %s, %s",
    (Reduction.OR, "i"): "or {t} %s, %s",
}


def identity(ctx: Context, kind: Reduction, dtype: DType) -> V:
    """The neutral element."""
    if kind in (Reduction.SUM, Reduction.OR):
        return ctx.e.literal(0 if not dtype.is_float else -0.0, dtype)
    if kind in (Reduction.PROD, Reduction.AND):
        return ctx.e.literal(-1 if kind is Reduction.AND and not dtype.is_bool else 1, dtype)
    largest = kind is Reduction.MIN
    if dtype.is_float:
        return ctx.e.literal(float("inf") if largest else float("-inf"), dtype)
    low = -(1 << dtype.bits - 1) if dtype.is_signed else 0
    high = low + (1 << dtype.bits) - 1
    return ctx.e.literal(high if largest else low, dtype)


def in_a_tree(pair: Callable[[T, T], T], items: list[T]) -> T:
    """Combine neighbours, then neighbours of the results, until one is left."""
    while len(items) > 1:
        items = [pair(*items[i : i + 2]) if i + 1 < len(items) else items[i] for i in range(0, len(items), 2)]
    return items[0]


class Combiner:
    """Combines pairs of registers of one dtype."""

    def __init__(self, ctx: Context, kind: Reduction, dtype: DType) -> None:
        self.ctx = ctx
        self.kind = kind
        self.type: str = llvm_type(dtype)
        found = _COMBINE.get((kind, kind_letter(dtype))) or _COMBINE[(kind, "i")]
        self.template: str = found.replace("{t}", self.type).replace("{s}", suffix(self.type))
        self.identity: V = identity(ctx, kind, dtype)

    def pair(self, a: V, b: V) -> V:
        return self.ctx.e.v(self.template % (a, b), self.type)

    def tree(self, names: Regs) -> V:
        """Combine all, neighbours first: a tree has a short chain and a small rounding error."""
        return in_a_tree(self.pair, names)


def lower_reduce(ctx: Context, op: Reduce) -> None:
    source = layout_of(op.x)
    dtype: DType = op.x.type.dtype
    shape: tuple[int, ...] = op.x.type.shape
    combine = Combiner(ctx, op.kind, dtype)
    names = masked(ctx, ctx.regs(op.x), source, shape, op.axes, identity(ctx, op.kind, dtype))
    kept = source.reduce(op.axes)
    groups: dict[tuple[int, ...], Regs] = {coord: [] for coord in kept.register_coords}
    for name, coord in zip(names, source.register_coords, strict=True):
        groups[tuple(0 if d in op.axes else c for d, c in enumerate(coord))].append(name)
    partial = [combine.tree(group) for group in groups.values()]
    for bit in range(LANE_BITS):
        found = source.lanes[bit]
        if found is not None and found[0] in op.axes:
            partial = [combine.pair(p, shuffle(ctx, p, "bfly", 1 << bit)) for p in partial]
    warps = [i for i, b in enumerate(source.warps) if b is not None and b[0] in op.axes]
    if warps:
        partial = [combine.tree(parts) for parts in gather_warps(ctx, partial, dtype, kept, warps)]
    ctx.values[op.result] = partial


def masked(ctx: Context, names: Regs, layout: Layout, shape: tuple[int, ...], axes: tuple[int, ...], other: V) -> Regs:
    """Registers, with `other` in place of elements past the shape along one of the axes."""
    out: Regs = []
    for name, coord in zip(names, layout.register_coords, strict=True):
        predicate: V | None = None
        for axis in axes:
            predicate = ctx.e.both(predicate, inside(ctx, layout, axis, shape[axis], coord[axis]))
        out.append(choose(predicate, name, other))
    return out


def choose(predicate: V | None, name: V, other: V) -> V:
    """A register if the predicate holds (None: always), else the other."""
    if predicate is None:
        return name
    return other if predicate == "false" else predicate.where(name, other)


def shuffle(ctx: Context, x: V, mode: str, which: str | int) -> V:
    """The register of another lane of the warp, in 32-bit words. PTX `shfl.sync`.

    "bfly": of the lane whose number differs in the bits of `which`; "idx": of the lane with this number (i32).
    """

    t = "float" if x.type == "float" else "i32"
    call, rest = f"call {t} @llvm.nvvm.shfl.sync.{mode}.{suffix(t)}(i32 -1, {t} ", f", i32 {which}, i32 31) #0"

    def word(x: V) -> V:
        return ctx.e.v(f"{call}{x.name}{rest}", t)

    if x.type in ("float", "i32"):
        return word(x)
    bits = x.bitcast(integer_type(x.type))
    if bits.type != "i64":
        return word(bits.zext("i32")).trunc(bits.type).bitcast(x.type)
    low, high = bits.trunc("i32"), (bits >> 32).trunc("i32")
    low, high = word(low).zext("i64"), word(high).zext("i64")
    return (low | (high << 32)).bitcast(x.type)


def gather_warps(ctx: Context, partial: Regs, dtype: DType, kept: Layout, warps: list[int]) -> list[Regs]:
    """For each register, the parts of all warps along these warp bits, in order. Through SMEM."""
    item = dtype.itemsize
    count = 1 << len(warps)
    lanes = [i for i, b in enumerate(kept.lanes) if b is not None]
    others = [i for i in range(2) if i not in warps]
    # a slot holds the parts to combine, side by side; slots are ordered by lane, other warps, register
    weights: list[tuple[int, int]] = [(LANE_BITS + w, 1 << i) for i, w in enumerate(warps)]
    slots = 0
    for bit in [*lanes, *(LANE_BITS + w for w in others)]:
        weights.append((bit, count << slots))
        slots += 1
    stride = (count << slots) * item
    fit = max(ctx.exchange_room() // stride, 1)
    if len(partial) > fit:  # process as many at a time as the exchange space holds
        groups = [partial[i : i + fit] for i in range(0, len(partial), fit)]
        return [parts for group in groups for parts in gather_warps(ctx, group, dtype, kept, warps)]
    base = ctx.exchange(stride * len(partial))
    mine = ctx.lane_sum([(bit, w * item) for bit, w in weights])
    where = base + mine
    idle = sum(1 << i for i, b in enumerate(kept.lanes) if b is None)
    owner = (ctx.local_thread().once & idle).once.equal(0) if idle else None
    for i, name in enumerate(partial):
        emit_store(ctx, "shared", (where, i * stride), dtype, [name], owner)
    ctx.sync()
    slot = ctx.lane_sum([(bit, w * item) for bit, w in weights if w >= count])
    where = base + slot
    width = count if count * item <= 16 else 16 // item
    out: list[Regs] = []
    for i in range(len(partial)):
        parts: Regs = []
        for start in range(0, count, width):
            address = (where, i * stride + start * item)
            parts += emit_load(ctx, "shared", address, dtype, width, None, pure=False)
        out.append(parts)
    return out


# --- the index of an extreme ----------------------------------------------------------------------

Pair = tuple[V, V]


class ArgCombiner:
    """Keeps the better of two (value, index) pairs: the extreme, NaN above all, the lower index among equals."""

    def __init__(self, ctx: Context, kind: Reduction, dtype: DType) -> None:
        self.ctx = ctx
        self.dtype = dtype
        greater = kind is Reduction.MAX
        letter = kind_letter(dtype)
        words = {"f": (V.gt, V.lt), "i": (V.gt, V.lt), "u": (V.above, V.below)}[letter]
        self.better: Callable[[V, V], V] = words[0 if greater else 1]

    def pair(self, a: Pair, b: Pair) -> Pair:
        wins = self.better(a[0], b[0])
        lower = a[1].lt(b[1])
        if self.dtype.is_float:
            a_nan, b_nan = a[0].is_nan(), b[0].is_nan()
            only_a = a_nan & ~b_nan
            both = a_nan & b_nan
            same = both | a[0].equal(b[0])
            wins = wins | only_a
        else:
            same = a[0].equal(b[0])
        first = wins | (same & lower)
        return first.where(a[0], b[0]), first.where(a[1], b[1])

    def tree(self, pairs: list[Pair]) -> Pair:
        return in_a_tree(self.pair, pairs)


def lower_arg_reduce(ctx: Context, op: ArgReduce) -> None:
    source = layout_of(op.x)
    dtype: DType = op.x.type.dtype
    size: int = op.x.type.shape[op.axis]
    combine = ArgCombiner(ctx, op.kind, dtype)
    kept = source.reduce((op.axis,))
    lane = ctx.lane_coord(source, op.axis)
    groups: dict[tuple[int, ...], list[Pair]] = {coord: [] for coord in kept.register_coords}
    worst = identity(ctx, op.kind, dtype)
    for name, coord in zip(ctx.regs(op.x), source.register_coords, strict=True):
        index = lane.once.plus(coord[op.axis]) if coord[op.axis] else lane
        # past the end: never better, and a higher index than all others
        name = choose(inside(ctx, source, op.axis, size, coord[op.axis]), name, worst)
        groups[tuple(0 if d == op.axis else c for d, c in enumerate(coord))].append((name, index))
    partial = [combine.tree(group) for group in groups.values()]
    for bit in range(LANE_BITS):
        found = source.lanes[bit]
        if found is not None and found[0] == op.axis:
            partial = [
                combine.pair((a, b), (shuffle(ctx, a, "bfly", 1 << bit), shuffle(ctx, b, "bfly", 1 << bit)))
                for a, b in partial
            ]
    warps = [i for i, b in enumerate(source.warps) if b is not None and b[0] == op.axis]
    if warps:
        values = gather_warps(ctx, [p[0] for p in partial], dtype, kept, warps)
        indices = gather_warps(ctx, [p[1] for p in partial], dt.int32, kept, warps)
        partial = [combine.tree(list(zip(v, i, strict=True))) for v, i in zip(values, indices, strict=True)]
    ctx.values[op.result] = [p[1] for p in partial]


RULES: Rules = {Reduce: lower_reduce, ArgReduce: lower_arg_reduce}
