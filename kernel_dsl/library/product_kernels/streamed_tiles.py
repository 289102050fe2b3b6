"""The tiles that a block of the persistent product computes: whole ones in turn, or at the end parts of the last ones.

The number of tiles is seldom a multiple of the number of blocks, so blocks idle in the last wave. `StreamedTiles` ("stream-K")
divides the last wave, which is not full, and the wave before it into equal shares. The steps of their tiles are put in a
line, tile after tile, and each block takes a part of this line. So a tile has pieces in several blocks. The block with
its last piece begins with the sums of the other pieces, in the order of K, and stores the tile. The other blocks, which have
lower numbers, store their sums to GMEM and signal.

A block goes through its part of the line from the end to the beginning. Its first piece is the only one that another
block may wait for, so no signal depends on a wait. Blocks wait for lower numbers only, which a GPU starts earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import kernel_dsl as kd
from kernel_dsl.errors import BadCallValue

from ..products.matmul_config import MatmulConfig
from ..products.problem import Problem
from .fed_scales import in_pairs

CHUNK = 32  # columns of a piece that are loaded together


def check_streams(p: Problem, t: MatmulConfig) -> None:
    """Raise `BadCallValue` if blocks can't share tiles along K: only loops that take any number of steps can."""
    static = p.sparse or p.promoted or p.softmax or in_pairs(p, t.tile_m, t.tile_n)
    if t.streamed and (static or t.ping_pong or p.parts > 1):
        what, hint = "config.streamed=True", "False: consumers take turns, or count steps in pairs or runs"
        raise BadCallValue(kernel="matmul", what=what, hint=hint)


@dataclass(frozen=True)
class Item:
    """Work of a block: the number of the tile, the first of its steps, and how many steps."""

    tile: Any
    first: Any
    count: Any


@dataclass(frozen=True)
class WholeTiles:
    """Every `stride`th of `total` tiles from `begin` on, each of `steps` steps."""

    total: Any
    steps: Any
    stride: int
    begin: Any

    def loop(self, carry: Any) -> Any:
        """A decorator that calls `body(number, carry)` for each item."""
        return kd.loop(self.begin, self.total, step=self.stride, init_carry=carry)

    def item(self, number: Any) -> Item:
        """The item of a number of the loop."""
        return Item(number, 0, self.steps)


@dataclass(frozen=True)
class OneTile:
    """The tile of a block that has just one, of `steps` steps."""

    steps: Any

    def loop(self, carry: Any) -> Any:
        """A decorator that calls `body(number, carry)` once."""
        return lambda body: body(0, carry)

    def item(self, number: Any) -> Item:
        """The item of a number of the loop."""
        return Item(number, 0, self.steps)


def pieces_of(t: MatmulConfig, clusters: int, dtype: Any) -> Any:
    """Scratch for a piece of each consumer."""
    return kd.GMEM((t.cluster, t.cluster_n, t.consumers, clusters, t.rows, t.tile_n), dtype)


class Pieces:
    """Sums of pieces in GMEM, and the semaphores that say which are there. `room`: of `pieces_of`."""

    def __init__(self, room: Any, t: MatmulConfig) -> None:
        outer = room.shape[:4]
        self._room: Any = room
        self._flags: Any = kd.get_global(kd.SemaphoreType.REGULAR((prod(outer),)))
        sizes = {"cluster": t.cluster, "cluster_n": t.cluster_n}
        self._place: tuple[Any, ...] = tuple(kd.axis_index(a) if n > 1 else 0 for a, n in sizes.items())

    def at(self, me: Any, cluster: Any) -> tuple[Any, Any]:
        """(the Ref of the sums, the semaphore) of consumer `me` in another cluster's block at this one's place."""
        index = (*self._place, me, cluster)
        number: Any = 0
        for place, size in zip(index, self._room.shape, strict=False):
            number = number * size + place
        return self._room.at[index], self._flags.at[number]


def _loaded(piece: Any, first: int, count: int) -> Any:
    return kd.load(piece.at[:, first : first + count], layout=kd.Layout.WGMMA)


def _add_to(acc: Any, piece: Any) -> None:
    """Add a piece in GMEM to an accumulator, some columns at a time: a lane has no registers for all."""
    for at in range(0, piece.shape[1], CHUNK):
        part = acc.at[:, at : at + CHUNK]
        part[...] = kd.wgmma_accumulator_load(part, None) + _loaded(piece, at, part.shape[1])


def _added(sums: Sequence[Any], piece: Any) -> tuple[Any, ...]:
    """The sums plus a piece in GMEM; they are parts of its columns."""
    starts = accumulate((x.shape[1] for x in sums), initial=0)
    return tuple(x + _loaded(piece, at, x.shape[1]) for x, at in zip(sums, starts, strict=False))


class StreamedTiles:
    """The share of cluster `me` of `clusters`: first whole tiles, then a part of the line of the last tiles' steps."""

    def __init__(self, total: Any, steps: Any, clusters: int, me: Any) -> None:
        self._steps: Any = steps
        self._clusters: int = clusters
        self._me: Any = me
        self._rounds: Any = kd.maximum(kd.div(total, clusters) - 1, 0)  # waves of whole tiles
        self._whole: Any = self._rounds * clusters
        line = (total - self._whole) * steps
        self._share: Any = kd.div(line, clusters)
        self._longer: Any = kd.rem(line, clusters)  # so many clusters have one step more
        self._begin: Any = me * self._share + kd.minimum(me, self._longer)
        self._end: Any = self._begin + self._share + kd.where(me < self._longer, 1, 0)
        self._last: Any = kd.div(self._end - 1, steps)

    def loop(self, carry: Any) -> Any:
        """A decorator that calls `body(number, carry)` for each item."""
        tiles = kd.where(self._end > self._begin, self._last - kd.div(self._begin, self._steps) + 1, 0)
        return kd.loop(0, self._rounds + tiles, init_carry=carry)

    def item(self, number: Any) -> Item:
        """The item of a number of the loop."""
        whole = number < self._rounds
        tile = self._last - kd.maximum(number - self._rounds, 0)
        start = tile * self._steps
        first = kd.where(whole, 0, kd.maximum(self._begin - start, 0))
        end = kd.where(whole, self._steps, kd.minimum(self._end - start, self._steps))
        return Item(
            kd.where(whole, number * self._clusters + self._me, self._whole + tile), first, kd.maximum(end - first, 1)
        )

    def gather(self, item: Item, pieces: Pieces, me: Any, sums: Any) -> Any:
        """Add all pieces of consumer `me`'s tile but the last to `sums`, if this is the last piece.

        `sums`: an accumulator, or a list of values that are parts of the columns; these are returned.
        """
        first = kd.maximum(self._cluster_of((item.tile - self._whole) * self._steps), 0)
        first = kd.where((item.first > 0) & self._ends(item), first, self._me)
        values = isinstance(sums, list)

        @kd.loop(first, self._me, init_carry=tuple(sums) if values else ())
        def after(cluster: Any, carry: Any) -> Any:
            piece, flag = pieces.at(me, cluster)
            kd.semaphore_wait(flag, decrement=False)
            if values:
                return _added(carry, piece)
            _add_to(sums, piece)
            return ()

        return after

    def give(self, item: Item, value: Any, pieces: Pieces, me: Any, store: Callable[[], None]) -> None:
        """`store` a tile after its last piece; leave the sums of another piece in GMEM."""
        ends = self._ends(item)
        kd.when(ends)(store)

        @kd.when(~ends)
        def _() -> None:
            piece, flag = pieces.at(me, self._me)
            piece[...] = value
            kd.semaphore_signal(flag)

    def _ends(self, item: Item) -> Any:
        return item.first + item.count == self._steps

    def _cluster_of(self, step: Any) -> Any:
        """The cluster that has a step of the line."""
        longer = self._longer * (self._share + 1)  # steps of the clusters that have one more
        rest = self._longer + kd.div(step - longer, kd.maximum(self._share, 1))
        return kd.where(step < longer, kd.div(step, self._share + 1), rest)
