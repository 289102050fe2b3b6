"""Other blocks' SMEM: addresses by `mapa`, asynchronous stores, and the meetings of the cluster."""

from __future__ import annotations

from math import prod

from kernel_dsl import dtypes as dt
from kernel_dsl.ir import KernelIR, Op, Region, Value, layout_of, walk_region
from kernel_dsl.ops.cluster import AsyncStoreSmem, PeerRef
from kernel_dsl.ops.copy import CopyGmemToSmem
from kernel_dsl.ops.ref import AllocBarrier

from ..context import Context, Rules
from ..lowered import SmemBuffer
from ..value import V
from ..writer import address
from .access import listed, words_of
from .sync import barrier_address
from .tiled import make_place


def lower_peer_ref(ctx: Context, op: PeerRef) -> None:
    own = ctx.buffers[op.ref]
    rank = ctx.rank_of({p: ctx.index(v) for p, v in zip(op.axes, op.indices, strict=True)})
    ctx.buffers[op.result] = SmemBuffer(_map(ctx, own.address, rank), own.strides, remote=True)


def _map(ctx: Context, address: V, rank: V) -> V:
    return ctx.e.ptx("mapa.shared::cluster.u32 $0, $1, $2;", address, rank, results=["i32"], pure=True)[0]


def lower_async_store(ctx: Context, op: AsyncStoreSmem) -> None:
    e = ctx.e
    layout = layout_of(op.x)
    dtype = op.ref.type.dtype
    rank = ctx.rank_of({op.axis: ctx.index(op.block)})
    own = ctx.buffers[op.ref]
    barrier = _map(ctx, barrier_address(ctx, op.barrier, op.index), rank)
    total = prod(op.view.shape) * dtype.itemsize
    bytes_ = ctx.first_lane().once.where(total, 0, "i32")
    ctx.sync_warp()
    text = "@$2 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [$0], $1;"
    e.ptx(text, barrier, bytes_, ctx.warp_leader())
    buffer = SmemBuffer(_map(ctx, own.address, rank), own.strides, remote=True)
    place = make_place(ctx, op.ref.type, buffer, op.view, layout, op.offsets)
    names = ctx.regs(op.x)
    owner = ctx.owner(layout)
    for group in place.groups(1 if op.atomic else place.width(op.access), op.access.minor):
        coord = layout.register_coords[group[0]]
        predicate = e.both(owner, place.padding(coord))
        if predicate == "false":
            continue
        words, kind = words_of(ctx, [names[i] for i in group], dtype)
        base, constant = place.address(coord)
        if op.atomic:
            kind = "s32" if dtype == dt.int32 else f"u{dtype.bits}"  # signed and unsigned sums of 64 bits are equal
            store = f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op.atomic}.{kind}"
        else:
            vec = f".v{len(words)}" if len(words) > 1 else ""
            store = f"st.async.shared::cluster.mbarrier::complete_tx::bytes{vec}.{kind}"
        text = f"{store} {address(0, constant)}, {listed(2, len(words))}, [$1];"
        e.ptx(text, base, barrier, *words, when=predicate)


def _reaches(op: Op, peers: set[Value]) -> bool:
    """Whether an op itself may access another block's SMEM or barriers. `peers` collects the Refs of such memory."""
    if isinstance(op, PeerRef):
        peers.add(op.result)
        return True
    if isinstance(op, AsyncStoreSmem) or (isinstance(op, CopyGmemToSmem) and op.multicast):
        return True
    if isinstance(op, AllocBarrier):
        if op.type.cluster:
            peers.add(op.result)
        return bool(op.type.cluster)
    return any(v in peers for v in op.values())


def meeting_places(ir: KernelIR) -> tuple[int, int] | None:
    """The first and the last top-level op of the kernel that may access a peer; None if there is none.

    All blocks of the cluster must have started before the first, and no block may end before all have executed the
    last.
    """
    peers: set[Value] = set()
    found: list[int] = []
    for number, op in enumerate(ir.body.ops):
        inner = [op, *(o for r in op.region_list() for o in walk_region(r))]
        # an allocation alone accesses nothing; a list, because `_reaches` also collects
        touching = [_reaches(o, peers) and not isinstance(o, AllocBarrier) for o in inner]
        if any(touching):
            found.append(number)
    return (found[0], found[-1]) if found else None


def lower_body(ctx: Context) -> None:
    """Lower the kernel's ops. The cluster's two barriers are split into arrivals and waits, to overlap other work."""
    e = ctx.e
    ops = ctx.ir.body.ops
    if ctx.meetings is None:
        ctx.region(ctx.ir.body)
        return
    first, last = ctx.meetings
    arrive = "call void @llvm.nvvm.barrier.cluster.arrive.aligned() #0"
    wait = "call void @llvm.nvvm.barrier.cluster.wait.aligned() #0"
    ctx.region(Region((), ops[:first]))
    e.do(wait)  # for the arrival of the prologue
    ctx.region(Region((), ops[first : last + 1]))
    e.do(arrive)
    ctx.region(Region((), ops[last + 1 :]))
    e.do(wait)


RULES: Rules = {PeerRef: lower_peer_ref, AsyncStoreSmem: lower_async_store}
