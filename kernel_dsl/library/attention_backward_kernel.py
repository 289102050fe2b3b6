"""The gradients of flash attention on Hopper for head dimensions of 64 and 128.

A producer warpgroup, and two consumers that each own 64 of a block's 128 keys. Scores are computed transposed, keys by
queries, so that weights and the gradients of scores are left operands in registers. docs/attention.md says what each part
is for.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .attention_backward_walk import CONSUMERS, EIGHT, AttentionBackwardConfig, Step, Walk
from .attention_kernel import LOG2E, ROWS, AttentionProblem

KEYS = CONSUMERS * ROWS  # of a block
FREE = 208  # registers that accumulators and left operands may take, so that a consumer's 240 do


@cache
def backward_kernel(problem: AttentionProblem, config: AttentionBackwardConfig, multiprocessors: int) -> Any:
    """The kernel `(q, k, v, dout, stats) -> (dk, dv, dq_sum)`.

    stats: float32 (batch, heads, 2, padded queries), what `stats_kernel` gives; dq_sum: float32, the gradient of the
    queries, not scaled yet: (batch x heads, padded queries / 8, dim, 8) in memory.
    """
    p, t = problem, config
    m = t.block_q
    # the gradient of a step's queries, transposed: each consumer computes 64 of `dim`, or of dim 64 half of the queries
    by_dim = p.dim == KEYS
    width = m if by_dim else m // CONSUMERS
    walk = Walk(p, t, multiprocessors, KEYS, m // EIGHT, p.dim, by_dim)
    # whether that product would take too many registers beside the two before it
    tight = p.dim + m // 2 + width // 2 > FREE

    def weights_of(acc: Any, key: Any, query: Any, slot: Any, s: dict[str, Any]) -> Any:
        walk.mask(acc, key, query)
        x = kd.wgmma_accumulator_load(acc, wait_n=None)
        negative = kd.load(s["stats_smem"], (slot, 0), layout=kd.Layout.WGMMA_COL)
        return kd.exp2(kd.fma(x, p.scale * LOG2E, negative[None]))

    def pass_turn(me: Any, s: dict[str, Any]) -> None:
        """Let the other consumer begin its step."""
        if t.turns:
            kd.barrier_arrive(s["turn"].at[CONSUMERS - 1 - me])

    def gradients_of(weights: Any, dp: Any, slot: Any, s: dict[str, Any]) -> Any:
        delta = kd.load(s["stats_smem"], (slot, 1), layout=kd.Layout.WGMMA_COL)
        return (weights * (dp - delta[None])).astype(p.dtype)

    def softmax(
        me: Any, key: Any, own: Any, accs: tuple[Any, Any, Any], step: Step, s: dict[str, Any]
    ) -> tuple[Any, Any]:
        """The weights and the gradients of scores, from `key` on. The weights' product with dout is then under way."""
        (k_own, v_own), (s_acc, dp_acc, dv_acc) = own, accs
        query = step.index * m
        q_tile, dout_tile = s["q_smem"].at[step.slot], s["dout_smem"].at[step.dout_slot]
        kd.barrier_wait(s["q_loaded"].at[step.slot])
        if t.turns:
            kd.barrier_wait(s["turn"].at[me])
        kd.wgmma(s_acc, k_own, q_tile.T, accumulate=False)
        if t.apart:
            kd.wgmma_wait(0)
            left = kd.optimization_barrier(weights_of(s_acc, key, query, step.slot, s).astype(p.dtype))
            pass_turn(me, s)
            kd.barrier_wait(s["dout_loaded"].at[step.dout_slot])
            kd.wgmma(dp_acc, v_own, dout_tile.T, accumulate=False)
            kd.wgmma(dv_acc, left, dout_tile)
            dp = kd.wgmma_accumulator_load(dp_acc, wait_n=1)
            return left, kd.optimization_barrier(gradients_of(left.astype(kd.float32), dp, step.slot, s))
        kd.barrier_wait(s["dout_loaded"].at[step.dout_slot])
        kd.wgmma(dp_acc, v_own, dout_tile.T, accumulate=False)
        kd.wgmma_wait(1)
        weights = kd.optimization_barrier(weights_of(s_acc, key, query, step.slot, s))
        pass_turn(me, s)
        dp = kd.wgmma_accumulator_load(dp_acc)
        left, ds = kd.optimization_barrier(weights.astype(p.dtype), gradients_of(weights, dp, step.slot, s))
        kd.wgmma(dv_acc, left, dout_tile)
        return left, ds

    def consume(me: Any, dk: Any, dv: Any, dq_sum: Any, s: dict[str, Any]) -> None:
        block = walk.block()
        mine, key = kd.ds(me * ROWS, ROWS), block.key + me * ROWS
        own = k_own, v_own = s["k_smem"].at[mine], s["v_smem"].at[mine]
        k_part = s["k_smem"].at[:, mine].T if by_dim else s["k_smem"].T
        ds_part = s["ds_smem"] if by_dim else s["ds_smem"].at[:, kd.ds(me * width, width)]

        def run(s_acc: Any, dp_acc: Any, dq_acc: Any, dk_acc: Any, dv_acc: Any) -> tuple[Any, Any]:
            dk_acc[...] = kd.zeros(dk_acc.shape, kd.float32)
            dv_acc[...] = kd.zeros(dv_acc.shape, kd.float32)
            kd.barrier_arrive(s["ds_read"])  # nothing is there yet
            kd.when(me == CONSUMERS - 1)(lambda: pass_turn(me, s))

            @kd.when(block.count > 0)
            def _() -> None:
                for i in range(2):
                    kd.barrier_wait(s["kv_loaded"].at[i])

            def one(step: Step) -> None:
                left, ds = softmax(me, key, own, (s_acc, dp_acc, dv_acc), step, s)
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

        accs = [kd.ACC((ROWS, n), kd.float32) for n in (m, m, width, p.dim, p.dim)]
        dk_value, dv_value = kd.run_scoped(run, *accs)
        kd.barrier_wait(s["ds_read"])  # so the other consumer has read all keys, too
        walk.store(dk_value * p.scale, k_own, dk, block, key)
        walk.store(dv_value, v_own, dv, block, key)
        kd.wait_smem_to_gmem(0, wait_read_only=True)  # SMEM outlives the copies; the kernel's end waits for the rest

    scratch = {
        "k_smem": walk.swizzled(KEYS, p.dim),
        "v_smem": walk.swizzled(KEYS, p.dim),
        "ds_smem": walk.swizzled(KEYS, m, row=width),
        "ds_stored": kd.Barrier(num_arrivals=CONSUMERS),
        "ds_read": kd.Barrier(num_arrivals=CONSUMERS),
    }
    if t.turns:
        scratch["turn"] = kd.Barrier(num_barriers=CONSUMERS)
    made = walk.kernel(consume, scratch, name="attention_backward")
    return identified(made, problem, config, multiprocessors)
