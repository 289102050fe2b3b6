"""Barriers: of a warpgroup's lanes, and mbarriers."""

from __future__ import annotations

from math import prod

from kernel_dsl.ir import Value
from kernel_dsl.ops.barrier import BarrierArrive, BarrierTest, BarrierWait
from kernel_dsl.ops.sync import WarpgroupBarrier
from kernel_dsl.target import Feature

from ..context import WARPS, Barriers, Context, Rules

PHASES = 64  # of barriers in a word
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


def arrive(ctx: Context, barrier: Value, address: str, predicate: Value | None, own: bool = False) -> None:
    """One arrival of the warpgroup: each warp arrives once its lanes are here, on all blocks that share the barrier.

    So the phase ends after every lane got here, without a barrier between the warps. `own`: on this block's alone.
    """
    ctx.e.do("call void @llvm.nvvm.bar.warp.sync(i32 -1) #0")
    count = WARPS if ctx.warp_level else 1  # a warp on its own stands for the warpgroup
    if own or not barrier.type.cluster:
        guard = ctx.e.both(ctx.warp_leader(), None if predicate is None else ctx.scalar(predicate))
        # a count is an operand from Hopper on only
        ctx.e.asm(
            "{ .reg .b64 state; " + "@$1 mbarrier.arrive.shared::cta.b64 state, [$0]; " * count + "}",
            "r,b,~{memory}",
            [("i32", address), ("i1", guard or "true")],
        )
        return
    # lane i arrives at the i-th block
    lane = ctx.bit_field(0, 5)
    rank, blocks = _peer(ctx, barrier.type.cluster, lane)
    guard = ctx.e.pre(f"icmp ult i32 {lane}, {blocks}")
    if predicate is not None:
        guard = ctx.e.v(f"and i1 {guard}, {ctx.scalar(predicate)}")
    scope = ".release.cluster" if ctx.blocks_pass_data else ""
    text = (
        "{ .reg .b32 peer; mapa.shared::cluster.u32 peer, $0, $1; "
        f"@$2 mbarrier.arrive{scope}.shared::cluster.b64 _, [peer], {count}; }}"
    )
    ctx.e.asm(text, "r,r,b,~{memory}", [("i32", address), ("i32", rank), ("i1", guard)])


def _peer(ctx: Context, groups: tuple[tuple[int, ...], ...], lane: str) -> tuple[str, int]:
    """The rank of the block that a lane arrives at, and how many blocks there are: each once, this one included."""
    e = ctx.e
    count = prod(ctx.ir.cluster[p].size for p in groups[0])
    rank = ctx.cluster_peer(groups[0], lane)
    for axes in groups[1:]:
        size = prod(ctx.ir.cluster[p].size for p in axes)
        # the first group already has this block: start with the next one
        step = e.v(f"add i32 {e.v(f'sub i32 {lane}, {count - 1}')}, {ctx.cluster_linear(axes)}")
        other = ctx.cluster_peer(axes, e.v(f"urem i32 {step}, {size}"))
        rank = e.v(f"select i1 {e.v(f'icmp ult i32 {lane}, {count}')}, i32 {rank}, i32 {other}")
        count += size - 1
    return rank, count


def _scoped(ctx: Context, barrier: Value) -> bool:
    return bool(barrier.type.cluster) and ctx.blocks_pass_data


def lower_arrive(ctx: Context, op: BarrierArrive) -> None:
    arrive(ctx, op.barrier, barrier_address(ctx, op.barrier, op.index), op.predicate)


def _phase(ctx: Context, barriers: Barriers, index: str) -> tuple[str, str]:
    """Where the phase of barrier number `index` is: the address of its word, and its bit there, i64."""
    e = ctx.e
    if index.isdigit():
        word, bit = divmod(int(index), PHASES)
        if not word:
            return barriers.phases, str(bit)
        return e.v(f"getelementptr i64, ptr {barriers.phases}, i32 {word}"), str(bit)
    if barriers.count <= PHASES:
        return barriers.phases, e.v(f"zext i32 {index} to i64")
    word = e.v(f"udiv i32 {index}, {PHASES}")
    place = e.v(f"getelementptr i64, ptr {barriers.phases}, i32 {word}")
    return place, e.v(f"zext i32 {e.v(f'urem i32 {index}, {PHASES}')} to i64")


def lower_wait(ctx: Context, op: BarrierWait) -> None:
    e = ctx.e
    barriers = ctx.barriers[op.barrier]
    index = _index32(ctx, op.index)
    address = _address(ctx, barriers, index)
    place, wide = _phase(ctx, barriers, index)
    phases = e.v(f"load i64, ptr {place}")
    shifted = e.v(f"lshr i64 {phases}, {wide}")
    parity = e.v(f"trunc i64 {e.v(f'and i64 {shifted}, 1')} to i32")
    wait_parity(ctx, address, parity, _scoped(ctx, op.barrier))
    bit = e.v(f"shl i64 1, {wide}")
    e.do(f"store i64 {e.v(f'xor i64 {phases}, {bit}')}, ptr {place}")


def lower_test(ctx: Context, op: BarrierTest) -> None:
    """One lane asks and tells the others; where the phase has ended, it counts as waited for."""
    e = ctx.e
    barriers = ctx.barriers[op.barrier]
    index = _index32(ctx, op.index)
    address = _address(ctx, barriers, index)
    place, wide = _phase(ctx, barriers, index)
    phases = e.v(f"load i64, ptr {place}")
    shifted = e.v(f"lshr i64 {phases}, {wide}")
    parity = e.v(f"trunc i64 {e.v(f'and i64 {shifted}, 1')} to i32")
    ready = _poll(ctx, address, parity, _scoped(ctx, op.barrier), "test_wait")
    word = e.v(f"zext i1 {ready} to i32")
    if ctx.warp_level:
        agreed = e.v(f"call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 {word}, i32 0, i32 31) #0")
    else:
        base = ctx.exchange(8)
        args = [("i32", base), ("i32", word), ("i1", ctx.first_lane())]
        e.asm("@$2 st.shared.b32 [$0], $1;", "r,r,b,~{memory}", args)
        ctx.sync()
        (agreed,) = e.asm("ld.shared.b32 $0, [$1];", "=r,r,~{memory}", [("i32", base)], ["i32"])
    done = e.v(f"icmp ne i32 {agreed}, 0")
    # a lane that was behind must see the phase itself before it reads what the phase stands for
    yes, end = e.label(), e.label()
    e.branch(done, yes, end)
    e.begin(yes)
    wait_parity(ctx, address, parity, _scoped(ctx, op.barrier))
    e.jump(end)
    e.begin(end)
    bit = e.v(f"select i1 {done}, i64 {e.v(f'shl i64 1, {wide}')}, i64 0")
    e.do(f"store i64 {e.v(f'xor i64 {phases}, {bit}')}, ptr {place}")
    ctx.values[op.result] = [done]


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


RULES: Rules = {
    WarpgroupBarrier: lower_warpgroup_barrier,
    BarrierArrive: lower_arrive,
    BarrierTest: lower_test,
    BarrierWait: lower_wait,
}
