"""Barriers: of a warpgroup's lanes, and mbarriers."""

from __future__ import annotations

from math import prod

from kernel_dsl.ir import Value
from kernel_dsl.ops.barrier import BarrierArrive, BarrierWait
from kernel_dsl.ops.sync import WarpgroupBarrier
from kernel_dsl.target import Feature

from ..context import Barriers, Context

MBARRIER_BYTES = 8  # PTX ISA 9.7.13.15.2: a 64-bit object, 8-byte aligned


def lower_warpgroup_barrier(ctx: Context, op: WarpgroupBarrier) -> None:
    ctx.sync()


def barrier_address(ctx: Context, barrier: Value, index: Value) -> str:
    """The SMEM address of barrier number `index`, i32."""
    return _address(ctx, ctx.barriers[barrier], _index32(ctx, index))


def _address(ctx: Context, barriers: Barriers, index: str) -> str:
    if index.isdigit():
        number = int(index) * MBARRIER_BYTES
        return ctx.e.v(f"add i32 {barriers.address}, {number}") if number else barriers.address
    return ctx.e.v(f"add i32 {barriers.address}, {ctx.e.v(f'mul i32 {index}, {MBARRIER_BYTES}')}")


def _index32(ctx: Context, index: Value) -> str:
    name = ctx.scalar(index)
    bits = index.type.dtype.bits
    if name.isdigit() or bits == 32:
        return name
    return ctx.e.v(f"trunc i64 {name} to i32" if bits == 64 else f"zext i{bits} {name} to i32")


def arrive(ctx: Context, barrier: Value, address: str, predicate: Value | None) -> None:
    """One arrival of the warpgroup: each warp arrives once its lanes are here, on all blocks that share the barrier.

    So the phase ends after every lane got here, without a barrier between the warps.
    """
    ctx.e.do("call void @llvm.nvvm.bar.warp.sync(i32 -1) #0")
    axes = barrier.type.cluster
    count = prod(ctx.ir.cluster[p].size for p in axes)
    if count == 1:
        guard = ctx.e.both(ctx.warp_leader(), None if predicate is None else ctx.scalar(predicate))
        text = "{ .reg .b64 state; @$1 mbarrier.arrive.shared::cta.b64 state, [$0]; }"
        ctx.e.asm(text, "r,b,~{memory}", [("i32", address), ("i1", guard or "true")])
        return
    # lane i arrives at the i-th block
    lane = ctx.bit_field(0, 5)
    rank = ctx.cluster_peer(axes, lane)
    guard = ctx.e.pre(f"icmp ult i32 {lane}, {count}")
    if predicate is not None:
        guard = ctx.e.v(f"and i1 {guard}, {ctx.scalar(predicate)}")
    text = (
        "{ .reg .b32 peer; mapa.shared::cluster.u32 peer, $0, $1; "
        "@$2 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [peer]; }"
    )
    ctx.e.asm(text, "r,r,b,~{memory}", [("i32", address), ("i32", rank), ("i1", guard)])


def lower_arrive(ctx: Context, op: BarrierArrive) -> None:
    arrive(ctx, op.barrier, barrier_address(ctx, op.barrier, op.index), op.predicate)


def lower_wait(ctx: Context, op: BarrierWait) -> None:
    e = ctx.e
    barriers = ctx.barriers[op.barrier]
    index = _index32(ctx, op.index)
    address = _address(ctx, barriers, index)
    phases = e.v(f"load i64, ptr {barriers.phases}")
    wide = index if index.isdigit() else e.v(f"zext i32 {index} to i64")
    shifted = e.v(f"lshr i64 {phases}, {wide}")
    parity = e.v(f"trunc i64 {e.v(f'and i64 {shifted}, 1')} to i32")
    wait_parity(ctx, address, parity, bool(op.barrier.type.cluster))
    bit = e.v(f"shl i64 1, {wide}")
    e.do(f"store i64 {e.v(f'xor i64 {phases}, {bit}')}, ptr {barriers.phases}")


def wait_parity(ctx: Context, address: str, parity: str, cluster: bool = False) -> None:
    """Spin until the phase with this parity has completed."""
    e = ctx.e
    again, done = e.label(), e.label()
    e.jump(again)
    e.begin(again)
    ready = _poll(ctx, address, parity, cluster, "try_wait")
    e.branch(ready, done, again)
    e.begin(done)


def _poll(ctx: Context, address: str, parity: str, cluster: bool, word: str) -> str:
    word = word if ctx.target.supports(Feature.MBARRIER_TRY_WAIT) else "test_wait"
    scope = ".acquire.cluster" if cluster else ""
    text = f"mbarrier.{word}.parity{scope}.shared::cta.b64 $0, [$1], $2;"
    (ready,) = ctx.e.asm(text, "=b,r,r,~{memory}", [("i32", address), ("i32", parity)], ["i1"])
    return ready


RULES = {WarpgroupBarrier: lower_warpgroup_barrier, BarrierArrive: lower_arrive, BarrierWait: lower_wait}
