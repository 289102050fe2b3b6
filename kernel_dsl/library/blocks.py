"""The tile of a block: one number gives the indices of the tile, the part of K and the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import kernel_dsl as kd

from .first_sizes import is_open
from .products.problem import Problem

GROUPS = 8  # of multiprocessors: graphics processing clusters
MOST_ROWS = 2**16 - 1  # the greatest extent of all axes of a grid but the last one


def spread(number: Any, extents: tuple[Any, ...]) -> tuple[Any, ...]:
    """The indices of `number` in row-major order; 0 along extents of one."""
    out: list[Any] = []
    for axis, extent in enumerate(extents):
        if _is_one(extent):
            out.append(0)
            continue
        left: Any = prod(extents[axis + 1 :])
        alone = isinstance(left, int) and left <= 1
        out.append(number if alone else kd.div(number, left))
        number = 0 if alone else kd.rem(number, left)
    return tuple(out)


def _is_one(extent: Any) -> bool:
    return isinstance(extent, int) and extent == 1


def clusters_at_once(blocks: int, size: int) -> int:
    """The number of clusters of `size` blocks, one block on each of `blocks` multiprocessors, that surely run at once.

    A cluster lies in one of Hopper's eight groups of multiprocessors, which are pairs, and a group has none for a rest. How many
    pairs a group has differs between GPUs of one name: on one NVIDIA H200 30 clusters of four fit, of 33. If a persistent kernel
    has more clusters than fit, the last ones begin when the others end.
    """
    rest = max(size - 2 + size % 2, 0)
    return max((blocks - GROUPS * rest) // size, 1)


def tile_of(index: Any, p: Problem, tiles: tuple[Any, Any], group: int) -> tuple[Any, Any, Any, tuple[Any, ...]]:
    """(tile along M, along N, part of K, batch indices) of number `index`: tiles of M in bands of `group`, which share L2."""
    count = tiles[0] * tiles[1]
    outer = p.parts * prod(p.batch)
    part, batch = 0, (0,) * len(p.batch)
    if not _is_one(outer):
        part, *batch = spread(kd.div(index, count), (p.parts, *p.batch))
        index = kd.rem(index, count)
    m, n = kd.planar_snake(index, tiles, 0, min(group, tiles[0]) if isinstance(tiles[0], int) else group)
    return m, n, part, tuple(batch)


@dataclass(frozen=True)
class TilePlace:
    """What a block of a general kernel computes: the tile at row `m` and column `n`, of a part of K, batch indices (or a group).

    `end`: the end of its group's rows, or None. `again()` finds the same place once more, so that nothing of it need be kept
    meanwhile; None if it takes nothing but the block's number.
    """

    m: Any
    n: Any
    part: Any
    batch: tuple[Any, ...]
    end: Any = None
    again: Callable[[], TilePlace] | None = None

    def leading(self, p: Problem) -> tuple[Any, ...]:
        """The indices of the tile along the result's leading axes."""
        return (*((self.part,) if p.parts > 1 else ()), *(() if p.groups else self.batch))


def tiles_of(p: Problem, t: Any) -> int:
    """The number of blocks of a general kernel, one for each possible tile."""
    tiles_n = kd.cdiv(p.N, t.tile_n)
    if p.groups:
        most = p.groups.most_tiles(t.tile_m, tiles_n)
        return max(most, 1) if isinstance(p.groups.rows, int) else most
    return kd.cdiv(p.M, t.tile_m) * tiles_n * prod((p.parts, *p.batch))


def grid_of(p: Problem, t: Any) -> tuple[int, ...]:
    """The grid of a launch of a general kernel for any sizes without groups: its rows are columns of tiles if these are low."""
    rows = _columns(p, t) if _by_rows(p, t) else 1
    return rows, tiles_of(p, t) // rows


def _columns(p: Problem, t: Any) -> Any:
    """The number of columns of tiles of all parts and products."""
    return kd.cdiv(p.N, t.tile_n) * prod((p.parts, *p.batch))


def _by_rows(p: Problem, t: Any) -> Any:
    """Whether each row of the grid is a column of tiles, in the order of `tile_of`, so that blocks need not divide by M."""
    return (kd.cdiv(p.M, t.tile_m) <= t.group) & (_columns(p, t) <= MOST_ROWS)


def _place_of(p: Problem, t: Any) -> TilePlace:
    """The place of this block's tile of a kernel without groups."""
    tiles = kd.cdiv(p.M, t.tile_m), kd.cdiv(p.N, t.tile_n)
    if not is_open(*p.batch, p.M, p.N):
        m, n, part, batch = tile_of(kd.program_id(0), p, tiles, t.group)
        return TilePlace(m * t.tile_m, n * t.tile_n, part, batch)
    extents = (*tiles, p.parts, *p.batch)

    def changing(m: Any, n: Any, part: Any, batch: Any) -> list[Any]:
        return [index for index, extent in zip((m, n, part, *batch), extents, strict=True) if not _is_one(extent)]

    def place(row: Any, number: Any) -> TilePlace:
        def by_rows() -> list[Any]:
            part, *batch, n = spread(row, (p.parts, *p.batch, tiles[1]))
            return changing(number, n, part, batch)

        found = kd.cond(_by_rows(p, t), by_rows, lambda: changing(*tile_of(number, p, tiles, t.group)))
        # that an index is in its extent shows that addresses have 32 bits, and saves masks
        rest = iter(found)
        m, n, part, *batch = (0 if _is_one(extent) else kd.clip(next(rest), 0, extent - 1) for extent in extents)
        return TilePlace(m * t.tile_m, n * t.tile_n, part, tuple(batch), again=once_more)

    def once_more() -> TilePlace:
        return place(*kd.optimization_barrier(kd.program_id(0), kd.program_id(1)))

    return place(kd.program_id(0), kd.program_id(1))


def walk(
    p: Problem,
    t: Any,
    refs: Sequence[Any],
    tables: dict[str, Any],
    multiply: Callable[[TilePlace, Sequence[Any]], None],
) -> None:
    """Call `multiply(place, refs)` for this block's tile.

    With groups, `refs` begin with their sizes, and blocks may be idle.
    """
    if p.groups is None:
        multiply(_place_of(p, t), refs)
        return
    index, tiles_n = kd.program_id(0), kd.cdiv(p.N, t.tile_n)
    given, *rest = refs
    groups, bounds, tile_ends = p.groups, tables["bounds"], tables["tile_ends"]
    groups.fill(given, bounds, tile_ends, t.tile_m, tiles_n)

    def place(index: Any, again: Callable[[], TilePlace] | None = None) -> TilePlace:
        group, m, end, n = groups.place(index, bounds, tile_ends, t.tile_m, tiles_n, t.group)
        return TilePlace(m, n * t.tile_n, 0, (group,), end, again)

    def once_more() -> TilePlace:
        # the same index, from the tables, so that the compiler keeps no part of the first search
        return place(kd.minimum(index, groups.total(tile_ends, t.tile_m, tiles_n) - 1))

    # before the product, which then keeps nothing for it
    groups.clear(rest[-1], bounds, index, tiles_of(p, t))

    @kd.when(index < groups.total(tile_ends, t.tile_m, tiles_n))
    def _() -> None:
        multiply(place(index, once_more), rest)


def own(batch: tuple[Any, ...], extents: tuple[Any, ...]) -> tuple[Any, ...]:
    """The batch indices of an operand, which may lack leading axes or have extents of 1 there."""
    mine = batch[len(batch) - len(extents) :]
    return tuple(0 if _is_one(extent) else index for index, extent in zip(mine, extents, strict=True))


def steps_of(p: Problem, tile_k: int) -> int:
    """The number of stages of a part of K."""
    return -(-(3 * (p.depth // tile_k) if p.thrice else -(-p.K // tile_k)) // p.parts)


def start_of(p: Problem, step: Any, tile_k: int, side: int) -> Any:
    """The start of step `step` along K of a (`side` 0) or b (1). With `thrice`, first a's parts are low, then b's, then
    neither.
    """
    if not p.thrice:
        return step * tile_k
    count = p.depth // tile_k
    which = kd.div(step, count)
    start = (step - which * count) * tile_k + kd.where(which == side, p.depth, 0)
    if steps_of(p, tile_k) * p.parts > 3 * count:  # the last part has steps beyond the end; they read zeros
        start = start + kd.where(which > 2, 2 * p.depth, 0)
    return kd.multiple_of(start, tile_k)
