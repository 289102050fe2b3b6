"""The gradients of attention with options on Hopper, for head dimensions up to 128, and the small kernels around.

The order of products is that of `attention_backward_kernel`; functions of scores and masks work in registers.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .attention_backward_scored_walk import (
    KEYS,
    ScoredBlock,
    ScoredWalk,
    first_step,
    heavy,
    keys_of,
    padded_dim,
    steps_of,
)
from .attention_backward_walk import CONSUMERS, EIGHT, AttentionBackwardConfig, Step
from .attention_kernel import LOG2E, ROWS
from .attention_score import Place, ScoredProblem

FREE = 200  # registers that accumulators and left operands may take


def scored_backward_config(p: ScoredProblem, multiprocessors: int, in_turn: bool) -> AttentionBackwardConfig:
    """As many queries a step as registers allow, and as many splits as make blocks for all multiprocessors."""
    dim, keys = padded_dim(p), keys_of(p)
    blocks = p.batch * p.kv_heads * kd.cdiv(p.keys, keys)
    splits = 1 if p.ragged else next((n for n in (1, 2, 4) if blocks * n >= multiprocessors), 8)
    if dim > 192:
        parts, slots = (2, 1) if in_turn or p.ragged else (4, 3)
        return AttentionBackwardConfig(
            64, dout_stages=1, dq_parts=parts, dq_slots=slots, in_turn=in_turn, splits=splits
        )
    if dim > KEYS:
        return AttentionBackwardConfig(64, in_turn=in_turn, splits=splits)
    if heavy(p):  # slopes take as many registers as scores: one of scores and gradients of weights at a time
        return AttentionBackwardConfig(64, apart=True, in_turn=in_turn, splits=splits)
    if dim == KEYS:
        return AttentionBackwardConfig(64, stages=3, dout_stages=3, in_turn=in_turn, splits=splits)
    return AttentionBackwardConfig(128, in_turn=in_turn, splits=splits)


@cache
def scored_backward_kernel(
    problem: ScoredProblem, config: AttentionBackwardConfig, multiprocessors: int, listed: bool
) -> Any:
    """The kernel `(q, k, v, dout, stats, *extras) -> (dk, dv, dq_sum)`; `walk_extras` names the arrays between."""
    p, t = problem, config
    m = t.block_q
    walk = ScoredWalk(p, t, multiprocessors, listed)
    dim, by_dim = padded_dim(p), walk.by_row
    width = m if by_dim else m // CONSUMERS
    tight = dim + m // 2 + width // 2 > FREE

    def gradients_of(weights: Any, slope: Any, dp: Any, step: Step, s: dict[str, Any]) -> Any:
        delta = kd.load(s["stats_smem"], (step.slot, 1), layout=kd.Layout.WGMMA_COL)
        ds = weights * (dp - delta[None])
        return (ds if slope is None else ds * slope).astype(p.dtype)

    def softmax(
        block: ScoredBlock, key: Any, own: Any, accs: tuple[Any, Any, Any], step: Step, s: dict[str, Any]
    ) -> tuple[Any, Any]:
        """The weights and the gradients of scores, from `key` on. The weights' product with dout is then under way."""
        (k_own, v_own), (s_acc, dp_acc, dv_acc) = own, accs
        q_tile, dout_tile = s["q_smem"].at[step.slot], s["dout_smem"].at[step.dout_slot]
        kd.barrier_wait(s["q_loaded"].at[step.slot])
        kd.wgmma(s_acc, k_own, q_tile.T, accumulate=False)
        if not t.apart:
            kd.barrier_wait(s["dout_loaded"].at[step.dout_slot])
            kd.wgmma(dp_acc, v_own, dout_tile.T, accumulate=False)
            kd.wgmma_wait(1)
            weights, slope = walk.weights(s_acc, block, step, key, s)
            weights = kd.optimization_barrier(weights)
            dp = kd.wgmma_accumulator_load(dp_acc)
            ds = gradients_of(weights, slope, dp, step, s)
            left, ds = kd.optimization_barrier(weights.astype(p.dtype), ds)
            kd.wgmma(dv_acc, left, dout_tile)
            return left, ds
        kd.wgmma_wait(0)
        weights, slope = walk.weights(s_acc, block, step, key, s)
        left = kd.optimization_barrier(weights.astype(p.dtype))
        kd.barrier_wait(s["dout_loaded"].at[step.dout_slot])
        kd.wgmma(dp_acc, v_own, dout_tile.T, accumulate=False)
        kd.wgmma(dv_acc, left, dout_tile)
        dp = kd.wgmma_accumulator_load(dp_acc, wait_n=1)
        return left, kd.optimization_barrier(gradients_of(left.astype(kd.float32), slope, dp, step, s))

    def consume(me: Any, dk: Any, dv: Any, dq_sum: Any, s: dict[str, Any]) -> None:
        block = walk.block_of(s)
        mine, key = kd.ds(me * ROWS, ROWS), block.key + me * ROWS
        own = k_own, v_own = s["k_smem"].at[mine], s["v_smem"].at[mine]
        k_part = s["k_smem"].at[:, mine].T if by_dim else s["k_smem"].T
        ds_part = s["ds_smem"] if by_dim else s["ds_smem"].at[:, kd.ds(me * width, width)]

        def run(s_acc: Any, dp_acc: Any, dq_acc: Any, dk_acc: Any, dv_acc: Any) -> tuple[Any, Any]:
            dk_acc[...] = kd.zeros(dk_acc.shape, kd.float32)
            dv_acc[...] = kd.zeros(dv_acc.shape, kd.float32)
            kd.barrier_arrive(s["ds_read"])  # nothing is there yet

            @kd.when(block.count > 0)
            def _() -> None:
                for i in range(2):
                    kd.barrier_wait(s["kv_loaded"].at[i])

            def one(step: Step) -> None:
                left, ds = softmax(block, key, own, (s_acc, dp_acc, dv_acc), step, s)
                kd.barrier_wait(s["ds_read"])
                s["ds_smem"][mine] = ds
                kd.commit_smem()
                kd.barrier_arrive(s["ds_stored"])
                kd.wgmma(dk_acc, ds, s["q_smem"].at[step.slot])

                def release() -> None:
                    kd.optimization_barrier(left, ds)  # products read their registers until here
                    kd.barrier_arrive(s["dout_consumed"].at[step.dout_slot])
                    kd.barrier_arrive(s["q_consumed"].at[step.slot])

                if tight:
                    kd.wgmma_wait(0)
                    release()
                kd.barrier_wait(s["ds_stored"])
                kd.wgmma(dq_acc, k_part, ds_part, accumulate=False)
                if not tight:
                    kd.wgmma_wait(1)
                    release()
                kd.wgmma_wait(0)
                kd.barrier_arrive(s["ds_read"])
                walk.add(me, dq_acc, block, step, dq_sum, s)

            walk.each_step(block, one)
            return dk_acc[...], dv_acc[...]

        accs = [kd.ACC((ROWS, n), kd.float32) for n in (m, m, width, dim, dim)]
        dk_value, dv_value = kd.run_scoped(run, *accs)
        kd.barrier_wait(s["ds_read"])  # so the other consumer has read all keys, too
        walk.store(dk_value * p.scale, k_own, dk, block, key)
        walk.store(dv_value, v_own, dv, block, key)
        kd.wait_smem_to_gmem(0, wait_read_only=True)  # SMEM outlives the copies; the kernel's end waits for the rest

    scratch = {
        "k_smem": walk.swizzled(KEYS, dim),
        "v_smem": walk.swizzled(KEYS, dim),
        "ds_smem": walk.swizzled(KEYS, m, row=width),
        "ds_stored": kd.Barrier(num_arrivals=CONSUMERS),
        "ds_read": kd.Barrier(num_arrivals=CONSUMERS),
    }
    made = walk.kernel(consume, scratch, name="attention_backward_scored")
    return made if p.score.has_functions else identified(made, problem, config, multiprocessors)


def _step_grid(p: ScoredProblem, t: AttentionBackwardConfig) -> tuple[int, int]:
    return p.heads * (1 if p.ragged else p.batch), steps_of(p, t)


@cache
def scored_stats_kernel(problem: ScoredProblem, config: AttentionBackwardConfig) -> Any:
    """The kernel `(out, dout, lse, *lengths) -> stats`: as `stats_kernel`, of whole steps; of ragged lengths for one batch."""
    p, m = problem, config.block_q
    names = ["q_seqlens", "kv_seqlens", "table"] * p.ragged
    heads, steps = _step_grid(p, config)

    def body(out: Any, dout: Any, lse: Any, *rest: Any) -> None:
        s, stats = dict(zip(names, rest, strict=False)), rest[-1]
        place = Place.of(p, kd.program_id(0), kd.program_id(1), s)
        first = place.number * m
        rows = kd.ds(place.q_row + first, m)
        here = p.rows(place.batch, place.head, rows)
        products = out[here].astype(kd.float32) * dout[here].astype(kd.float32)
        total = kd.load(lse, p.lse_rows(place.batch, place.head, rows), fill=-math.inf)
        there = first + kd.arange(m) < place.queries
        these = kd.ds((first_step(p, config, place) + place.number) * m, m)
        where = 0 if p.ragged else place.batch
        used = place.queries > 0 if p.ragged else None  # lines that are left over of the table are no step
        logs = kd.where(there & (total != -math.inf), total * -LOG2E, -math.inf)
        kd.store(stats, (where, place.head, 0, these), logs, mask=used)
        kd.store(stats, (where, place.head, 1, these), kd.where(there, kd.sum(products, axis=1), 0.0), mask=used)

    shape = (1 if p.ragged else p.batch, p.heads, 2, steps * m)
    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(shape, kd.float32),
        grid=(heads, steps),
        name="attention_backward_scored_stats",
    )
    return made if p.score.has_functions else identified(made, problem, config)


@cache
def scored_finish_kernel(problem: ScoredProblem, config: AttentionBackwardConfig) -> Any:
    """The kernel `(dq_sum, *lengths) -> dq`: as `finish_kernel`.

    dq_sum is (tiles, padded dimension, 8), beyond a dimension of 128 (tiles, queries of a step, 8).
    """
    p, m = problem, config.block_q
    names = ["q_seqlens", "kv_seqlens", "table"] * p.ragged
    dim = padded_dim(p)
    tiles = m // EIGHT if dim <= KEYS else dim // EIGHT
    heads, steps = _step_grid(p, config)
    several = next(n for n in (4, 5, 3, 2, 1) if tiles % n == 0)

    def body(dq_sum: Any, *rest: Any) -> None:
        s, dq = dict(zip(names, rest, strict=False)), rest[-1]
        place = Place.of(p, kd.program_id(0), kd.program_id(1), s)
        tile = kd.program_id(2) * several
        step = kd.program_id(0) * steps + first_step(p, config, place) + place.number
        value = (dq_sum[kd.ds(step * tiles + tile, several)] * p.scale).astype(p.dtype)
        if dim <= KEYS:
            value = value.transpose(0, 2, 1).reshape(several * EIGHT, dim)
            row, count, columns = tile * EIGHT, several * EIGHT, kd.ds(0, dim)
        else:
            value = value.transpose(1, 0, 2).reshape(m, several * EIGHT)
            row, count, columns = 0, m, kd.ds(tile * EIGHT, several * EIGHT)
        first = place.number * m + row
        there = (first + kd.arange(count) < place.queries)[:, None]
        here = p.rows(place.batch, place.head, kd.ds(place.q_row + first, count), columns)
        kd.store(dq, here, value, mask=there)

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(p.shape(p.heads, p.queries, p.dim), p.dtype),
        grid=(heads, steps, tiles // several),
        name="attention_backward_scored_finish",
    )
    return made if p.score.has_functions else identified(made, problem, config)


@cache
def scored_sum_kernel(problem: ScoredProblem, splits: int, dim: int) -> Any:
    """The kernel `parts -> gradient`; the parts are float32 (splits, batch, kv_heads, keys, dim)."""
    p = problem
    rows = 32

    def body(parts: Any, out: Any) -> None:
        head = kd.program_id(0)
        batch, kv_head = kd.div(head, p.kv_heads), kd.rem(head, p.kv_heads)
        here = kd.ds(kd.program_id(1) * rows, rows)
        total = parts[0, batch, kv_head, here]
        for split in range(1, splits):
            total = total + parts[split, batch, kv_head, here]
        out[p.rows(batch, kv_head, here)] = total.astype(p.dtype)

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(p.shape(p.kv_heads, p.keys, dim), p.dtype),
        grid=(p.batch * p.kv_heads, kd.cdiv(p.keys, rows)),
        name="attention_backward_scored_sum",
    )
    return made if p.score.has_functions else identified(made, problem, splits, dim)
