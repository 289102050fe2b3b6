"""The warpgroup that loads also sends finished tiles, piece after piece, between its loads of the next tile.

A link carries a tile in about the time in which the next one is multiplied. Stores of a whole tile at once, by TMA or by
lanes, hold up the loads behind them in the same multiprocessor until the link has taken them. A piece every few steps
does not: a product of two H200 takes 116 us in place of 139, and 101 without the link.

Meanwhile the tile waits in SMEM. For a tile of this device's rows, the first peer's term is loaded into this place before
its product ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kernel_dsl as kd

from .shared import CONSUMERS, HALF, TILE_M, Besides, MeshProduct

ROWS = 32  # rows of a piece: with 16 there is more to do than a step has time for
SLACK = 3  # steps between a tile's last piece and its signal, in which the piece arrives

Place = tuple[Any, Any, Any]


@dataclass(frozen=True)
class Pace(Besides):
    """What the warpgroup that loads does besides, where it sends tiles.

    `begin()`: wait until the peers have begun. `store(source, place, rows, columns)`: start the copy of a piece in SMEM
    to its rows and columns of the tile at `place`. `tell(place)`: signal that all pieces have been stored.
    `wait(place)`: wait for the peers' terms of an own tile. `term(rows, columns)`: the first peer's term, if there is one.
    """

    p: MeshProduct
    smem: dict[str, Any]
    begin: Callable[[], None]
    store: Callable[[Any, Place, Any, Any], None]
    tell: Callable[[Place], None]
    wait: Callable[[Place], None]
    term: Callable[[Any, Any], Any]

    @property
    def pieces(self) -> int:
        """The number of pieces of a tile."""
        return self.p.parts * CONSUMERS * HALF // ROWS

    @property
    def first(self) -> int:
        """The step after which the first piece is sent: by then the consumers have left the tile before."""
        return min(self.p.stages, self.p.steps - 1)

    @property
    def initial(self) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The state: how many pieces of the tile before have been sent, and the place of that tile."""
        return self.pieces, 0, 0, 0

    def between(self, index: Any, step: Any, state: Any) -> Any:
        """After the loads of a step of tile `index`: send the pieces of the tile before that are due."""
        span = max(self.p.steps - 1 - SLACK - self.first, 0)
        sent, *place = state

        def due(sent: Any) -> Any:
            return (sent < self.pieces) & (step >= self.first + kd.div(sent * span, self.pieces))

        begins = index < 2 * self.p.blocks
        return kd.while_loop(due, lambda sent: self._send(sent, place, begins), sent), *place

    def end(self, index: Any, place: Place, state: Any) -> Any:
        """After all loads of a tile."""
        kd.when(index >= self.p.blocks)(lambda: self._complete(tuple(state[1:])))

        @kd.when(place[0] == self.p.mesh.size - 1)
        def _() -> None:
            self.wait(place)
            if self.p.mesh.size == 1:
                return
            kd.commit_smem()  # consumers have stored to this SMEM
            for number in range(CONSUMERS * self.p.parts):
                rows, columns = self._of_part(place, number, 0, HALF)
                kd.copy_gmem_to_smem(self.term(rows, columns), self.smem["out_smem"].at[number], self.smem["terms"])

        return 0, *place

    def drain(self, state: Any) -> None:
        """Send the last tile."""
        place, p = tuple(state[1:]), self.p
        begins = kd.axis_index("block") + p.blocks >= p.mesh.size * p.count
        kd.while_loop(lambda sent: sent < self.pieces, lambda sent: self._send(sent, place, begins), state[0])
        self._complete(place)

    def _of_part(self, place: Place, number: Any, first: Any, count: int) -> tuple[Any, Any]:
        """(rows, columns) of the result: `count` rows from `first` on, of part `number` of a tile."""
        p = self.p
        row = place[1] * TILE_M + kd.div(number, p.parts) * HALF + first
        column = place[2] * p.tile_n + kd.multiple_of(kd.rem(number, p.parts) * p.width, p.width)
        return kd.ds(kd.multiple_of(row, count), count), kd.ds(column, p.width)

    def _send(self, sent: Any, place: Any, begins: Any) -> Any:
        """Send piece number `sent`. `begins`: it is of this block's first tile."""

        @kd.when(sent == 0)
        def _() -> None:
            kd.when(begins)(self.begin)
            kd.barrier_wait(self.smem["held"])

        each = HALF // ROWS
        number, first = kd.div(sent, each), kd.multiple_of(kd.rem(sent, each) * ROWS, ROWS)
        source = self.smem["out_smem"].at[number, kd.ds(first, ROWS)]
        self.store(source, tuple(place), *self._of_part(place, number, first, ROWS))
        return sent + 1

    def _complete(self, place: Place) -> None:
        """Leave SMEM to the consumers, and tell that a tile has arrived."""
        kd.wait_smem_to_gmem(0)
        kd.barrier_arrive(self.smem["free"])
        self.tell(place)


def hold(p: MeshProduct, smem: dict[str, Any], value: Any, me: Any, before: Any, add: Any = None) -> Any:
    """Leave a consumer's half of a tile in SMEM, for `Pace`.

    `add(term, at)`: what to add to the columns from `at` on, of which the first peer's term is in SMEM. `before`: -1 for
    the first tile of a block. Returns this argument for the next tile.
    """
    kd.when(before >= 0)(lambda: kd.barrier_wait(smem["free"]))
    if add is not None:
        kd.barrier_wait(smem["terms"])
    for number, at in enumerate(range(0, p.tile_n, p.width)):
        place = smem["out_smem"].at[me * p.parts + number]
        x = value[:, at : at + p.width]
        if add is not None:
            x = x + add(place[...], at)
        place[...] = x.astype(p.dtype)
    kd.commit_smem()
    kd.barrier_arrive(smem["held"])
    return 0
