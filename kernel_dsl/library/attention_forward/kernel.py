"""Flash attention forward on Hopper: a producer warpgroup, and consumers that each own 64 rows of queries.

A consumer issues the next block's scores before it computes this block's softmax, so tensor cores and the exponential unit
work at the same time, and consumers fill each other's gaps. Scores and weights stay in registers.
docs/attention.md has the gain of each part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..first_sizes import declared_outputs, dim_of
from ..stage_ring import await_release, fill_stages
from .plan import ForwardPlan, forward_plan
from .sizes import LOG2E, ROWS, AttentionConfig, AttentionProblem, launch_registers
from .step import StepPlan


@cache
def attention_kernel(problem: AttentionProblem, config: AttentionConfig, multiprocessors: int) -> Any:
    """The kernel `(q, k, v) -> out` or `-> (out, lse)`, of at most one block a multiprocessor.

    Each call gives the extents that are Dims. The kernel may then take numbers after v: those of `parts_of` if tiles share
    keys, the result of `together_of` if it is causal and blocks may have several tiles.
    """
    p, t = problem, config
    plan = forward_plan(problem, config, multiprocessors)
    opened, shared, numbers = plan.opened, plan.shared, plan.numbers

    def any_lengths(q: Any, k: Any, v: Any, *rest: Any, **scratch: Any) -> None:
        here = plan.at_launch(q, k, *rest[: max(numbers, 1)])
        _roles(here, q, k, v, *rest[numbers:], s=scratch)

    def body(q: Any, k: Any, v: Any, out: Any, *rest: Any, **scratch: Any) -> None:
        _roles(plan, q, k, v, out, *rest, s=scratch)

    def outputs(batch: Any, heads: Any, queries: Any) -> Any:
        shape = (batch, heads, queries, p.dim) if shared else p.shape(heads, queries)
        made = kd.ShapeDtypeStruct(shape, p.dtype)
        return (made, kd.ShapeDtypeStruct((batch, heads, queries), kd.float32)) if p.lse else made

    def outputs_of(q: Any, k: Any, v: Any, splits: Any, _: Any) -> Any:
        return outputs(q.shape[0], p.heads * splits, q.shape[p.length_axis])

    shapes: Any = None
    if opened:
        keys = p.shape(p.kv_heads, p.keys)
        shapes = {0: p.shape(p.heads, p.queries), 1: keys, 2: keys}
    if opened and shared:
        shapes |= declared_outputs(outputs(p.batch, dim_of("parts"), p.queries), 3 + numbers)
    names = ("block", "group") if opened else ("block",)
    if plan.alone:  # heads first: 1 to 3 % faster than tiles first
        names = ("group", *(("part",) if shared else ()), "block")
    made = kd.kernel(
        any_lengths if opened else body,
        out_type=outputs_of if opened and shared else outputs(p.batch, p.heads * p.splits, p.queries),
        shapes=shapes,
        scratch_types=plan.scratch(),
        grid=plan.grid_of if opened else (plan.grid,),
        grid_names=names,
        num_threads=t.consumers + 1,
        thread_name="wg",
        compiler_params=kd.CompilerParams(approx_math=True, max_registers=launch_registers(p.dim, t)),
        name="attention",
    )
    return identified(made, problem, config, plan.multiprocessors)


def _roles(plan: ForwardPlan, q: Any, k: Any, v: Any, out: Any, *lse: Any, s: dict[str, Any]) -> None:
    """The parts of a block's warpgroups."""
    me = kd.axis_index("wg")

    @kd.when(me == plan.t.consumers)
    def _() -> None:
        _produce(plan, q, k, v, s)

    @kd.when(me < plan.t.consumers)
    def _() -> None:
        _consume(plan, me, out, lse[0] if plan.p.lse else None, s)


def _produce(plan: ForwardPlan, q: Any, k: Any, v: Any, s: dict[str, Any]) -> None:
    """Load the queries of each tile, and its keys and values block after block, the last ones first."""
    p, t = plan.p, plan.t
    kd.set_max_registers(t.registers[1], action="decrease")

    def fetch(number: Any, carry: Any) -> Any:
        batch, head, first, count = plan.place(number)
        kv_head, begin = kd.div(plan.q_head(head), p.heads // p.kv_heads), plan.begin_of(head)

        def fetch_queries(again: Any) -> None:
            for i in range(t.consumers):
                rows = kd.ds(first + i * ROWS, ROWS)
                if plan.several:
                    await_release(s["q_consumed"], i, again)
                view = q.at[p.rows(batch, plan.q_head(head), rows)]
                kd.copy_gmem_to_smem(view, s["q_smem"].at[i], s["q_loaded"].at[i])

        def fill(step: Any, slot: Any, filled: Any) -> None:
            keys = kd.ds((begin + count - 1 - step) * t.block_kv, t.block_kv)
            for name, source in (("k", k), ("v", v)):
                await_release(s[f"{name}_consumed"], slot, filled >= t.stages)
                target = s[f"{name}_smem"].at[slot]
                view = source.at[p.rows(batch, kv_head, keys)]
                kd.copy_gmem_to_smem(view, target, s[f"{name}_loaded"].at[slot])
                if name == "k":
                    kd.when(step == 0)(partial(fetch_queries, filled > 0))

        return fill_stages(count, t.stages, carry, fill)

    plan.each_tile((0, 0), fetch)


def _steps(plan: ForwardPlan) -> StepPlan:
    """The steps of a consumer.

    The wait for values comes after the softmax. For Dims and a dimension of at most 64 it would split the softmax, so it comes
    after the maximum, or if four consumers lack the registers, before. The assembler puts the wait for the product at its place,
    and the earlier, the less runs beside the product.
    """
    p, t = plan.p, plan.t
    splits = plan.opened and p.dim <= 64
    wait = "middle" if splits and t.consumers == 3 else "first" if splits and t.consumers > 3 else "last"
    return StepPlan(p.dim, p.dtype, t.block_kv, t.stages, t.consumers, t.turns, p.scale * LOG2E, wait)


def _consume(plan: ForwardPlan, me: Any, out: Any, lse: Any, s: dict[str, Any]) -> None:
    """Compute the rows of consumer `me` of each tile."""
    t, steps = plan.t, _steps(plan)
    kd.set_max_registers(t.registers[0], action="increase")
    out_tile = s["out_smem"].at[me] if plan.apart else s["q_smem"].at[me]
    if t.turns:
        kd.when(me == t.consumers - 1)(partial(steps.pass_turn, me, s))

    plan.each_tile(
        t.stages - 1, lambda number, slot: _consume_tile(plan, steps, me, number, slot, out, lse, out_tile, s)
    )
    kd.wait_smem_to_gmem(0, wait_read_only=True)  # SMEM outlives the copies; the kernel's end waits for the rest


def _consume_tile(
    plan: ForwardPlan, steps: StepPlan, me: Any, number: Any, start: Any, out: Any, lse: Any, out_tile: Any,
    s: dict[str, Any],
) -> Any:  # fmt: skip
    """Compute and store the rows of tile `number`, from the slot after `start` on; returns the last slot."""
    p, t = plan.p, plan.t
    batch, head, first, count = plan.place(number)
    q_tile = s["q_smem"].at[me]
    row = first + me * ROWS + kd.broadcasted_iota(kd.int32, (ROWS, t.block_kv), 0)
    column = kd.broadcasted_iota(kd.int32, (ROWS, t.block_kv), 1)
    # only blocks that reach beyond the tile's first query need a mask
    edge = kd.maximum(count - kd.div(first, t.block_kv), 1) if p.causal else 1
    masked = _TileMask(plan, head, count, row, column, edge).masked

    def release_queries() -> None:
        kd.barrier_arrive(s["q_consumed"].at[me])

    read = release_queries if plan.apart else lambda: None
    value, top, total, slot = steps.attend(me, q_tile, start, count, masked, s, read)
    kd.wait_smem_to_gmem(0, wait_read_only=True)
    out_tile[...] = (value * (1.0 / total)[:, None]).astype(p.dtype)
    rows = kd.ds(first + me * ROWS, ROWS)
    kd.commit_smem()
    kd.copy_smem_to_gmem(out_tile, out.at[(batch, head, rows) if plan.shared else p.rows(batch, head, rows)])
    if p.lse:
        lse[batch, head, rows] = (top * steps.scale + kd.log2(total)) * (1.0 / LOG2E)
    if plan.several and not plan.apart:
        kd.wait_smem_to_gmem(0, wait_read_only=True)
        release_queries()
    return slot


@dataclass(frozen=True)
class _TileMask:
    """Masks scores for keys that a query doesn't see.

    `row`, `column`: the query, and the key within its block, of each score; `edge`: the number of blocks that need a mask.
    """

    plan: ForwardPlan
    head: Any
    count: Any
    row: Any
    column: Any
    edge: Any

    def masked(self, x: Any, index: Any) -> Any:
        """The scores `x` of step `index`, masked."""
        if not (self.plan.p.causal or self.plan.ragged):
            return x
        return kd.cond(index < self.edge, partial(self._hide, index), lambda x: x, x)

    def _hide(self, index: Any, x: Any) -> Any:
        plan, p, t = self.plan, self.plan.p, self.plan.t
        start = (plan.begin_of(self.head) + self.count - 1 - index) * t.block_kv
        if not p.causal and (plan.opened or plan.shared):  # compare with one number a row, to keep no number a column
            return self._hide_end(x, p.keys - start)
        key = start + self.column
        last = kd.minimum(self.row, p.keys - 1) if plan.ragged else self.row  # one number a row: one comparison a key
        return kd.where(key <= last if p.causal else key < p.keys, x, -math.inf)

    def _hide_end(self, x: Any, left: Any) -> Any:
        """Scores of which the first `left` columns are keys."""
        p, t = self.plan.p, self.plan.t
        # The numbers of 128 columns stay in registers: one consumer gains 1 % without them, three spill, and two lose 2 %.
        tight = t.block_kv == 128 and t.consumers != 2 and p.dim <= 64
        if not tight:
            key = kd.broadcasted_iota(kd.int32, (1, t.block_kv), 1)
            return kd.where(key < kd.optimization_barrier(left), x, -math.inf)
        group = kd.layout_cast(kd.broadcasted_iota(kd.int32, (ROWS, 8), 1), kd.Layout.WGMMA)
        beyond = kd.optimization_barrier(group - left)
        columns = range(0, t.block_kv, 8)
        return kd.concatenate([kd.where(beyond < -i, x[:, i : i + 8], -math.inf) for i in columns], axis=1)
