"""Tiles of Hopper's fast product of which the last ones along M lack one consumer's rows.

Tiles of 192 rows take less time for each row than tiles of 128, but there are few of them: 4096 x 4096 makes 704, which is 5.3
waves on 132 multiprocessors and takes the time of 6. With 16 tiles of 192 rows and 8 of 128 along M, each block has 4 high
tiles and at most 2 low ones. Beside a low tile the last consumer only releases the stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kernel_dsl as kd
from kernel_dsl.errors import BadCallValue

from ..first_sizes import is_open
from ..products.matmul_config import MatmulConfig
from ..products.problem import Problem
from .fed_scales import feeds


def takes_low_tiles(p: Problem, t: MatmulConfig) -> bool:
    """Whether the kernel can have low tiles: each tile begins with the first stage, and sizes are known."""
    plain = p.scaled and p.parts == 1 and not p.batch and not is_open(p.M, p.N, p.K)
    return plain and feeds(p, t.tile_m) and t.consumers > 1 and t.blocks == 1 and not (t.streamed or t.swapped)


def check_low_tiles(p: Problem, t: MatmulConfig) -> None:
    """Raise `BadCallValue` if the kernel can't have the low tiles of `t`."""
    if t.low_tiles and (t.ping_pong or not takes_low_tiles(p, t)):
        what, hint = f"config.low_tiles={t.low_tiles}", "0: only products with both scales for each 128 of K have some"
        raise BadCallValue(kernel="matmul", what=what, hint=hint)


@dataclass(frozen=True)
class LowTiles:
    """Tiles of two heights: `high` tiles of `t.tile_m` rows, then `t.low_tiles` low ones, beside `across` tiles along N."""

    t: MatmulConfig
    high: int
    across: int

    def place(self, index: Any) -> tuple[Any, Any]:
        """(first row, tile along N) of tile `index`: all high tiles come first, both kinds in bands."""
        t, count = self.t, self.high * self.across
        m, n = kd.planar_snake(kd.maximum(index - count, 0), (t.low_tiles, self.across), 0, min(t.group, t.low_tiles))
        m = m * t.low_rows + self.high * t.tile_m
        if not count:
            return m, n
        high_m, high_n = kd.planar_snake(index, (self.high, self.across), 0, min(t.group, self.high))
        is_high = index < count
        return kd.multiple_of(kd.where(is_high, high_m * t.tile_m, m), t.rows), kd.where(is_high, high_n, n)

    def is_low(self, m: Any) -> Any:
        """Whether the tile that begins at row `m` is low."""
        return m >= self.high * self.t.tile_m

    def copy(self, m: Any, tile: Any, place: Any, copy: Callable[[Any, Any], None]) -> None:
        """Call `copy(tile, place)` with the rows that the tile at row `m` has: Refs to `t.tile_m` rows of GMEM and SMEM."""
        is_low, rows = self.is_low(m), kd.ds(0, self.t.low_rows)
        kd.when(is_low)(lambda: copy(tile.at[rows], place.at[rows]))
        kd.when(~is_low)(lambda: copy(tile, place))

    def share(self, m: Any, consumer: Any, compute: Callable[[], Any], rest: Callable[[], None]) -> None:
        """Call `compute()` if a consumer has rows of the tile at row `m`, else `rest()`."""
        idle = self.is_low(m) & (consumer == self.t.consumers - 1)
        kd.when(idle)(rest)

        @kd.when(~idle)
        def _() -> None:
            compute()


def pass_over(count: Any, stages: int, loaded: Any, consumed: Any) -> None:
    """For a consumer without rows in a tile: see and release its `count` stages, from slot 0 on."""

    @kd.loop(0, count)
    def _(step: Any) -> None:
        slot = kd.rem(step, stages)
        kd.barrier_wait(loaded.at[slot])
        kd.barrier_arrive(consumed.at[slot])
