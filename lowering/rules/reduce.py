"""Reductions: registers in a tree, lanes by butterfly shuffles, warps through SMEM. Always in the same order."""

from __future__ import annotations

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.layout import LANE_BITS, Layout
from kernel_dsl.ops.reduce import ArgReduce, Reduce, Reduction

from ..context import Context, Rules
from ..emit import Regs, kind_letter, literal, llvm_type, suffix
from .access import emit_load, emit_store, inside

_COMBINE = {
    (Reduction.SUM, "f"): "fadd {t} {0}, {1}",
    (Reduction.SUM, "i"): "add {t} {0}, {1}",
    (Reduction.PROD, "f"): "fmul {t} {0}, {1}",
    (Reduction.PROD, "i"): "mul {t} {0}, {1}",
    (Reduction.MAX, "f"): "call {t} @llvm.maximum.{s}({t} {0}, {t} {1})",
    (Reduction.MIN, "f"): "call {t} @llvm.minimum.{s}({t} {0}, {t} {1})",
    (Reduction.MAX, "i"): "call {t} @llvm.smax.{s}({t} {0}, {t} {1})",
    (Reduction.MIN, "i"): "call {t} @llvm.smin.{s}({t} {0}, {t} {1})",
    (Reduction.MAX, "u"): "call {t} @llvm.umax.{s}({t} {0}, {t} {1})",
    (Reduction.MIN, "u"): "call {t} @llvm.umin.{s}({t} {0}, {t} {1})",
    (Reduction.AND, "i"): "and {t} {0}, {1}",
    (Reduction.OR, "i"): "or {t} {0}, {1}",
}


def _template(kind: Reduction, dtype: DType) -> str:
    letter = kind_letter(dtype)
    found = _COMBINE.get((kind, letter)) or _COMBINE[(kind, "i")]
    return found


def identity(kind: Reduction, dtype: DType) -> str:
    """The element that changes nothing, as LLVM text."""
    if kind in (Reduction.SUM, Reduction.OR):
        return literal(0 if not dtype.is_float else -0.0, dtype)
    if kind in (Reduction.PROD, Reduction.AND):
        return literal(-1 if kind is Reduction.AND and not dtype.is_bool else 1, dtype)
    largest = kind is Reduction.MIN
    if dtype.is_float:
        return literal(float("inf") if largest else float("-inf"), dtype)
    low = -(1 << dtype.bits - 1) if dtype.is_signed else 0
    high = low + (1 << dtype.bits) - 1
    return literal(high if largest else low, dtype)


class Combiner:
    """Combines pairs of registers of one dtype."""

    def __init__(self, ctx: Context, kind: Reduction, dtype: DType) -> None:
        self.ctx = ctx
        self.dtype = dtype
        self.t: str = llvm_type(dtype)
        self.s: str = suffix(dtype)
        self.template: str = _template(kind, dtype)

    def pair(self, a: str, b: str) -> str:
        return self.ctx.e.v(self.template.format(a, b, t=self.t, s=self.s))

    def tree(self, names: Regs) -> str:
        """All of them, neighbours first: a short chain and a small rounding error."""
        while len(names) > 1:
            names = [
                self.pair(names[i], names[i + 1]) if i + 1 < len(names) else names[i] for i in range(0, len(names), 2)
            ]
        return names[0]


def lower_reduce(ctx: Context, op: Reduce) -> None:
    source = layout_of(op.x)
    dtype: DType = op.x.type.dtype
    shape: tuple[int, ...] = op.x.type.shape
    combine = Combiner(ctx, op.kind, dtype)
    names = masked(ctx, ctx.regs(op.x), source, shape, op.axes, identity(op.kind, dtype), dtype)
    kept = source.reduce(op.axes)
    groups: dict[tuple[int, ...], Regs] = {coord: [] for coord in kept.register_coords}
    for name, coord in zip(names, source.register_coords, strict=True):
        groups[tuple(0 if d in op.axes else c for d, c in enumerate(coord))].append(name)
    partial = [combine.tree(group) for group in groups.values()]
    for bit in range(LANE_BITS):
        found = source.lanes[bit]
        if found is not None and found[0] in op.axes:
            partial = [combine.pair(p, shuffle_xor(ctx, p, 1 << bit, dtype)) for p in partial]
    warps = [i for i, b in enumerate(source.warps) if b is not None and b[0] in op.axes]
    if warps:
        partial = [combine.tree(parts) for parts in gather_warps(ctx, partial, dtype, kept, warps)]
    ctx.values[op.result] = partial


def masked(
    ctx: Context, names: Regs, layout: Layout, shape: tuple[int, ...], axes: tuple[int, ...], other: str, dtype: DType
) -> Regs:
    """Registers with `other` where the index along one of the axes is past the shape."""
    t = llvm_type(dtype)
    out: Regs = []
    for name, coord in zip(names, layout.register_coords, strict=True):
        predicate: str | None = None
        for axis in axes:
            predicate = ctx.e.both(predicate, inside(ctx, layout, axis, shape[axis], coord[axis]))
        if predicate == "false":
            name = other
        elif predicate is not None:
            name = ctx.e.v(f"select i1 {predicate}, {t} {name}, {t} {other}")
        out.append(name)
    return out


def shuffle_xor(ctx: Context, name: str, mask: int, dtype: DType) -> str:
    """The register of the lane whose number differs in `mask`. PTX `shfl.sync.bfly`."""
    return _shuffle(ctx, name, "bfly", str(mask), dtype)


def shuffle_index(ctx: Context, name: str, lane: str, dtype: DType) -> str:
    """The register of the lane of the warp with this number (i32). PTX `shfl.sync.idx`."""
    return _shuffle(ctx, name, "idx", lane, dtype)


def _shuffle(ctx: Context, name: str, mode: str, which: str, dtype: DType) -> str:
    e, t = ctx.e, llvm_type(dtype)

    def word(x: str) -> str:
        return e.v(f"call i32 @llvm.nvvm.shfl.sync.{mode}.i32(i32 -1, i32 {x}, i32 {which}, i32 31) #0")

    if t == "float":
        return e.v(f"call float @llvm.nvvm.shfl.sync.{mode}.f32(i32 -1, float {name}, i32 {which}, i32 31) #0")
    if dtype.bits == 64:
        bits = name if t == "i64" else e.v(f"bitcast {t} {name} to i64")
        low, high = e.v(f"trunc i64 {bits} to i32"), e.v(f"trunc i64 {e.v(f'lshr i64 {bits}, 32')} to i32")
        low, high = e.v(f"zext i32 {word(low)} to i64"), e.v(f"zext i32 {word(high)} to i64")
        whole = e.v(f"or i64 {low}, {e.v(f'shl i64 {high}, 32')}")
        return whole if t == "i64" else e.v(f"bitcast i64 {whole} to {t}")
    if t == "i32":
        return word(name)
    width = 1 if t == "i1" else dtype.bits
    bits = name if t == f"i{width}" else e.v(f"bitcast {t} {name} to i{width}")
    moved = e.v(f"trunc i32 {word(e.v(f'zext i{width} {bits} to i32'))} to i{width}")
    return moved if t == f"i{width}" else e.v(f"bitcast i{width} {moved} to {t}")


def gather_warps(ctx: Context, partial: Regs, dtype: DType, kept: Layout, warps: list[int]) -> list[Regs]:
    """For each register, the parts of all warps along these warp bits, in order. Through SMEM."""
    e = ctx.e
    item = dtype.itemsize
    count = 1 << len(warps)
    lanes = [i for i, b in enumerate(kept.lanes) if b is not None]
    others = [i for i in range(2) if i not in warps]
    # a slot holds the parts that are combined, side by side; slots go by lane, other warps, register
    weights: list[tuple[int, int]] = [(LANE_BITS + w, 1 << i) for i, w in enumerate(warps)]
    slots = 0
    for bit in [*lanes, *(LANE_BITS + w for w in others)]:
        weights.append((bit, count << slots))
        slots += 1
    stride = (count << slots) * item
    fit = max(ctx.exchange_room() // stride, 1)
    if len(partial) > fit:  # as many at a time as the exchange space holds
        groups = [partial[i : i + fit] for i in range(0, len(partial), fit)]
        return [parts for group in groups for parts in gather_warps(ctx, group, dtype, kept, warps)]
    base = ctx.exchange(stride * len(partial))
    mine = ctx.lane_sum([(bit, w * item) for bit, w in weights])
    where = base if mine == "0" else e.v(f"add i32 {base}, {mine}")
    idle = sum(1 << i for i, b in enumerate(kept.lanes) if b is None)
    owner: str | None = None
    if idle:
        owner = e.pre(f"icmp eq i32 {e.pre(f'and i32 {ctx.local_thread()}, {idle}')}, 0")
    for i, name in enumerate(partial):
        emit_store(ctx, "shared", (where, i * stride), dtype, [name], owner)
    ctx.sync()
    slot = ctx.lane_sum([(bit, w * item) for bit, w in weights if w >= count])
    where = base if slot == "0" else e.v(f"add i32 {base}, {slot}")
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

Pair = tuple[str, str]


class ArgCombiner:
    """Keeps the better of two (value, index) pairs: the extreme, NaN above all, the lower index among equals."""

    def __init__(self, ctx: Context, kind: Reduction, dtype: DType) -> None:
        self.ctx = ctx
        self.dtype = dtype
        self.t: str = llvm_type(dtype)
        greater = kind is Reduction.MAX
        letter = kind_letter(dtype)
        words = {"f": ("ogt", "olt"), "i": ("sgt", "slt"), "u": ("ugt", "ult")}[letter]
        self.better: str = ("fcmp " if letter == "f" else "icmp ") + words[0 if greater else 1]

    def pair(self, a: Pair, b: Pair) -> Pair:
        e, t = self.ctx.e, self.t
        wins = e.v(f"{self.better} {t} {a[0]}, {b[0]}")
        lower = e.v(f"icmp slt i32 {a[1]}, {b[1]}")
        if self.dtype.is_float:
            a_nan, b_nan = e.v(f"fcmp uno {t} {a[0]}, {a[0]}"), e.v(f"fcmp uno {t} {b[0]}, {b[0]}")
            only_a = e.v(f"and i1 {a_nan}, {e.v(f'xor i1 {b_nan}, true')}")
            both = e.v(f"and i1 {a_nan}, {b_nan}")
            same = e.v(f"or i1 {both}, {e.v(f'fcmp oeq {t} {a[0]}, {b[0]}')}")
            wins = e.v(f"or i1 {wins}, {only_a}")
        else:
            same = e.v(f"icmp eq {t} {a[0]}, {b[0]}")
        first = e.v(f"or i1 {wins}, {e.v(f'and i1 {same}, {lower}')}")
        value = e.v(f"select i1 {first}, {t} {a[0]}, {t} {b[0]}")
        return value, e.v(f"select i1 {first}, i32 {a[1]}, i32 {b[1]}")

    def tree(self, pairs: list[Pair]) -> Pair:
        while len(pairs) > 1:
            pairs = [
                self.pair(pairs[i], pairs[i + 1]) if i + 1 < len(pairs) else pairs[i] for i in range(0, len(pairs), 2)
            ]
        return pairs[0]


def lower_arg_reduce(ctx: Context, op: ArgReduce) -> None:
    e = ctx.e
    source = layout_of(op.x)
    dtype: DType = op.x.type.dtype
    size: int = op.x.type.shape[op.axis]
    combine = ArgCombiner(ctx, op.kind, dtype)
    kept = source.reduce((op.axis,))
    lane = ctx.lane_coord(source, op.axis)
    groups: dict[tuple[int, ...], list[Pair]] = {coord: [] for coord in kept.register_coords}
    worst = identity(op.kind, dtype)
    t = llvm_type(dtype)
    for name, coord in zip(ctx.regs(op.x), source.register_coords, strict=True):
        index = e.pre(f"add i32 {lane}, {coord[op.axis]}") if coord[op.axis] else lane
        predicate = inside(ctx, source, op.axis, size, coord[op.axis])
        if predicate is not None:  # past the end: never better, and a higher index than all others
            name = worst if predicate == "false" else e.v(f"select i1 {predicate}, {t} {name}, {t} {worst}")
        groups[tuple(0 if d == op.axis else c for d, c in enumerate(coord))].append((name, index))
    partial = [combine.tree(group) for group in groups.values()]
    from kernel_dsl import dtypes as dt

    for bit in range(LANE_BITS):
        found = source.lanes[bit]
        if found is not None and found[0] == op.axis:
            partial = [
                combine.pair(p, (shuffle_xor(ctx, p[0], 1 << bit, dtype), shuffle_xor(ctx, p[1], 1 << bit, dt.int32)))
                for p in partial
            ]
    warps = [i for i, b in enumerate(source.warps) if b is not None and b[0] == op.axis]
    if warps:
        values = gather_warps(ctx, [p[0] for p in partial], dtype, kept, warps)
        indices = gather_warps(ctx, [p[1] for p in partial], dt.int32, kept, warps)
        partial = [combine.tree(list(zip(v, i, strict=True))) for v, i in zip(values, indices, strict=True)]
    ctx.values[op.result] = [p[1] for p in partial]


RULES: Rules = {Reduce: lower_reduce, ArgReduce: lower_arg_reduce}
