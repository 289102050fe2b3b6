"""Products with scales by blocks of K whose factors come with the stages, through SMEM.

Consumers that load scales from GMEM themselves hold them in registers from one step to the next, and compute addresses between
the instructions of a product. The producer has time for both. It asks for scales some steps ahead, and stores a stage's factors
beside the stage: for blocks of columns the product of a row's and a block's scale, else the scales of rows and of columns.
Consumers read them while their product is in flight.

Each tile begins with slot 0 of the ring, on both sides, and a loop's iteration goes through all slots. So slots are static:
addresses of stages and descriptors of products are computed beside the promotion, and the wait for the next stage begins there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any

import kernel_dsl as kd
from kernel_dsl.dataclass import changed

from ..products.problem import Problem
from .scaled_product import CHUNK, DEPTH, IN_PAIRS, Scales, promoted

AHEAD = 2  # steps that scales are loaded ahead; 4 took as long
LANES = 128  # of a warpgroup: each loads one scale at a time


def column_blocks(width: int) -> int:
    """The most blocks of columns with a common scale in a tile of so many columns, where tiles start at multiples of that."""
    return 1 + (width - 1 + DEPTH - gcd(width, DEPTH)) // DEPTH


def feeds(p: Problem, height: int) -> bool:
    """Whether factors come with the stages of a tile of so many rows. Where a tile is low and columns share scales, a lane has
    few factors, and loads them itself.
    """
    return p.a_scaled and bool(p.b_scaled) and (height >= LANES or p.b_scaled == "columns")


def in_pairs(p: Problem, height: int, width: int) -> bool:
    """Whether a warpgroup that loads scales itself has two accumulators of `width` columns in turn. Factors of each column
    leave no registers for them.
    """
    return p.scaled and p.b_scaled != "columns" and width <= IN_PAIRS and not feeds(p, height)


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

    def loaded(self, scales: tuple[Any, Any], m: Any, n: Any, batch: tuple[Any, ...], block: Any) -> list[Any]:
        """For the producer: the scales of the tile at (m, n) at a block of K, of its rows, then of its columns."""
        found = Scales(self.p, scales[0], scales[1], m, n, self.tile_m, batch)
        rows = [
            changed(found, m=m + at, height=count).row(block, _one_a_lane(count)) for at, count in _pieces(self.tile_m)
        ]
        if self.each:
            return [*rows, *(found.column(block, at, count, _one_a_lane(count)) for at, count in _pieces(self.tile_n))]
        return [*rows, *(found.column(block, i * DEPTH, 1, None) for i in range(column_blocks(self.tile_n)))]

    def store(self, found: list[Any], stage: Any) -> None:
        """For the producer: the factors, from what `loaded` returned. `stage`: a Ref to float32 (length,)."""
        down = _pieces(self.tile_m)
        rows, columns = found[: len(down)], found[len(down) :]
        if self.each:
            for (at, count), row in zip(down, rows, strict=True):
                stage[kd.ds(at, count)] = row
            for (at, count), column in zip(_pieces(self.tile_n), columns, strict=True):
                stage[kd.ds(self.tile_m + at, count)] = column
            return
        for i, column in enumerate(columns):
            for (at, count), row in zip(down, rows, strict=True):
                stage[kd.ds(i * self.tile_m + at, count)] = row * column

    def rows(self, stage: Any, first: Any, height: int, n: Any, at: int) -> Any:
        """For a consumer: the factors of rows from `first` of the tile on, beside the tile's columns from `at` on."""
        start = first
        if not self.each and column_blocks(self.tile_n) > 1:
            start = first + (kd.div(n + at, DEPTH) - kd.div(n, DEPTH)) * self.tile_m
        return kd.load(stage.at[kd.ds(start, height)], layout=kd.Layout.WGMMA_ROW)

    def columns(self, stage: Any, at: int, count: int) -> Any:
        """For a consumer: the factors of some columns; None where only rows have some."""
        return kd.load(stage.at[kd.ds(self.tile_m + at, count)], layout=kd.Layout.WGMMA_COL) if self.each else None


def _pieces(count: int) -> list[tuple[int, int]]:
    """(first, count) of the parts of so many scales that the producer's lanes load at once."""
    return [(at, min(LANES, count - at)) for at in range(0, count, LANES)]


def _one_a_lane(count: int) -> Any:
    return kd.Layout.WG_STRIDED((count,), 1)


def fed_product(
    acc: Any,
    steps: Any,
    stages: int,
    left_of: Callable[[Any], Any],
    right_of: Callable[[Any], Any],
    loaded_of: Callable[[Any], Any],
    consumed: Any,
    feed: FedScales,
    factors: Any,
    first: Any,
    n: Any,
    begun: Callable[[list[Any]], Any],
) -> Any:
    """The sums over `steps` stages of SMEM from slot 0 on, as a value.

    `left_of(slot)` and `right_of(slot)` are Refs to this warpgroup's A (rows, 128) and B (128, columns); `loaded_of(slot)`: the
    barrier of its loads; `factors`: the stages' factors; `first`: this warpgroup's first row of the tile, `n`: the tile's first
    column. `begun(sums)` gives the sums to start with, parts of the columns, from zeros.
    """
    height, width = acc.shape
    unit = min(CHUNK, gcd(width, DEPTH))  # wherever a tile begins, such columns are of one block
    chunks = range(0, width, unit)
    start = [kd.layout_cast(kd.zeros((height, unit), kd.float32), kd.Layout.WGMMA) for _ in chunks]

    def multiply(slot: Any, total: Any) -> tuple[Any, ...]:
        stage = factors.at[slot]
        kd.barrier_wait(loaded_of(slot))
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
        # end this before the next product; otherwise the assembler would copy the accumulator
        return tuple(kd.optimization_barrier(x) for x in made)

    # beside factors of columns the assembler would spill what it loads ahead for other steps
    runs, rest = (0, steps) if feed.each else _divided(steps, stages)

    @kd.loop(0, runs, init_carry=tuple(begun(start)))
    def most(number: Any, total: Any) -> Any:
        for slot in range(stages):
            total = multiply(slot, total)
        return total

    @kd.loop(0, rest, init_carry=tuple(most), unroll=isinstance(rest, int) and not feed.each)
    def total(step: Any, total: Any) -> Any:
        return multiply(kd.rem(step, stages) if feed.each else step, total)

    return total[0] if len(total) == 1 else kd.concatenate(list(total), axis=1)


def fed_loads(
    steps: Any,
    stages: int,
    filled: Any,
    load: Callable[[Any], list[Any]],
    fill: Callable[[Any, int, Any, list[Any]], None],
) -> Any:
    """For the producer: call `fill(step, slot, again, scales)` for each step of a tile, from slot 0 on.

    `scales` is what `load(step)` returned, `AHEAD` steps before. An iteration of the loop fills all stages, so a scale stays
    in its register until it is stored. A loop of single steps would move it from one step's register to the next one's,
    and each move would wait for a load that has just begun: 700 to 1000 clocks a step.

    `filled`: how many slots the tiles before have filled at least once, the result is this number for the next tile;
    `again`: whether this is not the slot's first time.
    """
    runs, rest = _divided(steps, stages)

    def some(first: Any, count: Any, again: Any, held: list[list[Any]], ends: bool) -> list[list[Any]]:
        most = count if isinstance(count, int) else stages - 1
        for slot in range(most):

            def one(slot: int = slot, found: list[Any] = held[0]) -> None:
                fill(first + slot, slot, again | (filled > slot), found)

            one() if isinstance(count, int) else kd.when(count > slot)(one)
            more = not ends or slot + AHEAD < most
            held = [*held[1:], *([load(first + slot + AHEAD)] if more else [])]
        return held

    def parts_of(state: Any) -> list[list[Any]]:
        width = len(state) // AHEAD
        return [list(state[at : at + width]) for at in range(0, len(state), width)]

    @kd.loop(0, runs, init_carry=tuple(x for i in range(AHEAD) for x in load(i)))
    def ahead(number: Any, state: Any) -> Any:
        held = some(number * stages, stages, number > 0, parts_of(state), False)
        return tuple(x for found in held for x in found)

    some(runs * stages, rest, runs > 0, parts_of(tuple(ahead)), True)
    return kd.maximum(filled, kd.minimum(steps, stages))


def _divided(count: Any, size: int) -> tuple[Any, Any]:
    """(runs of `size`, the rest) of a static or traced number."""
    return divmod(count, size) if isinstance(count, int) else (kd.div(count, size), kd.rem(count, size))
