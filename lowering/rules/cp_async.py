"""Copies by the lanes: by cp.async, 4 to 16 bytes at a time (PTX ISA 9.7.9.25.3), else by loads and ordinary stores.

All copies before Hopper take this path. On Hopper it serves blocks that TMA can't copy, whose innermost start is not a
multiple of 16 bytes. Elements that cp.async can't copy are stored when the copy's line runs, like any other store.
"""

from __future__ import annotations

from math import nan

from kernel_dsl.ir import Value
from kernel_dsl.layout import Layout, blocked
from kernel_dsl.ops.copy import CopyGmemToSmem, CopySmemToGmem, OOBFillMode
from kernel_dsl.refs import Access, Ref, View

from ..context import Context
from ..value import V
from .access import AccessPlace, Address, Regs, emit_load, emit_store
from .sync import arrive, barrier_address
from .tiled import make_place

LEAST = 4  # bytes of a cp.async
# elements that are loaded before the first of them is stored. Each time a lane stores what it has just loaded, it waits for GMEM
TOGETHER = 32


Side = tuple[Value, View, tuple[Value, ...]]  # one side of a copy: the buffer, its view, its offsets


def _vector(gmem: Side, smem: Side) -> tuple[int, int | None]:
    """(elements that a lane moves at once, their dimension) that both sides allow."""
    (array, view, offsets), (buffer, other, _) = gmem, smem
    minor = next((i for i, d in enumerate(view.dims) if d.axis == len(array.type.shape) - 1), None)
    if minor is None or other.dims[minor].axis != len(buffer.type.shape) - 1 or not array.type.contiguous:
        return 1, minor

    def width(root: Value, view: View, offsets: tuple[Value, ...]) -> int:
        moving = view.moving(offsets)
        parts = tuple((static, moving.get(axis)) for axis, static in enumerate(view.start))
        return Ref(root, view.dims, parts).vector()[0]

    widest = min(width(*gmem), width(*smem))
    while widest > 1 and view.cuts(offsets, widest, minor):
        widest //= 2  # the view's end must not cut through a piece
    return widest, minor


def _places(ctx: Context, gmem: Side, smem: Side) -> tuple[AccessPlace, AccessPlace, int, int | None]:
    """Both sides spread over the lanes, in pieces of `width` elements along a dimension."""
    vector, minor = _vector(gmem, smem)
    layout = blocked(gmem[1].shape, vector, minor)
    if ctx.warp_level:  # this warp also copies the other warps' part
        more = tuple((bit[0], 2, bit[1]) for bit in layout.warps if bit is not None)
        layout = Layout(layout.rank, (*layout.regs, *more), layout.lanes)
    a, b = (make_place(ctx, s[0].type, ctx.buffers[s[0]], s[1], layout, s[2]) for s in (gmem, smem))
    access = Access(vector, minor)
    return a, b, min(a.width(access), b.width(access)), minor


def copy_by_lanes(ctx: Context, op: CopyGmemToSmem, fenced: bool = False) -> None:
    """Copy with all lanes; completes on the barrier, or as a cp.async group.

    `fenced`: the async proxy also accesses the buffer, so the arrival waits for the copies and a proxy fence.
    """
    array = op.src.type
    item = array.dtype.itemsize
    gmem, smem = (op.src, op.src_view, op.src_offsets), (op.dst, op.dst_view, op.dst_offsets)
    source, target, width, minor = _places(ctx, gmem, smem)
    layout = source.layout
    size = width * item
    cache = "cg" if size == 16 else "ca"
    guard = None if op.predicate is None else ctx.scalar(op.predicate)
    owner = ctx.owner(layout)
    moved = 0 not in op.src_view.shape
    waiting: list[tuple[Address, Regs, V | None]] = []

    def store_waiting() -> None:
        # the assembler puts each load just before its store, but moves none past this. It would move those that promise that
        # nobody writes the array (ld.global.nc)
        if len(waiting) > 1:
            ctx.sync_warp()
        for to, names, predicate in waiting:
            emit_store(ctx, "shared", to, array.dtype, names, predicate)
        waiting.clear()

    for group in source.groups(width, minor):
        coord = layout.register_coords[group[0]]
        inside = source.padding(coord)
        predicate = ctx.e.both(ctx.e.both(owner, inside), guard)
        if predicate == "false":
            continue
        bounded = source.bounds(coord)
        if bounded is not None and op.oob is OOBFillMode.NANS:
            outside = ctx.e.both(predicate, ~bounded)
            filling = [ctx.e.literal(nan, array.dtype)] * width
            emit_store(ctx, "shared", target.address(coord), array.dtype, filling, outside)
            predicate, bounded = ctx.e.both(predicate, bounded), None
        if size < LEAST:
            inside = ctx.e.both(predicate, bounded)
            names = emit_load(ctx, "global", source.address(coord), array.dtype, width, inside, pure=False)
            waiting.append((target.address(coord), names, predicate))
            if len(waiting) * width >= TOGETHER:
                store_waiting()
            continue
        to, to_constant = target.address(coord)
        at, at_constant = source.address(coord)
        # a source size of 0 writes zeros (PTX ISA, cp.async: 'ignore-src')
        taken = [] if bounded is None else [bounded.where(size, 0, "i32")]
        tail = ", $2" if taken else ""
        text = f"cp.async.{cache}.shared.global [$0+{to_constant}], [$1+{at_constant}], {size}{tail};"
        ctx.e.ptx(text, to, at, *taken, when=predicate)
    store_waiting()
    if op.barrier is None:
        ctx.e.ptx("cp.async.commit_group;")
        return
    assert op.index is not None
    address = barrier_address(ctx, op.barrier, op.index)
    if not moved:
        pass
    elif fenced:
        if size >= LEAST:
            ctx.e.ptx("cp.async.wait_all;")
        ctx.e.ptx("fence.proxy.async.shared::cta;")
    elif size >= LEAST:
        # each lane's copies delay the phase until they are done; the warps arrive as usual
        ctx.e.ptx("cp.async.mbarrier.arrive.shared.b64 [$0];", address, when=guard)
    arrive(ctx, op.barrier, address, op.predicate, own=True)


def store_by_lanes(ctx: Context, op: CopySmemToGmem) -> None:
    """Store with all lanes. The stores are done at once; an empty group satisfies later waits."""
    dtype = op.dst.type.dtype
    gmem, smem = (op.dst, op.dst_view, op.dst_offsets), (op.src, op.src_view, op.src_offsets)
    target, source, width, minor = _places(ctx, gmem, smem)
    guard = None if op.predicate is None else ctx.scalar(op.predicate)
    owner = ctx.owner(target.layout)
    for group in target.groups(width, minor):
        coord = target.layout.register_coords[group[0]]
        predicate = ctx.e.both(ctx.e.both(owner, target.padding(coord)), ctx.e.both(target.bounds(coord), guard))
        if predicate != "false":
            names = emit_load(ctx, "shared", source.address(coord), dtype, width, predicate, pure=False)
            emit_store(ctx, "global", target.address(coord), dtype, names, predicate)
    # a tensor copy may load it next, and the lanes stored through the generic proxy
    ctx.e.ptx("fence.proxy.async;")
    if op.commit:
        ctx.e.ptx("cp.async.bulk.commit_group;", when=ctx.e.all(ctx.first_lane(), guard))


def wait_lanes(ctx: Context, pending: int) -> None:
    """Wait for this warpgroup's cp.async groups. All lanes then see all copied data."""
    ctx.e.ptx(f"cp.async.wait_group {pending};")
    ctx.sync()
