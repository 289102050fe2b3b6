"""Products with scales by blocks of K whose factors come with the stages, through SMEM.

Consumers that load scales from GMEM themselves hold them in registers from one step to the next, and compute addresses between
the instructions of a product. The producer has time for both. It asks for scales two steps ahead, and stores a stage's factors
beside the stage: for blocks of columns the product of a row's and a block's scale, else the scales of rows and of columns.
Consumers read them while their product is in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any

import kernel_dsl as kd

from .problem import Problem
from .scaled_product import CHUNK, DEPTH, Scales, in_pairs, promoted
from .stage_product import following_slot

LANES = 128  # of a warpgroup: each loads one scale at a time


def column_blocks(width: int) -> int:
    """The most blocks of columns with a common scale in a tile of so many columns, where tiles start at multiples of that."""
    return 1 + (width - 1 + DEPTH - gcd(width, DEPTH)) // DEPTH


def feeds(p: Problem, width: int) -> bool:
    """Whether factors come with the stages of a tile of so many columns."""
    return p.a_scaled and bool(p.b_scaled) and not in_pairs(p, width)


@dataclass(frozen=True)
class FedScales:
    """The factors of a stage: for each block of columns those of `tile_m` rows; or those of rows, then of `tile_n` columns."""

    p: Problem
    tile_m: int
    tile_n: int

    @property
    def each(self) -> bool:
        """Whether each column has a scale."""
        return self.p.b_scaled == "columns"

    @property
    def length(self) -> int:
        """The number of a stage's factors."""
        return self.tile_m + self.tile_n if self.each else column_blocks(self.tile_n) * self.tile_m

    @property
    def _pieces(self) -> list[tuple[int, int]]:
        """(first column, columns) of the parts that the producer's lanes load at once."""
        return [(at, min(LANES, self.tile_n - at)) for at in range(0, self.tile_n, LANES)]

    @property
    def count(self) -> int:
        """The number of values that `loaded` returns."""
        return 1 + (len(self._pieces) if self.each else column_blocks(self.tile_n))

    def loaded(self, scales: tuple[Any, Any], m: Any, n: Any, batch: tuple[Any, ...], block: Any) -> list[Any]:
        """For the producer: the scales of the tile at (m, n) at a block of K, of its rows, then of its columns."""
        found = Scales(self.p, scales[0], scales[1], m, n, self.tile_m, batch)
        row = found.row(block, _one_a_lane(self.tile_m))
        if self.each:
            return [row, *(found.column(block, at, count, _one_a_lane(count)) for at, count in self._pieces)]
        return [row, *(found.column(block, i * DEPTH, 1, None) for i in range(column_blocks(self.tile_n)))]

    def store(self, found: list[Any], stage: Any) -> None:
        """For the producer: the factors, from what `loaded` returned. `stage`: a Ref to float32 (length,)."""
        row, *columns = found
        if self.each:
            stage[: self.tile_m] = row
            for (at, count), column in zip(self._pieces, columns, strict=True):
                stage[kd.ds(self.tile_m + at, count)] = column
            return
        for i, column in enumerate(columns):
            stage[kd.ds(i * self.tile_m, self.tile_m)] = row * column

    def rows(self, stage: Any, first: Any, height: int, n: Any, at: int) -> Any:
        """For a consumer: the factors of rows from `first` of the tile on, beside the tile's columns from `at` on."""
        start = first
        if not self.each and column_blocks(self.tile_n) > 1:
            start = first + (kd.div(n + at, DEPTH) - kd.div(n, DEPTH)) * self.tile_m
        return kd.load(stage.at[kd.ds(start, height)], layout=kd.Layout.WGMMA_ROW)

    def columns(self, stage: Any, at: int, count: int) -> Any:
        """For a consumer: the factors of some columns; None where only rows have some."""
        return kd.load(stage.at[kd.ds(self.tile_m + at, count)], layout=kd.Layout.WGMMA_COL) if self.each else None


def _one_a_lane(count: int) -> Any:
    return kd.Layout.WG_STRIDED((count,), 1)


def fed_product(
    acc: Any,
    slot: Any,
    steps: Any,
    stages: int,
    left_of: Callable[[Any], Any],
    right_of: Callable[[Any], Any],
    loaded: Any,
    consumed: Any,
    feed: FedScales,
    factors: Any,
    first: Any,
    n: Any,
    begun: Callable[[list[Any]], Any],
) -> tuple[Any, Any]:
    """The sums over `steps` stages of SMEM from `slot` on, as a value; and the slot that follows.

    `left_of(slot)` and `right_of(slot)` are Refs to this warpgroup's A (rows, 128) and B (128, columns); `factors`: the stages'
    factors; `first`: this warpgroup's first row of the tile, `n`: the tile's first column. `begun(sums)`
    gives the sums to start with, parts of the columns, from zeros.
    """
    height, width = acc.shape
    unit = min(CHUNK, gcd(width, DEPTH))  # wherever a tile begins, such columns are of one block
    chunks = range(0, width, unit)
    start = [kd.layout_cast(kd.zeros((height, unit), kd.float32), kd.Layout.WGMMA) for _ in chunks]

    @kd.loop(0, steps, init_carry=(slot, *begun(start)))
    def end(step: Any, carry: Any) -> Any:
        slot, *total = carry
        stage = factors.at[slot]
        kd.barrier_wait(loaded.at[slot])
        kd.wgmma(acc, left_of(slot), right_of(slot), accumulate=False)
        rows = [feed.rows(stage, first, height, n, at) for at in (chunks[:1] if feed.each else chunks)]
        rows *= len(chunks) if feed.each else 1
        kd.wgmma_wait(0)
        if not feed.each:  # all factors are in registers
            kd.barrier_arrive(consumed.at[slot])
        made: list[Any] = []
        for at, row, sums in zip(chunks, rows, total, strict=True):
            part = kd.wgmma_accumulator_load(acc.at[:, at : at + unit], None)
            made.append(promoted(sums, part, row, feed.columns(stage, at, unit)))
        if feed.each:
            kd.barrier_arrive(consumed.at[slot])
        return following_slot(slot, stages), *made

    slot_after, *total = end
    return (total[0] if len(total) == 1 else kd.concatenate(total, axis=1)), slot_after
