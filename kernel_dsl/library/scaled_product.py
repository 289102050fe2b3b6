"""Products of operands that have a scale for every 128 of K: each such step has its own sum, which is promoted to float32.

A stage is one step. Its products start a fresh accumulator. When they are done the stage is released, and every element is
multiplied by its factors and added to the sums in plain registers. Meanwhile the tensor cores work for the other warpgroup. Only
the fp8 products of one step have the accumulator's lower precision; steps are added in float32. Factors that are few a lane are
loaded one step ahead: the assembler puts loads between the instructions of a product, and they would end after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any

import kernel_dsl as kd

from .blocks import own
from .problem import Problem

DEPTH = 128  # elements of K, and of N, that share a scale
CHUNK = 64  # columns that are promoted together, at most


@dataclass(frozen=True)
class Scales:
    """The scales of a tile at (m, n): of rows (..., M, blocks of K), of columns or of blocks of them; None for 1."""

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
) -> tuple[Any, Any]:
    """The sums over `steps` stages of SMEM from `slot` on, as a value; and the slot that follows.

    `left_of(slot)` and `right_of(slot)` are Refs to this warpgroup's A (rows, 128) and B (128, columns); `first` is the number
    of the first step's block of K.
    """
    unit = min(CHUNK, gcd(acc.shape[1], DEPTH))  # wherever a tile begins, such columns are of one block
    chunks = [(at, unit) for at in range(0, acc.shape[1], unit)]
    row_layout, column_layout = kd.Layout.WGMMA_ROW, kd.Layout.WGMMA_COL
    start = [kd.layout_cast(kd.zeros((acc.shape[0], count), kd.float32), kd.Layout.WGMMA) for _, count in chunks]

    each = (
        scales.columns is not None and scales.p.b_scaled != "blocks"
    )  # column has a factor: too many to hold two steps'

    def few(block: Any) -> list[Any]:
        """A step's factors of rows, and of blocks of columns."""
        columns = () if each else chunks
        found = [scales.row(block, row_layout), *(scales.column(block, *chunk, column_layout) for chunk in columns)]
        return [x for x in found if x is not None]

    ahead = few(first)

    @kd.loop(0, steps, init_carry=(slot, *ahead, *start))
    def end(step: Any, carry: Any) -> Any:
        slot, *rest = carry
        now, total = rest[: len(ahead)], rest[len(ahead) :]
        row = None if scales.rows is None else now.pop(0)
        columns: list[Any] = now or [None] * len(chunks)
        if each:
            columns = [_now(scales.column(first + step, at, count, column_layout)) for at, count in chunks]
        kd.barrier_wait(loaded.at[slot])
        kd.wgmma(acc, left_of(slot), right_of(slot), accumulate=False)
        after = few(first + kd.minimum(step + 1, steps - 1))
        kd.wgmma_wait(0)
        kd.barrier_arrive(consumed.at[slot])
        made = [
            promoted(t, acc.at[:, at : at + count][...], row, column)
            for t, (at, count), column in zip(total, chunks, columns, strict=True)
        ]
        return kd.where(slot == stages - 1, 0, slot + 1), *after, *made

    slot_after, *total = end
    total = total[len(ahead) :]
    return (total[0] if len(total) == 1 else kd.concatenate(list(total), axis=1)), slot_after


def _now(x: Any) -> Any:
    return None if x is None else kd.optimization_barrier(x)
