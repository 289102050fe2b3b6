"""A step of flash attention on Hopper: a block's scores beside the product of the block before, then their softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import kernel_dsl as kd

from ..stage_product import following_slot
from .sizes import LOWEST, ROWS, SLACK


def column_groups(x: Any) -> list[Any]:
    """Groups of 8 columns. Each lane holds two columns of a group, so sums over groups stay in a lane."""
    return [x[:, i : i + 8] for i in range(0, x.shape[1], 8)]


def softmax_step(
    x: Any, top: Any, total: Any, unit: Any, *, added: Any = None, wait: Any = None, power: Any = None
) -> tuple[Any, Any, Any, Any]:
    """(weights, the factor of earlier weights, maximum so far, sum so far) with one more block of scores (rows, keys).

    `unit`: of scores as exponents of 2. The maximum changes only if weights would exceed 2 ** SLACK; the division at the end
    corrects that. `added`: the number to add to all scores, or None. `wait()` is called after the maximum. `power(x)`: 2 ** x
    by other means than the exponential unit's.
    """
    highest = kd.max(x, axis=1)
    new_top = kd.maximum(top, highest if added is None else highest + added)
    new_top = kd.where((new_top - top) * unit > SLACK, new_top, top)
    if wait is not None:
        new_top = kd.optimization_barrier(new_top)
        wait()
    base = (new_top if added is None else new_top - added) * unit
    weights = (power or kd.exp2)(kd.fma(x, unit, -base[:, None]))
    # subtract first: rows without keys so far must have exactly the factor 1
    fade = kd.exp2((top - new_top) * unit)
    # each lane sums its own columns; the sums of lanes are added after the last block
    first, *others = column_groups(weights)
    return weights, fade, new_top, sum(others, kd.fma(total, fade[:, None], first))


@dataclass(frozen=True)
class StepPlan:
    """The steps of a consumer of 64 queries: `block` keys each, out of rings of `stages`.

    `scale`: of scores as exponents of 2. With `turns` the `consumers` issue their products in turn. `wait`: where a step waits
    for its values: "last", after the softmax; "middle", after its maximum; or "first".
    """

    dim: int
    dtype: Any
    block: int
    stages: int
    consumers: int
    turns: bool
    scale: float
    wait: str = "last"

    def pass_turn(self, me: Any, s: dict[str, Any]) -> None:
        """Let the next consumer issue its products."""
        kd.barrier_arrive(s["turn"].at[kd.where(me == self.consumers - 1, 0, me + 1)])

    def attend(
        self, me: Any, q_tile: Any, start: Any, count: Any, masked: Callable[[Any, Any], Any], s: dict[str, Any],
        read: Callable[[], None] = lambda: None,
    ) -> tuple[Any, Any, Any, Any]:  # fmt: skip
        """(sum of weighted values, maximum of scores, sum of weights, last slot) over `count` blocks of keys, after slot `start`.

        `masked(scores, step)`: masks the scores of a step; `read` is called when the queries are read for the last time.
        """

        def run(scores: Any, sums: Any) -> Any:
            kd.barrier_wait(s["q_loaded"].at[me])
            sums[...] = kd.zeros((ROWS, self.dim), kd.float32)
            top = kd.layout_cast(kd.full((ROWS,), LOWEST, kd.float32), kd.Layout.WGMMA_ROW)
            total = kd.layout_cast(kd.zeros((ROWS, 8), kd.float32), kd.Layout.WGMMA)
            weights = kd.layout_cast(kd.zeros((ROWS, self.block), self.dtype), kd.Layout.WGMMA)

            @kd.loop(0, count, init_carry=(start, weights, top, total))
            def carry(index: Any, carry: Any) -> Any:
                return self._step(me, q_tile, index, carry, (scores, sums), masked, s)

            slot, weights, top, total = carry
            read()
            kd.wgmma(sums, weights, s["v_smem"].at[slot])
            total = kd.sum(total, axis=1)
            value = sums[...]
            kd.barrier_arrive(s["v_consumed"].at[slot])
            return value, top, total, slot

        return kd.run_scoped(run, kd.ACC((ROWS, self.block), kd.float32), kd.ACC((ROWS, self.dim), kd.float32))

    def _step(
        self, me: Any, q_tile: Any, index: Any, carry: Any, accs: tuple[Any, Any], masked: Callable[[Any, Any], Any],
        s: dict[str, Any],
    ) -> Any:  # fmt: skip
        """Scores of block `index`, beside the product of the block before; then the softmax of these scores."""
        slot, weights, top, total = carry
        scores, sums = accs
        following = following_slot(slot, self.stages)
        kd.barrier_wait(s["k_loaded"].at[following])
        if self.turns:
            kd.barrier_wait(s["turn"].at[me])
        kd.wgmma(scores, q_tile, s["k_smem"].at[following].T, accumulate=False)
        # the first block has no product beside it; the step is traced once, because it dominates compilation
        kd.cond(index > 0, lambda: kd.wgmma(sums, weights, s["v_smem"].at[slot]), lambda: kd.wgmma_wait(0))
        if self.turns:
            self.pass_turn(me, s)
        x = kd.wgmma_accumulator_load(scores, wait_n=1)
        kd.barrier_arrive(s["k_consumed"].at[following])
        x = masked(x, index)
        values_there = partial(kd.barrier_wait, s["v_loaded"].at[following])
        if self.wait == "first":
            values_there()
        fresh, fade, top, total = softmax_step(
            x, top, total, self.scale, wait=values_there if self.wait == "middle" else None
        )
        # the softmax runs beside the product, because the assembler moves no instruction across a barrier's loop
        fresh, fade, top, total = kd.optimization_barrier(fresh, fade, top, total)
        if self.wait == "last":
            values_there()
        kd.wgmma_wait(0)
        kd.optimization_barrier(weights)  # the product, issued under a condition, reads their registers until here
        kd.barrier_arrive(s["v_consumed"].at[slot], index > 0)
        sums.scale_rows(fade)
        return following, kd.optimization_barrier(fresh.astype(self.dtype)), top, total
