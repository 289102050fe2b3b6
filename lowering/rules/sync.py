"""Barriers: of a warpgroup's lanes, and mbarriers."""

from __future__ import annotations

from math import prod

from kernel_dsl.ir import Value
from kernel_dsl.ops.barrier import BarrierArrive, BarrierTest, BarrierWait
from kernel_dsl.ops.copy import CopyGmemToSmem, CopySmemToGmem
from kernel_dsl.ops.sync import GmemProxyFence, SmemProxyFence, WarpgroupBarrier
from kernel_dsl.target import Feature

from ..context import WARPS, Context, Rules
from ..lowered import NamedBarriers
from ..value import V

PHASES = 64  # of barriers in a word
MBARRIER_BYTES = 8  # PTX ISA 9.7.13.15.2: a 64-bit object, 8-byte aligned


def lower_gmem_proxy_fence(ctx: Context, op: GmemProxyFence) -> None:
    if ctx.target.supports(Feature.TMA) and any(isinstance(o, (CopyGmemToSmem, CopySmemToGmem)) for o in ctx.ops):
        ctx.e.ptx("fence.proxy.async.global;")


def lower_smem_proxy_fence(ctx: Context, op: SmemProxyFence) -> None:
    ctx.e.ptx("fence.proxy.async.shared::cta;")


def lower_warpgroup_barrier(ctx: Context, op: WarpgroupBarrier) -> None:
    ctx.sync()


def barrier_address(ctx: Context, barrier: Value, index: Value) -> V:
    """The SMEM address of barrier number `index`, i32."""
    return ctx.barriers[barrier].address + ctx.index(index) * MBARRIER_BYTES


def arrive(ctx: Context, barrier: Value, address: V, predicate: Value | None, own: bool = False) -> None:
    """One arrival of the warpgroup: each warp arrives after its lanes, on all blocks that share the barrier.

    So the phase ends after every lane has arrived, without a barrier between the warps. `own`: only on this block's
    barrier.
    """
    e = ctx.e
    ctx.sync_warp()
    count = WARPS if ctx.warp_level else 1  # inside `warp_map` one warp arrives for the warpgroup
    asked = None if predicate is None else ctx.scalar(predicate)
    if own or not barrier.type.cluster:
        # a count is an operand from Hopper on only
        text = "{ .reg .b64 state; " + "@$1 mbarrier.arrive.shared::cta.b64 state, [$0]; " * count + "}"
        e.ptx(text, address, e.all(ctx.warp_leader(), asked))
        return
    # lane i arrives at the i-th block
    lane = ctx.bit_field(0, 5)
    rank, blocks = _peer(ctx, barrier.type.cluster, lane)
    if barrier.type.leader:  # lane 0 arrives on the first block
        blocks = 1
    guard = e.all(lane.once.below(blocks), asked)
    scope = ".release.cluster" if ctx.blocks_pass_data else ""
    if ctx.stored is not None:
        e.ptx("@$0 fence.acq_rel.cluster;", e.load("i32", ctx.stored).differs(0))
        e.store(e.i32(0), ctx.stored)
    text = (
        "{ .reg .b32 peer; mapa.shared::cluster.u32 peer, $0, $1; "
        f"@$2 mbarrier.arrive{scope}.shared::cluster.b64 _, [peer], {count}; }}"
    )
    e.ptx(text, address, rank, guard)


def _peer(ctx: Context, groups: tuple[tuple[int, ...], ...], lane: V) -> tuple[V, int]:
    """The rank of the block that a lane arrives on, and the number of blocks, this one included."""
    count = prod(ctx.ir.cluster[p].size for p in groups[0])
    rank = ctx.cluster_peer(groups[0], lane)
    for axes in groups[1:]:
        size = prod(ctx.ir.cluster[p].size for p in axes)
        # the first group already has this block: start with the next one
        step = lane - (count - 1) + ctx.cluster_linear(axes)
        other = ctx.cluster_peer(axes, step % size)
        rank = lane.below(count).where(rank, other)
        count += size - 1
    return rank, count


class _Phase:
    """The phase of one barrier that this warpgroup waits for next: a bit of a word that each lane keeps."""

    def __init__(self, ctx: Context, barrier: Value, index: Value) -> None:
        self.ctx = ctx
        self.scoped = bool(barrier.type.cluster) and ctx.blocks_pass_data
        barriers, number = ctx.barriers[barrier], ctx.index(index)
        self.address = barriers.address + number * MBARRIER_BYTES
        self.place, self.bit = self._find(barriers, number)
        self.phases = ctx.e.load(barriers.word, self.place)
        parity = (self.phases >> self.bit) & 1
        self.parity = parity if barriers.word == "i32" else parity.trunc("i32")
        self.own = (ctx.e.i32(1) if barriers.word == "i32" else ctx.e.i64(1)) << self.bit

    def _find(self, barriers: NamedBarriers, index: V) -> tuple[str, V]:
        """The address of the phase's word, and its bit there, of the word's type."""
        e, known = self.ctx.e, index.constant
        if barriers.word == "i32":
            return barriers.phases, e.i32(known) if known is not None else index
        if barriers.count <= PHASES or (known is not None and known < PHASES):
            return barriers.phases, e.i64(known) if known is not None else index.zext("i64")
        word = index // PHASES
        place = e.v(f"getelementptr i64, ptr {barriers.phases}, i32 {word}", "ptr")
        return place, e.i64(known % PHASES) if known is not None else (index % PHASES).zext("i64")

    def wait(self) -> None:
        """Test until the phase has completed."""
        e = self.ctx.e
        again, done = e.label(), e.label()
        e.jump(again)
        e.begin(again)
        e.branch(self.poll("try_wait"), done, again)
        e.begin(done)

    def poll(self, word: str) -> V:
        """Whether the phase has completed."""
        word = word if self.ctx.target.supports(Feature.MBARRIER_TRY_WAIT) else "test_wait"
        scope = ".acquire.cluster" if self.scoped else ""
        text = f"mbarrier.{word}.parity{scope}.shared::cta.b64 $0, [$1], $2;"
        return self.ctx.e.ptx(text, self.address, self.parity, results=["i1"])[0]

    def flip(self, bit: V) -> None:
        """Wait for the next phase from now on, if `bit` is set."""
        self.ctx.e.store(self.phases ^ bit, self.place)


def lower_arrive(ctx: Context, op: BarrierArrive) -> None:
    arrive(ctx, op.barrier, barrier_address(ctx, op.barrier, op.index), op.predicate)


def lower_wait(ctx: Context, op: BarrierWait) -> None:
    phase = _Phase(ctx, op.barrier, op.index)
    phase.wait()
    phase.flip(phase.own)


def lower_test(ctx: Context, op: BarrierTest) -> None:
    """One lane tests the phase and shares the answer. A completed phase counts as waited for."""
    e = ctx.e
    phase = _Phase(ctx, op.barrier, op.index)
    word = phase.poll("test_wait").zext("i32")
    if ctx.warp_level:
        agreed = e.v(f"call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 {word}, i32 0, i32 31) #0", "i32")
    else:
        base = ctx.exchange(8)
        e.ptx("@$2 st.shared.b32 [$0], $1;", base, word, ctx.first_lane())
        ctx.sync()
        (agreed,) = e.ptx("ld.shared.b32 $0, [$1];", base, results=["i32"])
    done = agreed.differs(0)
    # every lane must observe the phase itself before it reads the data that the phase protects
    e.only_where(done, phase.wait)
    phase.flip(done.where(phase.own, 0))
    ctx.values[op.result] = [done]


RULES: Rules = {
    WarpgroupBarrier: lower_warpgroup_barrier,
    GmemProxyFence: lower_gmem_proxy_fence,
    SmemProxyFence: lower_smem_proxy_fence,
    BarrierArrive: lower_arrive,
    BarrierTest: lower_test,
    BarrierWait: lower_wait,
}
