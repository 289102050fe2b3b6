"""Loads, stores and scratch."""

from __future__ import annotations

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import MemorySpace, RefType, Value, layout_of
from kernel_dsl.ops.ref import AllocBarrier, AllocSmem, BitcastRef, Load, Store
from kernel_dsl.refs import strides_of

from ..context import Barriers, Buffer, Context, Rules
from ..emit import Regs, literal, llvm_type
from .access import Place, emit_load, emit_store
from .ldmatrix import load_matrices
from .stmatrix import store_matrices
from .sync import PHASES
from .tiled import make_place


def space_of(ctx: Context, ref: Value, loading: bool) -> str:
    """The state space of an access, as PTX spells it."""
    type: RefType = ref.type
    if type.space is MemorySpace.SMEM:
        return "shared::cluster" if ctx.buffers[ref].remote else "shared"
    # the non-coherent path only for memory that nothing in the kernel writes (PTX ISA, ld.global.nc)
    return "global.nc" if loading and not type.written else "global"


def lower_load(ctx: Context, op: Load) -> None:
    result = op.result
    layout = layout_of(result)
    type: RefType = op.ref.type
    fragments = load_matrices(ctx, op, layout)
    if fragments is not None:
        ctx.values[result] = fragments
        return
    place = make_place(ctx, type, ctx.buffers[op.ref], op.view, layout, op.offsets)
    dtype = type.dtype
    pure = type.space is MemorySpace.GMEM and not type.written
    space = space_of(ctx, op.ref, loading=True)
    mask = ctx.regs(op.mask) if op.mask is not None else None
    fill = ctx.regs(op.fill) if op.fill is not None else None
    if not op.view.dims and type.written and type.space is MemorySpace.GMEM:
        _load_uniform(ctx, op, place)
        return

    def run(width: int, bounded: bool) -> Regs:
        names: Regs = [""] * layout.registers
        for group in place.groups(width, op.access.minor):
            coord = layout.register_coords[group[0]]
            predicate = place.padding(coord)
            if bounded:
                predicate = ctx.e.both(predicate, place.bounds(coord))
            if mask is not None:
                predicate = ctx.e.both(predicate, mask[group[0]])
            if predicate == "false":
                loaded = [_zero(dtype)] * width
            else:
                loaded = emit_load(ctx, space, place.address(coord), dtype, width, predicate, pure)
            for index, name in zip(group, loaded, strict=True):
                if fill is not None and predicate is not None:
                    t = llvm_type(dtype)
                    name = ctx.e.v(f"select i1 {predicate}, {t} {name}, {t} {fill[index]}")
                names[index] = name
        return names

    width = place.width(op.access) if mask is None else 1
    if width == 1 or not op.view.masked or op.access.whole:
        ctx.values[result] = run(width, bool(op.view.masked))
        return
    ctx.values[result] = _two_ways(ctx, place, llvm_type(dtype), lambda: run(width, False), lambda: run(1, True))


def _zero(dtype: object) -> str:
    from kernel_dsl.dtypes import DType

    assert isinstance(dtype, DType)
    return literal(0, dtype)


def _two_ways(ctx: Context, place: Place, t: str, fast: object, slow: object) -> Regs:
    """Vectors where the whole view is inside the array (uniformly known), element by element where it is not."""
    e = ctx.e
    inside = place.all_inside()
    assert inside is not None
    yes, no, end = e.label(), e.label(), e.label()
    e.branch(inside, yes, no)
    results: list[tuple[Regs, str]] = []
    for label, run in ((yes, fast), (no, slow)):
        e.begin(label)
        place.forget()
        names: Regs = run()  # type: ignore[operator]
        results.append((names, e.block))
        e.jump(end)
    e.begin(end)
    (a, block_a), (b, block_b) = results
    return [e.phi(t, [(x, block_a), (y, block_b)]) for x, y in zip(a, b, strict=True)]


def _load_uniform(ctx: Context, op: Load, place: Place) -> None:
    """A rank-0 load of memory that the kernel can write: one lane reads, all get what it read."""
    e = ctx.e
    dtype = op.ref.type.dtype
    first = ctx.first_lane()
    predicate = e.both(first, place.bounds(()))
    if op.mask is not None:
        predicate = e.both(predicate, ctx.scalar(op.mask))
    (name,) = emit_load(ctx, "global", place.address(()), dtype, 1, predicate, pure=False)
    if op.fill is not None:
        t = llvm_type(dtype)
        name = e.v(f"select i1 {predicate}, {t} {name}, {t} {ctx.scalar(op.fill)}")
    ctx.values[op.result] = [broadcast_from_first(ctx, name, op.result)]


def broadcast_from_first(ctx: Context, name: str, result: Value) -> str:
    """The first lane's register in every lane of the warpgroup, through SMEM."""
    dtype = result.type.dtype
    if ctx.warp_level:
        return _broadcast_in_warp(ctx, name, dtype)
    base = ctx.exchange(8)
    first = ctx.first_lane()
    emit_store(ctx, "shared", (base, 0), dtype, [name], first)
    ctx.sync()
    (got,) = emit_load(ctx, "shared", (base, 0), dtype, 1, None, pure=False)
    return got


def _broadcast_in_warp(ctx: Context, name: str, dtype: DType) -> str:
    """The first lane's register in every lane of the warp, by shuffles of 32-bit words."""
    e = ctx.e
    t = llvm_type(dtype)
    bits = 8 if t == "i1" else dtype.bits
    whole = e.v(f"zext i1 {name} to i8") if t == "i1" else name
    if t not in ("i1", f"i{bits}"):
        whole = e.v(f"bitcast {t} {name} to i{bits}")
    wide = 64 if bits == 64 else 32
    padded = whole if bits == wide else e.v(f"zext i{bits} {whole} to i{wide}")
    words: list[str] = []
    for shift in range(0, wide, 32):
        part = padded
        if wide == 64:
            part = e.v(f"trunc i64 {e.v(f'lshr i64 {padded}, {shift}')} to i32")
        words.append(e.v(f"call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 {part}, i32 0, i32 31) #0"))
    back = words[0]
    if wide == 64:
        high = e.v(f"shl i64 {e.v(f'zext i32 {words[1]} to i64')}, 32")
        back = e.v(f"or i64 {e.v(f'zext i32 {words[0]} to i64')}, {high}")
    if bits != wide:
        back = e.v(f"trunc i{wide} {back} to i{bits}")
    if t == "i1":
        return e.v(f"icmp ne i8 {back}, 0")
    return back if t == f"i{bits}" else e.v(f"bitcast i{bits} {back} to {t}")


def lower_store(ctx: Context, op: Store) -> None:
    layout = layout_of(op.x)
    type: RefType = op.ref.type
    if store_matrices(ctx, op, layout):
        return
    place = make_place(ctx, type, ctx.buffers[op.ref], op.view, layout, op.offsets)
    names = ctx.regs(op.x)
    mask = ctx.regs(op.mask) if op.mask is not None else None
    space = space_of(ctx, op.ref, loading=False)
    owner = ctx.owner(layout)

    def run(width: int, bounded: bool) -> Regs:
        for group in place.groups(width, op.access.minor):
            coord = layout.register_coords[group[0]]
            predicate = ctx.e.both(owner, place.padding(coord))
            if bounded:
                predicate = ctx.e.both(predicate, place.bounds(coord))
            if mask is not None:
                predicate = ctx.e.both(predicate, mask[group[0]])
            if predicate != "false":
                emit_store(ctx, space, place.address(coord), type.dtype, [names[i] for i in group], predicate)
        return []

    width = place.width(op.access) if mask is None else 1
    if width == 1 or not op.view.masked or op.access.whole:
        run(width, bool(op.view.masked))
        return
    _two_ways(ctx, place, "", lambda: run(width, False), lambda: run(1, True))


def lower_alloc_smem(ctx: Context, op: AllocSmem) -> None:
    address = ctx.e.pre(f"add i32 %smem_base, {ctx.smem_offsets[op]}")
    ctx.buffers[op.result] = Buffer(address, strides_of(op.type.shape))


def lower_alloc_barrier(ctx: Context, op: AllocBarrier) -> None:
    from math import prod

    count = prod(op.type.shape)
    address = ctx.e.pre(f"add i32 %smem_base, {ctx.smem_offsets[op]}")
    phases = ctx.e.name()
    words = -(-count // PHASES)
    ctx.e.pre_do(f"{phases} = alloca [{words} x i64]" if words > 1 else f"{phases} = alloca i64")
    ctx.e.pre_do(f"store {f'[{words} x i64] zeroinitializer' if words > 1 else 'i64 0'}, ptr {phases}")
    ctx.barriers[op.result] = Barriers(address, phases, count)


def lower_bitcast_ref(ctx: Context, op: BitcastRef) -> None:
    ctx.buffers[op.result] = Buffer(ctx.buffers[op.ref].address, strides_of(op.type.shape), ctx.buffers[op.ref].remote)


RULES: Rules = {
    Load: lower_load,
    Store: lower_store,
    AllocSmem: lower_alloc_smem,
    AllocBarrier: lower_alloc_barrier,
    BitcastRef: lower_bitcast_ref,
}
