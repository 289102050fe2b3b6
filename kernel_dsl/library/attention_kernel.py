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
LOWEST = -1e30  # finite, so that a row with nothing in it stays free of NaN


@dataclass(frozen=True)
class AttentionConfig:
    """`consumers` warpgroups of 64 queries each, `block_kv` keys a step, `stages` of keys and of values in SMEM."""

    consumers: int = 2
    block_kv: int = 128
    stages: int = 2


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
    if problem.dim <= 64:
        return AttentionConfig(2, 128, 4)
    if problem.dim <= 128:
        return AttentionConfig(2, 128, 2)
    return AttentionConfig(2, 80, 2)


@cache
def attention_kernel(problem: AttentionProblem, config: AttentionConfig) -> Any:
    """The kernel `(q, k, v) -> out` or `-> (out, lse)`."""
    p, t = problem, config
    tile = ROWS * t.consumers
    tiles = kd.cdiv(p.queries, tile)
    blocks = kd.cdiv(p.keys, t.block_kv)
    scale = p.scale * LOG2E
    group = p.heads // p.kv_heads
    transforms = (kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))
    ragged = p.keys % t.block_kv != 0

    def place() -> tuple[Any, Any, Any, Any]:
        """(batch, head, first query, blocks of keys): the longest causal tiles come first."""
        head = kd.axis_index("head")
        row = tiles - 1 - kd.axis_index("tile") if p.causal else kd.axis_index("tile")
        first = row * tile
        count: Any = blocks
        if p.causal:
            count = kd.minimum(kd.cdiv(first + tile, t.block_kv), blocks)
        return kd.div(head, p.heads), kd.rem(head, p.heads), first, count

    def next_slot(slot: Any) -> Any:
        return kd.where(slot == t.stages - 1, 0, slot + 1)

    def produce(q: Any, k: Any, v: Any, s: dict[str, Any]) -> None:
        kd.set_max_registers(32 if t.consumers == 3 else 40, action="decrease")
        batch, head, first, count = place()
        kv_head = kd.div(head, group)
        for i in range(t.consumers):
            rows = kd.ds(first + i * ROWS, ROWS)
            kd.copy_gmem_to_smem(q.at[batch, head, rows], s["q_smem"].at[i], s["q_loaded"].at[i])

        @kd.loop(0, count, init_carry=0)
        def _(step: Any, slot: Any) -> Any:
            keys = kd.ds((count - 1 - step) * t.block_kv, t.block_kv)
            for name, source in (("k", k), ("v", v)):

                @kd.when(step >= t.stages)
                def _(name: str = name) -> None:
                    kd.barrier_wait(s[f"{name}_consumed"].at[slot])

                target = s[f"{name}_smem"].at[slot]
                kd.copy_gmem_to_smem(source.at[batch, kv_head, keys], target, s[f"{name}_loaded"].at[slot])
            return next_slot(slot)

    def consume(me: Any, out: Any, lse: Any, s: dict[str, Any]) -> None:
        kd.set_max_registers(160 if t.consumers == 3 else 232, action="increase")
        batch, head, first, count = place()
        q_tile = s["q_smem"].at[me]
        row = first + me * ROWS + kd.broadcasted_iota(kd.int32, (ROWS, t.block_kv), 0)
        column = kd.broadcasted_iota(kd.int32, (ROWS, t.block_kv), 1)

        def scores(acc: Any, slot: Any) -> None:
            kd.barrier_wait(s["k_loaded"].at[slot])
            kd.wgmma(acc, q_tile, s["k_smem"].at[slot].T, accumulate=False)

        def step(index: Any, carry: Any, accs: tuple[Any, Any], masked: bool, last: bool) -> Any:
            slot, top, total = carry
            s_acc, o_acc = accs
            x = kd.wgmma_accumulator_load(s_acc)
            kd.barrier_arrive(s["k_consumed"].at[slot])
            following = next_slot(slot)
            if not last:
                scores(s_acc, following)
            if masked:
                key = (count - 1 - index) * t.block_kv + column
                seen = key <= row if p.causal else key < p.keys
                if p.causal and ragged:
                    seen = seen & (key < p.keys)
                x = kd.where(seen, x, -math.inf)
            new_top = kd.maximum(top, kd.max(x, axis=1))
            shift = new_top * scale
            weights = kd.exp2(kd.fma(x, scale, -shift[:, None]))
            # the difference first: rows with nothing yet must fade by exactly 1
            fade = kd.exp2((top - new_top) * scale)
            total = total * fade + kd.sum(weights, axis=1)
            o_acc[...] = kd.wgmma_accumulator_load(o_acc, wait_n=None) * fade[:, None]
            kd.barrier_wait(s["v_loaded"].at[slot])
            kd.wgmma(o_acc, weights.astype(p.dtype), s["v_smem"].at[slot])
            kd.wgmma_wait(0)
            kd.barrier_arrive(s["v_consumed"].at[slot])
            return following, new_top, total

        def run(s_acc: Any, o_acc: Any) -> Any:
            accs = (s_acc, o_acc)
            kd.barrier_wait(s["q_loaded"].at[me])
            scores(s_acc, 0)
            o_acc[...] = kd.zeros((ROWS, p.dim), kd.float32)
            layout = kd.Layout.WGMMA_ROW
            top = kd.layout_cast(kd.full((ROWS,), LOWEST, kd.float32), layout)
            carry = (0, top, kd.layout_cast(kd.zeros((ROWS,), kd.float32), layout))
            steps = count - 1
            edge: Any = 0
            if p.causal:
                # blocks that reach beyond the first query of the tile, or beyond the last key
                edge = kd.minimum(kd.maximum(count - kd.div(first, t.block_kv), int(ragged)), steps)
            elif ragged:
                edge = min(1, blocks - 1)
            if p.causal or ragged:
                carry = kd.loop(0, edge, init_carry=carry)(partial(step, accs=accs, masked=True, last=False))
            carry = kd.loop(edge, steps, init_carry=carry)(partial(step, accs=accs, masked=False, last=False))
            _, top, total = step(steps, carry, accs, p.causal or ragged, True)
            return o_acc[...], top, total

        value, top, total = kd.run_scoped(
            run, kd.ACC((ROWS, t.block_kv), kd.float32), kd.ACC((ROWS, p.dim), kd.float32)
        )
        q_tile[...] = (value * (1.0 / total)[:, None]).astype(p.dtype)
        rows = kd.ds(first + me * ROWS, ROWS)
        kd.commit_smem()
        kd.copy_smem_to_gmem(q_tile, out.at[batch, head, rows])
        if p.lse:
            lse[batch, head, rows] = (top * scale + kd.log2(total)) * (1.0 / LOG2E)
        kd.wait_smem_to_gmem(0)

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
    return kd.kernel(
        body,
        out_type=out_type,
        scratch_types=scratch,
        grid=(p.batch * p.heads, tiles),
        grid_names=("head", "tile"),
        num_threads=t.consumers + 1,
        thread_name="wg",
        compiler_params=kd.CompilerParams(approx_math=True),
        name="attention",
    )
