"""The gradients of attention with options on Hopper for head dimensions beyond 128, of queries or of values.

Roles and order are those of `attention_backward_wide`. What goes from one consumer to the other are the weights times the
slopes of their scores, which is all that the other one needs of either.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .attention_backward_scored_walk import ScoredBlock, ScoredWalk, padded_dim
from .attention_backward_walk import CONSUMERS, AttentionBackwardConfig, Step
from .attention_kernel import ROWS
from .attention_score import ScoredProblem


@cache
def scored_wide_kernel(
    problem: ScoredProblem, config: AttentionBackwardConfig, multiprocessors: int, listed: bool
) -> Any:
    """The kernel `(q, k, v, dout, stats, *extras) -> (dk, dv, dq_sum)`; `walk_extras` names the arrays between."""
    p, t, dim = problem, config, padded_dim(problem)
    m, width = t.block_q, dim // CONSUMERS
    walk = ScoredWalk(p, t, multiprocessors, listed)

    def finish(me: Any, dq_acc: Any, left: Any, block: ScoredBlock, step: Step, dq_sum: Any, s: dict[str, Any]) -> None:
        """The half of `dim` that is this consumer's of the gradient of the queries; then all of the step is done."""
        kd.barrier_wait(s["ds_stored"])
        kd.wgmma(dq_acc, s["ds_smem"].T, s["k_smem"].at[:, kd.ds(me * width, width)], accumulate=False)
        kd.wgmma_wait(1)
        kd.optimization_barrier(left)  # the product before reads its registers until here
        kd.barrier_arrive(s["dout_consumed"].at[step.dout_slot])
        kd.barrier_arrive(s["q_consumed"].at[step.slot])
        kd.wgmma_wait(0)
        kd.barrier_arrive(s["ds_read"])
        walk.add(me, dq_acc, block, step, dq_sum, s)

    def values(block: ScoredBlock, acc: Any, dq_acc: Any, dv_acc: Any, dq_sum: Any, s: dict[str, Any]) -> None:
        """The first consumer: weights, and with them the gradient of the values."""

        def one(step: Step) -> None:
            kd.barrier_wait(s["q_loaded"].at[step.slot])
            kd.wgmma(acc, s["k_smem"], s["q_smem"].at[step.slot].T, accumulate=False)
            kd.wgmma_wait(0)
            weights, slope = walk.weights(acc, block, step, block.key, s)
            sloped = weights if slope is None else weights * slope
            left, sloped = kd.optimization_barrier(weights.astype(p.dtype), sloped.astype(p.dtype))
            kd.barrier_wait(s["weights_read"])
            s["weights_smem"][...] = sloped
            kd.barrier_arrive(s["weights_stored"])
            kd.barrier_wait(s["dout_loaded"].at[step.dout_slot])
            kd.wgmma(dv_acc, left, s["dout_smem"].at[step.dout_slot])
            finish(0, dq_acc, left, block, step, dq_sum, s)

        walk.each_step(block, one)

    def scores(block: ScoredBlock, acc: Any, dq_acc: Any, dk_acc: Any, dq_sum: Any, s: dict[str, Any]) -> None:
        """The second: the gradients of the scores, and with them the gradient of the keys."""
        kd.barrier_arrive(s["weights_read"])  # nothing is there yet

        def one(step: Step) -> None:
            kd.barrier_wait(s["dout_loaded"].at[step.dout_slot])
            kd.wgmma(acc, s["v_smem"], s["dout_smem"].at[step.dout_slot].T, accumulate=False)
            kd.barrier_wait(s["q_loaded"].at[step.slot])
            kd.barrier_wait(s["weights_stored"])
            weights = kd.load(s["weights_smem"], layout=kd.Layout.WGMMA)
            kd.barrier_arrive(s["weights_read"])
            dp = kd.wgmma_accumulator_load(acc)
            delta = kd.load(s["stats_smem"], (step.slot, 1), layout=kd.Layout.WGMMA_COL)[None]
            left = kd.optimization_barrier((weights.astype(kd.float32) * (dp - delta)).astype(p.dtype))
            kd.barrier_wait(s["ds_read"])
            s["ds_smem"][...] = left
            kd.commit_smem()
            kd.barrier_arrive(s["ds_stored"])
            kd.wgmma(dk_acc, left, s["q_smem"].at[step.slot])
            finish(1, dq_acc, left, block, step, dq_sum, s)

        walk.each_step(block, one)

    def consume(me: Any, dk: Any, dv: Any, dq_sum: Any, s: dict[str, Any]) -> None:
        block = walk.block_of(s)

        def run(acc: Any, dq_acc: Any, sum_acc: Any) -> Any:
            sum_acc[...] = kd.zeros(sum_acc.shape, kd.float32)
            kd.barrier_arrive(s["ds_read"])  # nothing is there yet: the second consumer waits before it stores

            @kd.when(block.count > 0)
            def _() -> None:
                for i in range(2):
                    kd.barrier_wait(s["kv_loaded"].at[i])

            kd.when(me == 0)(lambda: values(block, acc, dq_acc, sum_acc, dq_sum, s))
            kd.when(me == 1)(lambda: scores(block, acc, dq_acc, sum_acc, dq_sum, s))
            return sum_acc[...]

        value = kd.run_scoped(run, *(kd.ACC((ROWS, n), kd.float32) for n in (m, width, dim)))
        kd.barrier_arrive_and_wait(s["finished"])  # the other consumer reads keys and values, too
        kd.when(me == 0)(lambda: walk.store(value, s["v_smem"], dv, block, block.key))
        kd.when(me == 1)(lambda: walk.store(value * p.scale, s["k_smem"], dk, block, block.key))
        kd.wait_smem_to_gmem(0, wait_read_only=True)  # SMEM outlives the copies; the kernel's end waits for the rest

    scratch = {
        "k_smem": walk.swizzled(ROWS, dim, row=width),
        "v_smem": walk.swizzled(ROWS, dim),
        "weights_smem": walk.swizzled(ROWS, m),
        "ds_smem": walk.swizzled(ROWS, m),
        "weights_stored": kd.Barrier(),
        "weights_read": kd.Barrier(),
        "ds_stored": kd.Barrier(),
        "ds_read": kd.Barrier(num_arrivals=CONSUMERS),
        "finished": kd.Barrier(num_arrivals=CONSUMERS),
    }
    made = walk.kernel(consume, scratch, name="attention_backward_scored_wide")
    return made if p.score.has_functions else identified(made, problem, config, multiprocessors, listed)
