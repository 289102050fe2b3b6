"""Flash attention forward on Hopper: a producer warpgroup, and consumers that each own 64 rows of queries.

A consumer issues the next block's scores before it works on this block's softmax, so that tensor cores and the
exponential unit are busy together; two consumers fill each other's gaps. Scores and weights never leave registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import kernel_dsl as kd

ROWS = 64  # queries of a consumer
LOG2E = math.log2(math.e)
SLACK = 8.0
MAGIC = 1.5 * 2.0**23
# 2 ** f for |f| <= 1/2, of least relative error (7.5e-5)
C0, C1, C2, C3 = 0.99992807, 0.69326099, 0.24261112, 0.05517166
LOWEST = -1e30  # finite, so that a row with nothing in it stays free of NaN


@dataclass(frozen=True)
class AttentionConfig:
    """`consumers` warpgroups of 64 queries each, `block_kv` keys a step, `stages` of keys and of values in SMEM."""

    consumers: int = 2
    block_kv: int = 128
    stages: int = 2
    partial: bool = False
    turns: bool = False
    lazy: bool = False
    persistent: bool = False
    polynomial: int = 0

    @property
    def registers(self) -> tuple[int, int]:
        """Registers a lane of consumers, and of the producer."""
        return {1: (240, 40), 2: (232, 40), 3: (160, 32), 4: (112, 24)}[self.consumers]


@dataclass(frozen=True)
class AttentionProblem:
    """q is (batch, heads, queries, dim), k and v are (batch, kv_heads, keys, dim)."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    dtype: Any
    causal: bool
    scale: float
    lse: bool


def default_config(problem: AttentionProblem) -> AttentionConfig:
    """What fits registers and SMEM best for a head dimension."""
    keys, stages = (128, 4) if problem.dim <= 64 else (128, 2) if problem.dim <= 128 else (80, 2)
    return AttentionConfig(2, keys, stages, partial=True, lazy=True, turns=True)


def exp2_polynomial(x: Any) -> Any:
    """2 ** x to 1e-4 of itself, for x <= 0, by adds and multiplies: what is below 2 ** -125 gives about that."""
    x = kd.maximum(x, -125.0)
    # adding 1.5 * 2 ** 23 rounds to an integer, which then is in the low bits
    shifted = x + MAGIC
    f = x - (shifted - MAGIC)
    y = kd.fma(kd.fma(kd.fma(f, C3, C2), f, C1), f, C0)
    exponent = kd.bitcast_convert_type(shifted, kd.int32) << 23
    return kd.bitcast_convert_type(kd.bitcast_convert_type(y, kd.int32) + exponent, kd.float32)


@cache
def attention_kernel(problem: AttentionProblem, config: AttentionConfig, multiprocessors: int = 132) -> Any:
    """The kernel `(q, k, v) -> out` or `-> (out, lse)`; a persistent one has a block for each multiprocessor."""
    p, t = problem, config
    tile = ROWS * t.consumers
    tiles = kd.cdiv(p.queries, tile)
    blocks = kd.cdiv(p.keys, t.block_kv)
    scale = p.scale * LOG2E
    group = p.heads // p.kv_heads
    transforms = (kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))
    ragged = p.keys % t.block_kv != 0

    work = p.batch * p.heads * tiles
    grid = min(work, multiprocessors) if t.persistent else work

    def each_tile(carry: Any, body: Any) -> None:
        """`body(tile number, carry) -> carry` for the tiles of this block."""
        block = kd.axis_index("block")
        if grid == work:
            body(block, carry)
            return
        mirrored = grid - 1 - block  # every other round goes backwards: long and short causal tiles even out
        rounds, rest = divmod(work, grid)
        last = mirrored if rounds % 2 else block
        rounds = rounds + kd.where(last < rest, 1, 0)

        @kd.loop(0, rounds, init_carry=carry)
        def _(turn: Any, carry: Any) -> Any:
            return body(turn * grid + kd.where(turn % 2 == 0, block, mirrored), carry)

    def place(number: Any) -> tuple[Any, Any, Any, Any]:
        """(batch, head, first query, blocks of keys): the longest causal tiles of a head come first."""
        head, row = kd.div(number, tiles), kd.rem(number, tiles)
        if p.causal:
            row = tiles - 1 - row
        first = row * tile
        count: Any = blocks
        if p.causal:
            count = kd.minimum(kd.cdiv(first + tile, t.block_kv), blocks)
        return kd.div(head, p.heads), kd.rem(head, p.heads), first, count

    def next_slot(slot: Any) -> Any:
        return kd.where(slot == t.stages - 1, 0, slot + 1)

    def produce(q: Any, k: Any, v: Any, s: dict[str, Any]) -> None:
        kd.set_max_registers(t.registers[1], action="decrease")

        def fetch(number: Any, carry: Any) -> Any:
            batch, head, first, count = place(number)
            kv_head = kd.div(head, group)

            def fetch_queries(again: Any) -> None:
                for i in range(t.consumers):
                    rows = kd.ds(first + i * ROWS, ROWS)
                    if grid < work:
                        kd.when(again)(partial(kd.barrier_wait, s["q_consumed"].at[i]))
                    kd.copy_gmem_to_smem(q.at[batch, head, rows], s["q_smem"].at[i], s["q_loaded"].at[i])

            @kd.loop(0, count, init_carry=carry)
            def end(step: Any, carry: Any) -> Any:
                slot, filled = carry
                keys = kd.ds((count - 1 - step) * t.block_kv, t.block_kv)
                for name, source in (("k", k), ("v", v)):
                    kd.when(filled >= t.stages)(partial(kd.barrier_wait, s[f"{name}_consumed"].at[slot]))
                    target = s[f"{name}_smem"].at[slot]
                    kd.copy_gmem_to_smem(source.at[batch, kv_head, keys], target, s[f"{name}_loaded"].at[slot])
                    if name == "k":
                        kd.when(step == 0)(partial(fetch_queries, filled > 0))
                return next_slot(slot), kd.minimum(filled + 1, t.stages)

            return end

        each_tile((0, 0), fetch)

    def softmax(x: Any, top: Any, total: Any, seen: Any) -> tuple[Any, Any, Any, Any]:
        """(weights, what earlier weights fade by, maximum so far, sum so far) with one more block of scores."""
        if seen is not None:
            x = kd.where(seen, x, -math.inf)
        new_top = kd.maximum(top, kd.max(x, axis=1))
        if t.lazy:
            # weights may grow to 2 ** SLACK before all are scaled down: the division at the end makes up for it
            new_top = kd.where((new_top - top) * scale > SLACK, new_top, top)
        weights = exponentials(kd.fma(x, scale, -(new_top * scale)[:, None]))
        # the difference first: rows with nothing yet must fade by exactly 1
        fade = kd.exp2((top - new_top) * scale)
        if t.partial:
            # each lane sums its own columns; lanes are summed after the last block
            total = kd.fma(total, fade[:, None], weights[:, :8])
            total = sum((weights[:, i : i + 8] for i in range(8, t.block_kv, 8)), total)
        else:
            total = total * fade + kd.sum(weights, axis=1)
        return weights, fade, new_top, total

    def exponentials(x: Any) -> Any:
        """2 ** x. Some columns are left to the FMA units, as the exponential unit is slower than the tensor cores."""
        if not t.polynomial:
            return kd.exp2(x)
        rest = t.block_kv - t.polynomial
        return kd.concatenate([kd.exp2(x[:, :rest]), exp2_polynomial(x[:, rest:])], axis=1)

    def consume(me: Any, out: Any, lse: Any, s: dict[str, Any]) -> None:
        kd.set_max_registers(t.registers[0], action="increase")
        out_tile = s["out_smem"].at[me] if "out_smem" in s else s["q_smem"].at[me]
        if t.turns:
            kd.when(me == t.consumers - 1)(partial(pass_turn, me, s["turn"]))

        def attend(number: Any, slot: Any) -> Any:
            slot = consume_tile(me, number, slot, out, lse, out_tile, s)
            return slot

        each_tile(0, attend)
        kd.wait_smem_to_gmem(0)

    def pass_turn(me: Any, turn: Any) -> None:
        kd.barrier_arrive(turn.at[kd.where(me == t.consumers - 1, 0, me + 1)])

    def consume_tile(me: Any, number: Any, start: Any, out: Any, lse: Any, out_tile: Any, s: dict[str, Any]) -> Any:
        batch, head, first, count = place(number)
        q_tile = s["q_smem"].at[me]
        row = first + me * ROWS + kd.broadcasted_iota(kd.int32, (ROWS, t.block_kv), 0)
        column = kd.broadcasted_iota(kd.int32, (ROWS, t.block_kv), 1)

        def mask(index: Any, masked: bool) -> Any:
            if not masked or not (p.causal or ragged):
                return None
            key = (count - 1 - index) * t.block_kv + column
            seen = key <= row if p.causal else key < p.keys
            return seen & (key < p.keys) if p.causal and ragged else seen

        def scores(acc: Any, slot: Any) -> None:
            kd.barrier_wait(s["k_loaded"].at[slot])
            if t.turns:
                kd.barrier_wait(s["turn"].at[me])
            kd.wgmma(acc, q_tile, s["k_smem"].at[slot].T, accumulate=False)

        def add(acc: Any, weights: Any, slot: Any) -> None:
            kd.wgmma(acc, weights, s["v_smem"].at[slot])

        def step(index: Any, carry: Any, accs: tuple[Any, Any], masked: bool) -> Any:
            """Scores of block `index` beside the product of the block before; then the former's softmax."""
            slot, weights, top, total = carry
            s_acc, o_acc = accs
            following = next_slot(slot)
            scores(s_acc, following)
            add(o_acc, weights, slot)
            if t.turns:
                pass_turn(me, s["turn"])
            x = kd.wgmma_accumulator_load(s_acc, wait_n=1)
            kd.barrier_arrive(s["k_consumed"].at[following])
            weights, fade, top, total = softmax(x, top, total, mask(index, masked))
            # all of the softmax goes beside the product: the assembler moves nothing across a barrier's loop
            weights, fade, top, total = kd.optimization_barrier(weights, fade, top, total)
            kd.barrier_wait(s["v_loaded"].at[following])
            kd.wgmma_wait(0)
            kd.barrier_arrive(s["v_consumed"].at[slot])
            if t.lazy:
                o_acc.scale_rows(fade)
            else:
                o_acc[...] = kd.wgmma_accumulator_load(o_acc, wait_n=None) * fade[:, None]
            return following, kd.optimization_barrier(weights.astype(p.dtype)), top, total

        def run(s_acc: Any, o_acc: Any) -> Any:
            accs = (s_acc, o_acc)
            kd.barrier_wait(s["q_loaded"].at[me])
            scores(s_acc, start)
            if t.turns:
                pass_turn(me, s["turn"])
            o_acc[...] = kd.zeros((ROWS, p.dim), kd.float32)
            top = kd.layout_cast(kd.full((ROWS,), LOWEST, kd.float32), kd.Layout.WGMMA_ROW)
            if t.partial:
                total = kd.layout_cast(kd.zeros((ROWS, 8), kd.float32), kd.Layout.WGMMA)
            else:
                total = kd.layout_cast(kd.zeros((ROWS,), kd.float32), kd.Layout.WGMMA_ROW)
            x = kd.wgmma_accumulator_load(s_acc)
            kd.barrier_arrive(s["k_consumed"].at[start])
            weights, _, top, total = softmax(x, top, total, mask(0, True))
            kd.barrier_wait(s["v_loaded"].at[start])
            carry = (start, weights.astype(p.dtype), top, total)
            edge: Any = 1
            if p.causal:
                # blocks that reach beyond the first query of the tile
                edge = kd.minimum(kd.maximum(count - kd.div(first, t.block_kv), 1), count)
                carry = kd.loop(1, edge, init_carry=carry)(partial(step, accs=accs, masked=True))
            carry = kd.loop(edge, count, init_carry=carry)(partial(step, accs=accs, masked=False))
            slot, weights, top, total = carry
            if grid < work and "out_smem" in s:
                kd.barrier_arrive(s["q_consumed"].at[me])
            add(o_acc, weights, slot)
            if t.partial:
                total = kd.sum(total, axis=1)
            value = o_acc[...]
            kd.barrier_arrive(s["v_consumed"].at[slot])
            return value, top, total, next_slot(slot)

        value, top, total, slot = kd.run_scoped(
            run, kd.ACC((ROWS, t.block_kv), kd.float32), kd.ACC((ROWS, p.dim), kd.float32)
        )
        kd.wait_smem_to_gmem(0, wait_read_only=True)
        out_tile[...] = (value * (1.0 / total)[:, None]).astype(p.dtype)
        rows = kd.ds(first + me * ROWS, ROWS)
        kd.commit_smem()
        kd.copy_smem_to_gmem(out_tile, out.at[batch, head, rows])
        if p.lse:
            lse[batch, head, rows] = (top * scale + kd.log2(total)) * (1.0 / LOG2E)
        if grid < work and "out_smem" not in s:
            kd.wait_smem_to_gmem(0, wait_read_only=True)
            kd.barrier_arrive(s["q_consumed"].at[me])
        return slot

    def body(q: Any, k: Any, v: Any, out: Any, *rest: Any, **scratch: Any) -> None:
        me = kd.axis_index("wg")

        @kd.when(me == t.consumers)
        def _() -> None:
            produce(q, k, v, scratch)

        @kd.when(me < t.consumers)
        def _() -> None:
            consume(me, out, rest[0] if p.lse else None, scratch)

    out_type: Any = kd.ShapeDtypeStruct((p.batch, p.heads, p.queries, p.dim), p.dtype)
    if p.lse:
        out_type = (out_type, kd.ShapeDtypeStruct((p.batch, p.heads, p.queries), kd.float32))
    ring = (t.stages, t.block_kv, p.dim)
    scratch = {
        "q_smem": kd.SMEM((t.consumers, ROWS, p.dim), p.dtype, transforms=transforms),
        "k_smem": kd.SMEM(ring, p.dtype, transforms=transforms),
        "v_smem": kd.SMEM(ring, p.dtype, transforms=transforms),
        "q_loaded": kd.Barrier(num_barriers=t.consumers),
    }
    for name in "kv":
        scratch[f"{name}_loaded"] = kd.Barrier(num_barriers=t.stages)
        scratch[f"{name}_consumed"] = kd.Barrier(num_arrivals=t.consumers, num_barriers=t.stages)
    if grid < work:
        scratch["q_consumed"] = kd.Barrier(num_barriers=t.consumers)
        if p.dim <= 128:
            scratch["out_smem"] = kd.SMEM((t.consumers, ROWS, p.dim), p.dtype, transforms=transforms)
    if t.turns:
        scratch["turn"] = kd.Barrier(num_barriers=t.consumers)
    return kd.kernel(
        body,
        out_type=out_type,
        scratch_types=scratch,
        grid=(grid,),
        grid_names=("block",),
        num_threads=t.consumers + 1,
        thread_name="wg",
        compiler_params=kd.CompilerParams(approx_math=True),
        name="attention",
    )
