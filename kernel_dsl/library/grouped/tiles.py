"""The tiles of a grouped product: the GPU finds them from the groups' sizes, so that one kernel serves all sizes.

Each block makes two tables in SMEM: the end of each group's rows, and the end of each group's tiles. A binary search
finds the group of a tile. A tile has rows of one group only: the last tile of a group ends with the group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import kernel_dsl as kd

from ..first_sizes import dim_of, is_open

MOST = 4096  # the most groups, whose tables are in SMEM
MOST_ROWS = 2**24
CLEARED = (8, 256)  # rows and columns that a warpgroup sets to zero at a time


@dataclass(frozen=True)
class RowGroups:
    """The groups of a grouped product: `count` of them, with at most `rows` rows in all.

    Their sizes (count,) are given, or `by_offsets` where each begins and the last ends (count + 1,).
    """

    count: int
    rows: Any
    by_offsets: bool = False

    def opened(self, unit: int = 1) -> RowGroups | None:
        """The groups for any number of rows that is a multiple of `unit`; None if 32 bits can't hold the sums of their
        sizes.
        """
        most = min(MOST_ROWS, ((1 << 31) - 1) // max(self.count, 1)) // unit * unit
        return replace(self, rows=dim_of("rows", most, unit)) if 0 < self.rows <= most else None

    def at_launch(self, rows: Any) -> RowGroups:
        """In a body: the groups with the number of rows of the launch."""
        return replace(self, rows=rows) if is_open(self.rows) else self

    @property
    def scratch(self) -> dict[str, Any]:
        """The tables: group i has the rows `bounds[i]` to `bounds[i + 1]`.

        `tile_ends[i]` is the number of tiles of all groups up to group i.
        """
        return {"bounds": kd.SMEM((self.count + 1,), kd.int32), "tile_ends": kd.SMEM((self.count,), kd.int32)}

    @property
    def bytes(self) -> int:
        return 8 * (self.count + 1) + 64

    def most_tiles(self, tile_m: int, tiles_n: int) -> int:
        """An upper bound of the number of tiles: each group may end with a part of a tile."""
        return (self.rows // tile_m + self.count) * tiles_n

    def bound(self, given: Any, bounds: Any) -> None:
        """Make the table of rows. Ends are clamped to the array, and decreasing offsets are raised."""
        if self.by_offsets:
            bounds[...] = kd.cummax(kd.clip(given[...], 0, self.rows))
            return
        # `opened` bounds the rows, so that 32 bits suffice
        wide = kd.int64 if isinstance(self.rows, int) and self.rows * self.count >= 1 << 31 else kd.int32
        ends = kd.cumsum(kd.clip(given[...], 0, self.rows).astype(wide))
        bounds[0] = 0
        bounds[1:] = kd.minimum(ends, self.rows).astype(kd.int32)

    def fill(self, given: Any, bounds: Any, tile_ends: Any, tile_m: int, tiles_n: int) -> None:
        """Make both tables."""
        self.bound(given, bounds)
        sizes = bounds[1:] - bounds[:-1]
        tile_ends[...] = kd.cumsum(kd.div(sizes + (tile_m - 1), tile_m) * tiles_n, dtype=kd.int32)

    def total(self, tile_ends: Any, tile_m: int, tiles_n: int) -> Any:
        """The number of tiles."""
        return kd.clip(tile_ends[self.count - 1], 0, self.most_tiles(tile_m, tiles_n))

    def place(
        self, index: Any, bounds: Any, tile_ends: Any, tile_m: int, tiles_n: int, band: int
    ) -> tuple[Any, Any, Any, Any]:
        """(group, first row, the group's end, tile along N) of tile number `index`, in bands of M tiles, which share L2."""
        group: Any = kd.astype(0, kd.int32)
        half = 1 << (self.count.bit_length() - 1)
        while half:
            probe = group + half
            ended = tile_ends[kd.minimum(probe, self.count) - 1] <= index
            group = kd.where((probe <= self.count) & ended, probe, group)
            half //= 2
        group = kd.minimum(group, self.count - 1)
        # what comes from tables gets its bounds, so that no index needs 64 bits
        most = self.most_tiles(tile_m, tiles_n)
        start, end = (kd.clip(bounds[i], 0, self.rows) for i in (group, group + 1))
        before = kd.where(group > 0, tile_ends[kd.maximum(group - 1, 0)], 0)
        number = kd.maximum(index - kd.clip(before, 0, most), 0)
        tiles_m = kd.div(end - start + (tile_m - 1), tile_m)
        strip = kd.div(number, band * tiles_n)
        rest = kd.rem(number, band * tiles_n)
        height = kd.clip(tiles_m - strip * band, 1, band)
        n = kd.div(rest, height)
        m = strip * band + kd.rem(rest, height)
        n = kd.where(kd.rem(strip, 2) == 1, tiles_n - 1 - n, n)
        return group, start + m * tile_m, end, n

    def clear(self, out: Any, bounds: Any, first: Any, step: Any) -> None:
        """Set the rows of no group to zero: this warpgroup clears every `step`th part from number `first` on."""
        height, width = CLEARED
        zeros = kd.zeros(CLEARED, out.dtype)
        for low, high in ((0, bounds[0]), (bounds[self.count], self.rows)):
            if not self.by_offsets and isinstance(low, int):
                continue  # the first group begins with the first row

            count, begin, by = kd.div(high - low + (height - 1), height), first, step
            if not isinstance(step, int):  # a loop's step is a constant, so this loop counts turns
                count, begin, by = kd.div(kd.maximum(count - first, 0) + (step - 1), step), 0, 1

            @kd.loop(begin, count, step=by)
            def _(index: Any, low: Any = low, high: Any = high) -> None:
                index = index if isinstance(step, int) else first + index * step
                row = low + index * height
                mask = kd.broadcasted_iota(kd.int32, CLEARED, 0) + row < high

                @kd.loop(0, kd.cdiv(out.shape[1], width))
                def _(column: Any) -> None:
                    kd.store(out, (kd.ds(row, height), kd.ds(column * width, width)), zeros, mask=mask)


def put(out: Any, m: Any, columns: Any, end: Any, value: Any) -> None:
    """Store a tile's rows that belong to the group, which ends at row `end`."""
    mask = kd.broadcasted_iota(kd.int32, value.shape, 0) + m < end
    kd.store(out, (kd.ds(m, value.shape[0]), columns), value, mask=mask)
