"""The scores of attention with options: of a consumer's rows of a tile, and their weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import kernel_dsl as kd

from .captured import function_of
from .scored_config import listed
from .scored_producer import ScoredProducer
from .scored_tiles import ScoredTile
from .sizes import LOG2E, ROWS
from .step import column_groups, softmax_step

if TYPE_CHECKING:
    from .linear import Linear
    from .score import Score

LEAST_SCALE = 1e-6  # a number divided by this is still far from float32's largest
ROUNDING = 1.5 * 2**23 + 127  # a float plus this has the nearest int, plus 127, in its last bits
SLOPE, SQUARE, CUBE = 0.69328293, 0.24221098, 0.05500893  # of 2 ** x from -0.5 to 0.5, within 1e-4


def exp2_by_fma(x: Any) -> Any:
    """2 ** x of x up to 128, by nine instructions that do not use the exponential unit; 0 below -126.5, NaN stays NaN."""
    x = kd.maximum(x, -127.0)
    moved = x + ROUNDING
    part = x - (moved - ROUNDING)  # -0.5 to 0.5
    value = kd.fma(kd.fma(kd.fma(part, CUBE, SQUARE), part, SLOPE), part, 1.0)
    return value * kd.bitcast_convert_type(kd.bitcast_convert_type(moved, kd.int32) << 23, kd.float32)


class ScoredRows(ScoredProducer):
    """What the rows of all tiles share: their softmax, their scales, and which steps they see."""

    def weights(self, x: Any) -> Any:
        """2 ** x. Some columns use multiply-adds while others use the exponential unit."""
        every = self.t.polynomial
        if every is None:
            return kd.exp2(x)
        made = [exp2_by_fma(y) if n % every == every - 1 else kd.exp2(y) for n, y in enumerate(column_groups(x))]
        return kd.concatenate(made, axis=1)

    def scale(self, tile: ScoredTile, name: str, s: dict[str, Any]) -> Any:
        """The scale of an array's head; 1 without scales."""
        if name not in self.p.scales:
            return 1.0
        return self.p.scale_of(s[f"{name}_scale"], name, tile.batch, kd.div(tile.head, self.group))

    @property
    def skips(self) -> bool:
        """Whether a consumer may see fewer keys than its tile does."""
        score = self.p.score
        return not listed(self.p) and (bool(score.causal) or score.window is not None)

    def own_steps(self, tile: ScoredTile, first: Any) -> tuple[Any, Any]:
        """(the first, the end) of a tile's steps with keys that a consumer's queries, from `first` on, see."""
        if not self.skips:
            return 0, tile.count
        begin, end = tile.blocks(self.p, first, ROWS, self.t.block_kv)
        last = tile.begin + tile.count
        if self.p.shared:  # what the tile has of them
            begin, end = (kd.clip(n, tile.begin, last) for n in (begin, end))
        return last - kd.where(first < tile.queries, end, begin), last - begin

    def linear(self, tile: ScoredTile, row: Any, column: Any) -> Linear | None:
        """The number that `score_mod` adds, if it is linear in the indices of queries and keys."""
        from .linear import linear_of  # operations, imported for the first trace

        p = self.p
        if p.score.score_mod is None:
            return None
        place = tile.batch, tile.head, row, column
        like = kd.zeros(row.shape, kd.float32)
        return linear_of(function_of(p.score.score_mod), like, place, (self.most, self.most))


class RowScores:
    """The scores of a consumer's rows of a tile, and their weights."""

    def __init__(self, kernel: ScoredRows, me: Any, tile: ScoredTile, s: dict[str, Any]) -> None:
        p, t, score = kernel.p, kernel.t, kernel.p.score
        self.kernel, self.me, self.tile, self.s = kernel, me, tile, s
        self.first: Any = tile.first + me * ROWS
        self.scale: Any = p.scale * kernel.scale(tile, "q", s) * kernel.scale(tile, "k", s) if p.scales else p.scale
        self.row: Any = self.first + kd.broadcasted_iota(kd.int32, (ROWS, t.block_kv), 0)
        self.column: Any = kd.broadcasted_iota(kd.int32, (ROWS, t.block_kv), 1)
        self.linear: Linear | None = kernel.linear(tile, self.row, self.column)
        self.score: Score = score if self.linear is None else replace(score, score_mod=None)
        score = self.score
        self.factor: Any = score.factor(self.scale) * LOG2E
        # a linear term is put into the accumulator before the products, except with softcap, which precedes the term,
        # and with scales, which may be 0
        linear = self.linear is not None
        self.seeded: bool = linear and score.softcap is None and not p.scales and p.scale > LEAST_SCALE
        # a masked score times a scale of 0 or below is no score below all others, so such scales come before the mask
        self.before: bool = bool(p.scales) and not linear and not score.natural and score.softcap is None
        self.unit: Any = 1.0 if self.before or (linear and not self.seeded) else self.factor
        self.begin, self.end = kernel.own_steps(tile, self.first)
        self.whole_from: Any = score.first_key(self.first + (ROWS - 1), tile.queries, tile.keys)
        self.whole_to: Any = score.end_key(self.first, tile.queries, tile.keys)

    def multiply(self, acc: Any, q_tile: Any, slot: Any) -> None:
        """Issue the product of queries and keys, when these are loaded and it is this consumer's turn."""
        s = self.s
        kd.barrier_wait(s["k_loaded"].at[slot])
        if self.kernel.t.turns:
            kd.barrier_wait(s["turn"].at[self.me])
        if self.linear is not None and self.seeded:
            acc[...] = self.by_column(self.linear.by_key * (1.0 / self.kernel.p.scale))
        kd.wgmma(acc, q_tile, s["k_smem"].at[slot, :, kd.ds(0, self.kernel.depth)].T, accumulate=self.seeded)

    def bias(self, index: Any, slot: Any) -> Any:
        """The bias of a block of keys, None if there is none."""
        kernel, s, block_kv = self.kernel, self.s, self.kernel.t.block_kv
        if kernel.staged:
            kd.barrier_wait(s["bias_loaded"].at[slot])
            rows = kd.ds(self.me * ROWS, ROWS)
            bias = kd.load(s["bias_smem"].at[slot], (rows, slice(None)), layout=kd.Layout.WGMMA)
            kd.barrier_arrive(s["bias_consumed"].at[slot])
            return bias
        if self.score.bias is None:
            return None
        here = kd.ds(self.first, ROWS), kd.ds(index * block_kv, block_kv)  # loaded beside the products
        return kernel.p.bias_tile(s["bias"], (self.tile.batch, self.tile.head), *here)

    def early_bias(self, number: Any, later: int = 0) -> list[Any]:
        """The bias of the step `later` steps after a step, if it is loaded a step before it is used."""
        if not self.kernel.bias_ahead:
            return []
        index, _ = self.kernel.block_of(self.tile, number + later, self.s)
        return [self.bias(kd.maximum(index, 0), None)]

    def by_column(self, slope: Any) -> Any:
        """The linear term of each column. It is hidden from the assembler, so that it takes no registers between steps."""
        slope = kd.optimization_barrier(slope)
        group = kd.layout_cast(kd.broadcasted_iota(kd.int32, (ROWS, 8), 1), kd.Layout.WGMMA)
        group = group.astype(kd.float32) * slope
        return kd.concatenate([kd.fma(slope, float(i), group) for i in range(0, self.kernel.t.block_kv, 8)], axis=1)

    def scored(self, x: Any, place: Any, bias: Any) -> Any:
        """Scores of products."""
        x = self.score.scores(x, self.scale, lambda: bias, place)
        x = x * self.factor if self.before else x
        if self.linear is None or self.seeded:
            return x
        return kd.fma(x, self.factor, self.by_column(self.linear.by_key * LOG2E))

    def masked(self, x: Any, index: Any, place: Any, whole: Any, hidden: float) -> Any:
        """Scores or weights, with the value `hidden` for keys that a query doesn't see."""
        block_kv, score = self.kernel.t.block_kv, self.score
        if whole is None:
            whole = (index * block_kv >= self.whole_from) & ((index + 1) * block_kv <= self.whole_to)
            if score.mask_mod is not None:
                whole = False

        def hide(x: Any) -> Any:
            return kd.where(score.seen(place, self.tile.queries, self.tile.keys), x, hidden)

        return hide(x) if whole is False else kd.cond(whole, lambda x: x, hide, x)

    def weights(
        self, x: Any, bias: Any, index: Any, whole: Any, top: Any, total: Any, light: bool
    ) -> tuple[Any, Any, Any, Any]:
        """From products with a block of keys: (weights, the factor of earlier weights, maximum so far, sum so far). If `light`,
        there is neither a maximum nor a factor.
        """
        kernel, p, block_kv = self.kernel, self.kernel.p, self.kernel.t.block_kv
        place = self.tile.batch, self.tile.head, self.row, index * block_kv + self.column
        x = self.scored(x, place, bias)
        if light:
            if p.guarded:  # the mask comes before the exponentials, so that these mix with their sums
                fresh = kernel.weights(self.masked(x * self.unit, index, place, whole, -math.inf))
            else:  # the mask comes last, so that the instructions of both functions mix
                fresh = self.masked(kernel.weights(x * self.unit), index, place, whole, 0.0)
            fresh, total = kd.optimization_barrier(fresh, sum(column_groups(fresh), total))
            return fresh, None, top, total
        x, added = self.masked(x, index, place, whole, -math.inf), None
        if self.linear is not None:
            added = self.linear.at(self.first, index * block_kv) * (LOG2E / self.factor if self.seeded else LOG2E)
        return kd.optimization_barrier(*softmax_step(x, top, total, self.unit, added=added, power=kernel.weights))

    def logarithms(self, top: Any) -> Any:
        """Maxima as base-2 logarithms of weights."""
        top = top * self.unit
        if self.linear is None:
            return top
        lines = kd.layout_cast(kd.arange(ROWS), kd.Layout.WGMMA_ROW).astype(kd.float32)
        return top + lines * (self.linear.by_query * LOG2E)  # the row's part of the term changes no weight
