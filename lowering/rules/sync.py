"""Barriers: of a warpgroup's lanes, and mbarriers."""

from __future__ import annotations

from kernel_dsl.ops.barrier import BarrierArrive, BarrierWait
from kernel_dsl.ops.sync import WarpgroupBarrier
from kernel_dsl.target import Feature

from ..context import Barriers, Context

MBARRIER_BYTES = 8  # PTX ISA 9.7.13.15.2: a 64-bit object, 8-byte aligned


def lower_warpgroup_barrier(ctx: Context, op: WarpgroupBarrier) -> None:
    ctx.sync()


def _address(ctx: Context, barriers: Barriers, index: str) -> str:
    if index.isdigit():
        number = int(index) * MBARRIER_BYTES
        return ctx.e.v(f"add i32 {barriers.address}, {number}") if number else barriers.address
    return ctx.e.v(f"add i32 {barriers.address}, {ctx.e.v(f'mul i32 {index}, {MBARRIER_BYTES}')}")


def _index32(ctx: Context, op: BarrierArrive | BarrierWait) -> str:
    name = ctx.scalar(op.index)
    bits = op.index.type.dtype.bits
    if name.isdigit() or bits == 32:
        return name
    return ctx.e.v(f"trunc i64 {name} to i32" if bits == 64 else f"zext i{bits} {name} to i32")


def lower_arrive(ctx: Context, op: BarrierArrive) -> None:
    # all lanes first: the arrival stands for what the whole warpgroup did before
    ctx.sync()
    address = _address(ctx, ctx.barriers[op.barrier], _index32(ctx, op))
    predicate = ctx.e.pre(f"icmp eq i32 {ctx.local_thread()}, 0")
    if op.predicate is not None:
        predicate = ctx.e.v(f"and i1 {predicate}, {ctx.scalar(op.predicate)}")
    text = "{ .reg .b64 state; @$1 mbarrier.arrive.shared::cta.b64 state, [$0]; }"
    ctx.e.asm(text, "r,b,~{memory}", [("i32", address), ("i1", predicate)])


def lower_wait(ctx: Context, op: BarrierWait) -> None:
    e = ctx.e
    barriers = ctx.barriers[op.barrier]
    index = _index32(ctx, op)
    address = _address(ctx, barriers, index)
    phases = e.v(f"load i64, ptr {barriers.phases}")
    wide = index if index.isdigit() else e.v(f"zext i32 {index} to i64")
    shifted = e.v(f"lshr i64 {phases}, {wide}")
    parity = e.v(f"trunc i64 {e.v(f'and i64 {shifted}, 1')} to i32")
    wait_parity(ctx, address, parity)
    bit = e.v(f"shl i64 1, {wide}")
    e.do(f"store i64 {e.v(f'xor i64 {phases}, {bit}')}, ptr {barriers.phases}")


def wait_parity(ctx: Context, address: str, parity: str) -> None:
    """Spin until the phase with this parity has completed."""
    e = ctx.e
    word = "try_wait" if ctx.target.supports(Feature.MBARRIER_TRY_WAIT) else "test_wait"
    again, done = e.label(), e.label()
    e.jump(again)
    e.begin(again)
    text = f"mbarrier.{word}.parity.shared::cta.b64 $0, [$1], $2;"
    (ready,) = e.asm(text, "=b,r,r,~{memory}", [("i32", address), ("i32", parity)], ["i1"])
    e.branch(ready, done, again)
    e.begin(done)


RULES = {WarpgroupBarrier: lower_warpgroup_barrier, BarrierArrive: lower_arrive, BarrierWait: lower_wait}
