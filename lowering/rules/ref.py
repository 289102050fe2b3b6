"""Loads, stores and scratch."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from kernel_dsl.ir import MemorySpace, RefType, Value, layout_of
from kernel_dsl.ops.ref import AllocBarrier, AllocSmem, BitcastRef, Load, Store
from kernel_dsl.refs import Access, strides_of

from ..context import Context, Rules
from ..lowered import NamedBarriers, SmemBuffer
from ..value import Regs, V
from .access import AccessPlace, emit_load, emit_store
from .ldmatrix import load_matrices
from .reduce import shuffle
from .stmatrix import store_matrices
from .sync import PHASES
from .tiled import make_place


def space_of(ctx: Context, ref: Value, loading: bool) -> str:
    """The state space of an access, in PTX's spelling."""
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
        names: dict[int, V] = {}
        for group in place.groups(width, op.access.minor):
            coord = layout.register_coords[group[0]]
            predicate = place.padding(coord)
            if bounded:
                predicate = ctx.e.both(predicate, place.bounds(coord))
            if mask is not None:
                predicate = ctx.e.both(predicate, mask[group[0]])
            if predicate == "false":
                loaded = [ctx.e.literal(0, dtype)] * width
            else:
                loaded = emit_load(ctx, space, place.address(coord), dtype, width, predicate, pure)
            for index, name in zip(group, loaded, strict=True):
                if fill is not None and predicate is not None:
                    name = predicate.where(name, fill[index])
                names[index] = name
        return [names[i] for i in range(layout.registers)]

    width = _shared(place, op.access, mask)
    if width == 1 or not op.view.masked or op.access.whole:
        ctx.values[result] = run(width, bool(op.view.masked))
        return
    ctx.values[result] = _two_ways(ctx, place, lambda: run(width, False), lambda: run(1, True))


def _shared(place: AccessPlace, access: Access, mask: Regs | None) -> int:
    """Elements that one access moves: neighbours for which the mask is equal, such as those of a row."""
    width = place.width(access)
    while mask is not None and width > 1:
        if all(len({mask[i] for i in group}) == 1 for group in place.groups(width, access.minor)):
            break
        width //= 2
    return width


def _two_ways(ctx: Context, place: AccessPlace, fast: Callable[[], Regs], slow: Callable[[], Regs]) -> Regs:
    """Vectors if the whole view is inside the array (a uniform test), else element by element."""
    e = ctx.e
    inside = place.all_inside()
    assert inside is not None
    yes, no, end = e.label(), e.label(), e.label()
    e.branch(inside, yes, no)
    results: list[tuple[Regs, str]] = []
    for label, run in ((yes, fast), (no, slow)):
        e.begin(label)
        place.forget()
        results.append((run(), e.block))
        e.jump(end)
    e.begin(end)
    (a, block_a), (b, block_b) = results
    return [e.phi(x.type, [(x, block_a), (y, block_b)]) for x, y in zip(a, b, strict=True)]


def _load_uniform(ctx: Context, op: Load, place: AccessPlace) -> None:
    """A rank-0 load of memory that the kernel can write: one lane reads, and all get its value."""
    predicate = ctx.e.all(ctx.first_lane(), place.bounds(()))
    if op.mask is not None:
        predicate = ctx.e.all(predicate, ctx.scalar(op.mask))
    (name,) = emit_load(ctx, "global", place.address(()), op.ref.type.dtype, 1, predicate, pure=False)
    if op.fill is not None:
        name = predicate.where(name, ctx.scalar(op.fill))
    ctx.values[op.result] = [broadcast_from_first(ctx, name, op.result)]


def broadcast_from_first(ctx: Context, name: V, result: Value) -> V:
    """The first lane's register in every lane of the warpgroup, through SMEM; inside `warp_map`, by a shuffle."""
    dtype = result.type.dtype
    if ctx.warp_level:
        return shuffle(ctx, name, "idx", 0)
    base = ctx.exchange(8)
    emit_store(ctx, "shared", (base, 0), dtype, [name], ctx.first_lane())
    ctx.sync()
    (got,) = emit_load(ctx, "shared", (base, 0), dtype, 1, None, pure=False)
    return got


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

    if space == "global" and ctx.stored is not None:
        ctx.e.store(ctx.e.i32(1), ctx.stored)

    width = _shared(place, op.access, mask)
    if width == 1 or not op.view.masked or op.access.whole:
        run(width, bool(op.view.masked))
        return
    _two_ways(ctx, place, lambda: run(width, False), lambda: run(1, True))


def lower_alloc_smem(ctx: Context, op: AllocSmem) -> None:
    ctx.buffers[op.result] = SmemBuffer(_place(ctx, op), strides_of(op.type.shape))


def _place(ctx: Context, op: AllocSmem | AllocBarrier) -> V:
    """The SMEM address of an allocation."""
    return ctx.e.value("%smem_base", "i32").once.plus(ctx.smem_offsets[op])


def lower_alloc_barrier(ctx: Context, op: AllocBarrier) -> None:
    count = prod(op.type.shape)
    address = _place(ctx, op)
    words = -(-count // PHASES)
    word = "i32" if count <= PHASES // 2 else "i64"  # fewer registers and instructions where 32 bits suffice
    phases = ctx.e.variable(f"[{words} x i64]", "zeroinitializer") if words > 1 else ctx.e.variable(word, "0")
    ctx.barriers[op.result] = NamedBarriers(address, phases, count, word)


def lower_bitcast_ref(ctx: Context, op: BitcastRef) -> None:
    own = ctx.buffers[op.ref]
    ctx.buffers[op.result] = SmemBuffer(own.address, ctx.row_major(op.type), own.remote)


RULES: Rules = {
    Load: lower_load,
    Store: lower_store,
    AllocSmem: lower_alloc_smem,
    AllocBarrier: lower_alloc_barrier,
    BitcastRef: lower_bitcast_ref,
}
