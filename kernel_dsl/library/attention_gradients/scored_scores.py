"""The scores of attention's backward with options: masks, weights, and the bias with its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kernel_dsl as kd

from ..attention_forward.problem import ScoredProblem, ScorePlace
from ..attention_forward.sizes import LOG2E, ROWS
from .scored_sizes import heavy
from .walk import ScoreBlock, Walk, WalkStep


@dataclass(frozen=True)
class ScoredBlock(ScoreBlock):
    """A block whose steps are `first` to `last` of a sequence at `place`; `base`: the number of the sequence's first step."""

    place: ScorePlace
    last: Any
    base: Any
    entry: Callable[[Any], Any] | None = None  # of the list of steps; `first` and `last` count its entries


@dataclass(frozen=True)
class ScoredStep(WalkStep):
    """A step of a walk with options. `whole`: whether all queries see all keys; None without a list."""

    whole: Any = None


class ScoredScores(Walk):
    """A walk that computes scores with options. Subclasses set the attributes.

    `staged`: whether a bias goes through SMEM; `turned`: whether TMA stores its gradient from the scores' own.
    """

    scored: ScoredProblem
    staged: bool
    turned: bool

    def hide(self, acc: Any, block: ScoredBlock, step: Any, key: Any) -> None:
        """Mask scores (keys, queries) from `key` on that queries don't see, in place."""
        p, score, place = self.scored, self.scored.score, block.place
        query = step.index * self.t.block_q

        def hidden() -> None:
            i = query + kd.broadcasted_iota(kd.int32, acc.shape, 1)
            j = key + kd.broadcasted_iota(kd.int32, acc.shape, 0)
            seen = score.seen((block.batch, step.head, i, j), place.queries, place.keys)
            acc[...] = kd.where(seen, kd.wgmma_accumulator_load(acc, wait_n=None), -math.inf)

        if score.mask_mod is not None:
            hidden() if step.whole is None else kd.when(~step.whole)(hidden)
            return
        last = query + (self.t.block_q - 1)
        some = key + ROWS > score.end_key(query, place.queries, place.keys)
        if score.window is not None:
            some = some | (key < score.first_key(last, place.queries, place.keys))
        if score.causal or score.window is not None or p.ragged or self.opened or p.keys % self.keys:
            kd.when(some)(hidden)

    def weights(self, acc: Any, block: ScoredBlock, step: WalkStep, key: Any, s: dict[str, Any]) -> tuple[Any, Any]:
        """(weights of products q.k (keys, queries) from `key` on, the slopes of their scores, None where these are the scale)."""
        p, m, slope = self.scored, self.t.block_q, None
        factor = p.scale * LOG2E
        if heavy(p):
            i = step.index * m + kd.broadcasted_iota(kd.int32, acc.shape, 1)
            j = key + kd.broadcasted_iota(kd.int32, acc.shape, 0)
            bias = self.staged_bias(key - block.key, step, s) if self.staged else s.get("bias_tile")
            if p.score.bias is not None and bias is None:
                bias = self.ahead(acc, block, step, key, s)["bias_tile"]
            x = kd.wgmma_accumulator_load(acc, wait_n=None)
            x, _, slope = p.score.with_slopes(x, p.scale, lambda: bias, (block.batch, step.head, i, j))
            acc[...], factor = x, LOG2E
        self.hide(acc, block, step, key)
        x = kd.wgmma_accumulator_load(acc, wait_n=None)
        negative = kd.load(s["stats_smem"], (step.slot, 0), layout=kd.Layout.WGMMA_COL)
        weights = kd.exp2(kd.fma(x, factor, negative[None]))
        # the slope of a masked score is arbitrary
        return weights, None if slope is None else kd.where(weights == 0, 0.0, slope)

    def ahead(self, acc: Any, block: Any, step: WalkStep, key: Any, s: dict[str, Any]) -> dict[str, Any]:
        """Load a bias ahead if TMA does not load it."""
        if self.scored.score.bias is None or self.staged:
            return s
        tile = kd.ds(step.index * self.t.block_q, self.t.block_q), kd.ds(key, ROWS)
        found = self.scored.bias_tile(s["bias"], (block.batch, step.head), *tile, transposed=True)
        return s | {"bias_tile": found}

    def staged_bias(self, key: Any, step: WalkStep, s: dict[str, Any]) -> Any:
        """The bias (keys, queries) of a consumer's keys, from `key` of the block on."""
        kd.barrier_wait(s["bias_loaded"].at[step.slot])
        tile = s["bias_smem"].at[step.slot, :, kd.ds(key, ROWS)]
        bias = kd.load(tile.T, layout=kd.Layout.WGMMA)
        kd.barrier_arrive(s["bias_consumed"].at[step.slot])
        return bias

    def send_scores(self, tile: Any, block: ScoredBlock, key: Any, step: WalkStep, s: dict[str, Any]) -> None:
        """Store the gradient of a bias from SMEM."""
        rows, columns = kd.ds(step.index * self.t.block_q, self.t.block_q), kd.ds(key, ROWS)
        kd.copy_smem_to_gmem(tile, s["dbias"].at[block.batch, step.head, rows, columns])

    def keep_scores(self, ds: Any, block: ScoredBlock, key: Any, step: WalkStep, s: dict[str, Any]) -> None:
        """Store the gradient of a bias."""
        if "dbias" in s and not self.turned:
            rows, columns = kd.ds(step.index * self.t.block_q, self.t.block_q), kd.ds(key, ROWS)
            target = s["dbias"].at[block.batch, step.head, rows, columns].T
            kd.store(target, ..., ds.astype(target.dtype))
