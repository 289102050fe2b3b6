"""Other blocks' SMEM: addresses by `mapa`, asynchronous stores, and the meeting of the cluster at the kernel's end."""

from __future__ import annotations

from math import prod

from kernel_dsl.ir import layout_of
from kernel_dsl.ops.cluster import AsyncStoreSmem, PeerRef
from kernel_dsl.ops.copy import CopyGmemToSmem
from kernel_dsl.ops.ref import AllocBarrier

from ..context import Buffer, Context
from .access import pack, split_access
from .copy import index32
from .sync import barrier_address
from .tiled import make_place


def lower_peer_ref(ctx: Context, op: PeerRef) -> None:
    own = ctx.buffers[op.ref]
    rank = ctx.rank_of({p: index32(ctx, v) for p, v in zip(op.axes, op.indices, strict=True)})
    ctx.buffers[op.result] = Buffer(_map(ctx, own.address, rank), own.strides, remote=True)


def _map(ctx: Context, address: str, rank: str) -> str:
    args = [("i32", address), ("i32", rank)]
    (mapped,) = ctx.e.asm("mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r", args, ["i32"], sideeffect=False)
    return mapped


def lower_async_store(ctx: Context, op: AsyncStoreSmem) -> None:
    e = ctx.e
    layout = layout_of(op.x)
    dtype = op.ref.type.dtype
    rank = ctx.rank_of({op.axis: index32(ctx, op.block)})
    own = ctx.buffers[op.ref]
    barrier = _map(ctx, barrier_address(ctx, op.barrier, op.index), rank)
    total = prod(op.view.shape) * dtype.itemsize
    bytes_ = e.pre(f"select i1 {ctx.first_lane()}, i32 {total}, i32 0")
    e.do("call void @llvm.nvvm.bar.warp.sync(i32 -1) #0")
    text = "@$2 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [$0], $1;"
    e.asm(text, "r,r,b,~{memory}", [("i32", barrier), ("i32", bytes_), ("i1", ctx.warp_leader())])
    buffer = Buffer(_map(ctx, own.address, rank), own.strides, remote=True)
    place = make_place(ctx, op.ref.type, buffer, op.view, layout, op.offsets)
    names = ctx.regs(op.x)
    owner = ctx.owner(layout)
    width = place.width(op.access)
    for group in place.groups(width, op.access.minor):
        coord = layout.register_coords[group[0]]
        predicate = e.both(owner, place.padding(coord))
        if predicate == "false":
            continue
        part, parts = split_access(dtype.itemsize, width)
        per = max(part // dtype.itemsize, 1)
        words = [pack(ctx, [names[i] for i in group[j : j + per]], dtype, part) for j in range(0, width, per)]
        bits = part * 8
        letter = "l" if bits == 64 else "r"
        value = ", ".join(f"${i + 2}" for i in range(parts))
        value = f"{{{value}}}" if parts > 1 else value
        base, constant = place.address(coord)
        where = f"[$0+{constant}]" if constant else "[$0]"
        args = [("i32", base), ("i32", barrier), *[(f"i{bits}", w) for w in words]]
        constraints = ["r", "r"] + [letter] * parts
        guard = ""
        if predicate is not None:
            guard = f"@${len(args)} "
            args.append(("i1", predicate))
            constraints.append("b")
        vec = f".v{parts}" if parts > 1 else ""
        text = f"{guard}st.async.shared::cluster.mbarrier::complete_tx::bytes{vec}.b{bits} {where}, {value}, [$1];"
        e.asm(text, ",".join(constraints) + ",~{memory}", args)


def touches_peers(ctx: Context) -> bool:
    """Whether a block's SMEM may be reached by another one, which must then find it alive."""
    return any(
        isinstance(op, (PeerRef, AsyncStoreSmem))
        or (isinstance(op, AllocBarrier) and op.type.cluster)
        or (isinstance(op, CopyGmemToSmem) and op.multicast)
        for op in ctx.ir.walk()
    )


def end_of_kernel(ctx: Context) -> None:
    """No block leaves before all of the cluster are done. PTX `barrier.cluster`."""
    if touches_peers(ctx):
        ctx.e.do("call void @llvm.nvvm.barrier.cluster.arrive.aligned() #0")
        ctx.e.do("call void @llvm.nvvm.barrier.cluster.wait.aligned() #0")


RULES = {PeerRef: lower_peer_ref, AsyncStoreSmem: lower_async_store}
