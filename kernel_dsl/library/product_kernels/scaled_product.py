"""Products of operands with a scale for every 128 of K: each such step has its own sum, which is promoted to float32.

A stage is one step. Its products start a fresh accumulator. When they are done the stage is released, and every element
is multiplied by its factors and added to the sums in plain registers. Meanwhile the tensor cores work for the other
warpgroup. Only the fp8 products of one step have the accumulator's lower precision; steps are added in float32. If a
lane has few factors, they are loaded one step ahead, because the assembler puts loads between the instructions of a
product, and such loads would end after the product.

With one accumulator, a warpgroup waits for its product, promotes it, and only then starts the next one. Both warpgroups
do so at about the same time. Narrow tiles use two accumulators in turn: one product is in flight while the one before
it is promoted. An iteration of the loop has `RUN` such steps, because the assembler would serialise products that are
in flight from one iteration to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any

import kernel_dsl as kd

from ..blocks import own
from ..products.problem import Problem
from ..stage_product import following_slot

DEPTH = 128  # elements of K, and of N, that share a scale
CHUNK = 64  # the most columns that are promoted together
RUN = 4  # steps with a product always in flight: 2 and 8 took longer
IN_PAIRS = 128  # tiles of up to this many columns have two accumulators: with the sums they take 192 registers a lane


@dataclass(frozen=True)
class Scales:
    """The scales of a tile at (m, n): of rows (..., M, blocks of K), and of columns or of blocks of columns; None for
    1.
    """

    p: Problem
    rows: Any
    columns: Any
    m: Any
    n: Any
    height: int
    batch: tuple[Any, ...]

    def row(self, block: Any, layout: Any) -> Any:
        """Factors of rows at a block of K, (height,); None for 1."""
        if self.rows is None:
            return None
        at = own(self.batch, self.rows.shape[:-2])
        return kd.load(self.rows.at[(*at, kd.ds(self.m, self.height), block)], layout=layout)

    def column(self, block: Any, first: int, count: int, layout: Any) -> Any:
        """Factors of some columns at a block of K: (count,), or one for all; None for 1."""
        if self.columns is None:
            return None
        at = own(self.batch, self.columns.shape[:-2])
        if self.p.b_scaled == "blocks":
            return self.columns[(*at, block, kd.div(self.n + first, DEPTH))]
        return kd.load(self.columns.at[(*at, block, kd.ds(self.n + first, count))], layout=layout)


def promoted(total: Any, part: Any, row: Any, column: Any) -> Any:
    """total + part * row * column, (height, count)."""
    part = part if part.dtype.is_float else part.astype(kd.float32)
    if column is not None and column.ndim:
        part, column = part * column[None, :], None
    if row is None or column is None:
        factor = column if row is None else row[:, None]
    else:
        factor = (row * column)[:, None]
    if factor is None:
        return total + part
    return kd.fma(part, kd.broadcast_to(factor, part.shape) if not factor.ndim else factor, total)


def scaled_product(
    acc: Any,
    slot: Any,
    steps: int,
    stages: int,
    left_of: Callable[[Any], Any],
    right_of: Callable[[Any], Any],
    loaded: Any,
    consumed: Any,
    scales: Scales,
    first: Any,
    other: Any = None,
) -> tuple[Any, Any]:
    """The sums over `steps` stages of SMEM from `slot` on, as a value; and the slot that follows.

    `left_of(slot)` and `right_of(slot)` are Refs to this warpgroup's A (rows, 128) and B (128, columns); `first` is the number
    of the first step's block of K. `other`: a second accumulator.
    """
    sums = _ScaledSums(scales, acc.shape[1])
    start = [kd.layout_cast(kd.zeros((acc.shape[0], n), kd.float32), kd.Layout.WGMMA) for _, n in sums.chunks]

    def multiply(acc: Any, slot: Any) -> None:
        kd.barrier_wait(loaded.at[slot])
        kd.wgmma(acc, left_of(slot), right_of(slot), accumulate=False)

    def factors_of(step: Any) -> list[Any]:
        return sums.factors(first + kd.minimum(step, steps - 1))

    ahead = sums.factors(first)
    count = len(ahead)
    if other is not None:
        return _in_turns((acc, other), slot, steps, stages, multiply, consumed, sums, factors_of, ahead, start)

    @kd.loop(0, steps, init_carry=(slot, *ahead, *start))
    def end(step: Any, carry: Any) -> Any:
        slot, *rest = carry
        columns = sums.columns(first + step)
        columns = [kd.optimization_barrier(x) for x in columns]  # load them before the products
        multiply(acc, slot)
        kd.wgmma_wait(0)
        kd.barrier_arrive(consumed.at[slot])
        after = factors_of(step + 1)
        return following_slot(slot, stages), *after, *sums.promote(acc, rest[count:], rest[:count], columns)

    slot_after, *rest = end
    return _whole(rest[count:]), slot_after


def _in_turns(
    accumulators: tuple[Any, Any], slot: Any, steps: int, stages: int, multiply: Callable[[Any, Any], None],
    consumed: Any, sums: _ScaledSums, factors_of: Callable[[Any], list[Any]], ahead: list[Any], start: list[Any],
) -> tuple[Any, Any]:  # fmt: skip
    """`scaled_product` by two accumulators in turn. `ahead`: the factors of the first step; `start`: the sums so far."""
    count = len(ahead)
    ahead = [*ahead, *factors_of(1)]

    def run(step: Any, length: int, slot: Any, carry: list[Any]) -> list[Any]:
        """Compute `length` steps: (the slot after them, the factors of the next two steps, the sums)."""
        factors, total = [carry[:count], carry[count : 2 * count]], carry[2 * count :]
        multiply(accumulators[0], slot)
        for i in range(length):
            more, after = i + 1 < length, following_slot(slot, stages)
            if more:
                multiply(accumulators[(i + 1) % 2], after)
            factors.append(factors_of(step + i + 2))
            kd.wgmma_wait(1 if more else 0)
            kd.barrier_arrive(consumed.at[slot])
            made = sums.promote(accumulators[i % 2], total, factors[i], [])
            # end this before the accumulator's next product; otherwise the assembler would copy the accumulator
            total, slot = [kd.optimization_barrier(x) for x in made], after
        return [slot, *factors[-2], *factors[-1], *total]

    length = min(RUN, steps)

    @kd.loop(0, steps // length, init_carry=(slot, *ahead, *start))
    def runs(number: Any, carry: Any) -> Any:
        return tuple(run(number * length, length, carry[0], list(carry[1:])))

    state = list(runs)
    if steps % length:
        state = run(steps - steps % length, steps % length, state[0], state[1:])
    return _whole(state[1 + 2 * count :]), state[0]


@dataclass(frozen=True)
class _ScaledSums:
    """The sums of `width` columns, promoted by their factors chunk by chunk."""

    scales: Scales
    width: int

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """(first, count) of the columns of each chunk."""
        unit = min(CHUNK, gcd(self.width, DEPTH))  # so many columns are in one block, wherever a tile begins
        return [(at, unit) for at in range(0, self.width, unit)]

    @property
    def each(self) -> bool:
        """Whether each column has its own factor: registers can't hold two steps of these."""
        return self.scales.columns is not None and self.scales.p.b_scaled != "blocks"

    def factors(self, block: Any) -> list[Any]:
        """A step's factors of rows, or of all, for each chunk of columns; none if each column has its own factor."""
        row = self.scales.row(block, kd.Layout.WGMMA_ROW)
        if self.each or self.scales.columns is None:
            return [] if row is None else [row] * len(self.chunks)  # the same registers
        columns = [self.scales.column(block, *chunk, kd.Layout.WGMMA_COL) for chunk in self.chunks]
        return [x if row is None else row * x for x in columns]

    def columns(self, block: Any) -> list[Any]:
        """A step's factors of each column, chunk by chunk; none if columns have no own factors."""
        return [self.scales.column(block, *c, kd.Layout.WGMMA_COL) for c in self.chunks] if self.each else []

    def promote(self, acc: Any, total: list[Any], factors: list[Any], columns: list[Any]) -> list[Any]:
        """The sums plus the products of a step times their factors."""
        none: list[Any] = [None] * len(self.chunks)
        made: list[Any] = []
        for t, (at, width), factor, column in zip(total, self.chunks, factors or none, columns or none, strict=True):
            row, column = (factor, column) if factor is None or factor.ndim else (None, factor)
            part = kd.wgmma_accumulator_load(acc.at[:, at : at + width], None)
            made.append(promoted(t, part, row, column))
        return made


def _whole(total: list[Any]) -> Any:
    return total[0] if len(total) == 1 else kd.concatenate(list(total), axis=1)
