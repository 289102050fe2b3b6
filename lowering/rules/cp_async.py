"""Copies by cp.async: every lane moves 4 to 16 bytes at a time (PTX ISA 9.7.9.25.3). The only way before Hopper.

What has no such pieces is loaded and stored by the lanes: done when the copy's line is, and seen like any other.
"""

from __future__ import annotations

from math import gcd, nan

from kernel_dsl.layout import Layout, blocked
from kernel_dsl.ops.copy import CopyGmemToSmem, OOBFillMode
from kernel_dsl.refs import Access, View

from ..context import Context
from ..emit import literal
from .access import emit_load, emit_store
from .sync import arrive, barrier_address
from .tiled import make_place

LEAST = 4  # bytes of a cp.async


def _vector(op: CopyGmemToSmem, smem: View) -> tuple[int, int | None]:
    """(elements a lane moves, the dimension along which they lie) that both sides allow."""
    from kernel_dsl.refs import Ref

    array, type = op.src.type, op.dst.type
    minor = next((i for i, d in enumerate(op.src_view.dims) if d.axis == len(array.shape) - 1), None)
    other = next((i for i, d in enumerate(smem.dims) if d.axis == len(type.shape) - 1), None)
    if minor is None or minor != other or not array.contiguous:
        return 1, minor

    def width(root: object, view: View, offsets: tuple[object, ...]) -> int:
        moving = dict(zip(view.dynamic, offsets, strict=True))
        parts = tuple((static, moving.get(axis)) for axis, static in enumerate(view.start))
        return Ref(root, view.dims, parts).vector()[0]  # type: ignore[arg-type]

    widest = min(width(op.src, op.src_view, op.src_offsets), width(op.dst, smem, op.dst_offsets))
    if any(axis == len(array.shape) - 1 for axis, _, _ in op.src_view.masked):
        widest = gcd(widest, array.shape[-1])  # the array's end must not cut through a piece
    return widest, minor


def copy_by_lanes(ctx: Context, op: CopyGmemToSmem) -> None:
    """Copy with all lanes; completes on the barrier, or as a cp.async group."""
    array, type = op.src.type, op.dst.type
    item = array.dtype.itemsize
    vector, minor = _vector(op, op.dst_view)
    layout = blocked(op.src_view.shape, vector, minor)
    if ctx.warp_level:  # what the other warps would copy, this one does
        more = tuple((bit[0], 2, bit[1]) for bit in layout.warps if bit is not None)
        layout = Layout(layout.rank, (*layout.regs, *more), layout.lanes)
    source = make_place(ctx, array, ctx.buffers[op.src], op.src_view, layout, op.src_offsets)
    target = make_place(ctx, type, ctx.buffers[op.dst], op.dst_view, layout, op.dst_offsets)
    access = Access(vector, minor)
    width = min(source.width(access), target.width(access))
    size = width * item
    cache = "cg" if size == 16 else "ca"
    guard = None if op.predicate is None else ctx.scalar(op.predicate)
    owner = ctx.owner(layout)
    for group in source.groups(width, minor):
        coord = layout.register_coords[group[0]]
        inside = source.padding(coord)
        predicate = ctx.e.both(ctx.e.both(owner, inside), guard)
        if predicate == "false":
            continue
        bounded = source.bounds(coord)
        if bounded is not None and op.oob is OOBFillMode.NANS:
            outside = ctx.e.both(predicate, ctx.e.v(f"xor i1 {bounded}, true"))
            filling = [literal(nan, array.dtype)] * width
            emit_store(ctx, "shared", target.address(coord), array.dtype, filling, outside)
            predicate, bounded = ctx.e.both(predicate, bounded), None
        if size < LEAST:
            inside = ctx.e.both(predicate, bounded)
            space = "global" if array.written else "global.nc"
            names = emit_load(ctx, space, source.address(coord), array.dtype, width, inside, pure=False)
            emit_store(ctx, "shared", target.address(coord), array.dtype, names, predicate)
            continue
        to, to_constant = target.address(coord)
        at, at_constant = source.address(coord)
        args = [("i32", to), ("i64", at)]
        constraints = "r,l"
        tail = ""
        if bounded is not None:  # a source size of 0 writes zeros (PTX ISA, cp.async: 'ignore-src')
            args.append(("i32", ctx.e.v(f"select i1 {bounded}, i32 {size}, i32 0")))
            constraints += ",r"
            tail = ", $2"
        prefix = ""
        if predicate is not None:
            prefix = f"@${len(args)} "
            args.append(("i1", predicate))
            constraints += ",b"
        text = f"{prefix}cp.async.{cache}.shared.global [$0+{to_constant}], [$1+{at_constant}], {size}{tail};"
        ctx.e.asm(text, constraints + ",~{memory}", args)
    if op.barrier is None:
        ctx.e.asm("cp.async.commit_group;", "~{memory}")
        return
    assert op.index is not None
    address = barrier_address(ctx, op.barrier, op.index)
    # each lane's copies hold the phase open until they are done; then the warps arrive as for any other arrival
    text = "cp.async.mbarrier.arrive.shared.b64 [$0];"
    args = [("i32", address)]
    if guard is not None:
        text = "@$1 " + text
        args.append(("i1", guard))
    ctx.e.asm(text, "r,b,~{memory}" if guard is not None else "r,~{memory}", args)
    arrive(ctx, op.barrier, address, op.predicate)


def wait_lanes(ctx: Context, pending: int) -> None:
    """Wait for this warpgroup's cp.async groups; all lanes then see what any of them copied."""
    ctx.e.asm(f"cp.async.wait_group {pending};", "~{memory}")
    ctx.sync()
