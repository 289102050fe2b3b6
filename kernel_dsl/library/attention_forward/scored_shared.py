"""Tiles whose keys several blocks share, in the last round of attention with every option.

A launch has as many blocks as multiprocessors, and the last round of tiles is seldom whole. There, a tile is cut into pieces
of its keys. Each piece waits for the one before, joins its results, and leaves them in GMEM for the next; the last one
finishes the tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kernel_dsl as kd

from .problem import ScoredProblem
from .scored_config import computed, listed, tiles_of
from .sizes import ROWS, AttentionConfig

ROUNDS = 64  # of tiles; after more, the last one does not matter
MOST_PIECES = 4  # blocks that share a tile
LEAST = 8  # steps of each
JOIN = 12  # steps that each further piece of a tile costs: it begins anew, and its results go through memory
GAIN = 0.01  # the least part of the time that shared tiles save


@dataclass(frozen=True)
class SharedTiles:
    """Tiles whose keys `pieces` blocks share: the last `each` of each of the last `heads` heads, after `before` heads.

    Blocks take them last: from number `begin` on, up to `end`, all pieces of a tile together.
    """

    before: int
    heads: int
    each: int
    pieces: int
    begin: int
    end: int

    @property
    def count(self) -> int:
        return self.heads * self.each

    def place(self, block: Any, tiles: int, together: Any) -> tuple[Any, Any]:
        """(the head, the tile's number in it) for a block's number, of heads of so many `tiles`, `together` in a group.

        The number of a shared tile also has its piece, plus 1, times `tiles`.
        """
        late, after = block >= self.begin, block >= self.before * tiles
        piece, unit = kd.rem(block - self.begin, self.pieces), kd.div(block - self.begin, self.pieces)
        number = block - kd.where(after, self.before * tiles, 0)
        several = kd.maximum(together * kd.where(after, tiles - self.each, tiles), 1)
        part, rest = kd.div(number, several), kd.rem(number, several)
        head = kd.where(after, self.before, 0) + part * together + kd.rem(rest, together)
        head = kd.where(late, self.before + kd.rem(unit, self.heads), head)
        whole = tiles - 1 - kd.div(rest, together)
        return head, kd.where(late, (piece + 1) * tiles + self.each - 1 - kd.div(unit, self.heads), whole)

    def share(self, number: Any, tiles: int, begin: Any, end: Any) -> tuple[Any, Any]:
        """The part of the steps `begin` to `end` that is the block's, for a tile's number as `place` gives it."""
        piece, steps = kd.div(number, tiles), end - begin
        start = begin + kd.div(steps * kd.maximum(piece - 1, 0), self.pieces)
        return start, kd.where(piece > 0, begin + kd.div(steps * piece, self.pieces), end)

    def scratch(self, consumers: int, v_dim: int) -> dict[str, Any]:
        """Sums of products and, of rows, maxima and sums of weights."""
        places = self.count, consumers
        sums = kd.GMEM((*places, ROWS, v_dim), kd.float32)
        return {"shared_sums": sums, "shared_rows": kd.GMEM((*places, 2, ROWS), kd.float32)}

    def joined(
        self, me: Any, head: Any, number: Any, tiles: int, value: Any, top: Any, total: Any, s: dict[str, Any]
    ) -> tuple[Any, Any, Any, Any]:
        """(value, top, total) of consumer `me`, joined with those of the blocks before, and whether no block follows."""
        piece = kd.div(number, tiles)
        unit = (self.each - 1 - kd.rem(number, tiles)) * self.heads + head - self.before
        sums, rows, turn = (s[f"shared_{name}"].at[unit, me] for name in ("sums", "rows", "turns"))

        def join(value: Any, top: Any, total: Any) -> Any:
            kd.semaphore_wait(turn, piece - 1, decrement=False)
            other_top, other_total = (kd.load(rows.at[i], layout=kd.Layout.WGMMA_ROW) for i in range(2))
            highest = kd.maximum(top, other_top)
            mine, others = kd.exp2(top - highest), kd.exp2(other_top - highest)
            value = kd.fma(value, mine[:, None], kd.load(sums, layout=kd.Layout.WGMMA) * others[:, None])
            return value, highest, kd.fma(total, mine, other_total * others)

        value, top, total = kd.cond(piece > 1, join, lambda *own: own, value, top, total)
        follows = (piece > 0) & (piece < self.pieces)

        @kd.when(follows)
        def _() -> None:
            sums[...] = value
            rows[0], rows[1] = top, total
            kd.semaphore_signal(turn)

        return value, top, total, ~follows


def shared_tiles(
    p: ScoredProblem, t: AttentionConfig, work: Any, together: Any, multiprocessors: int
) -> SharedTiles | None:
    """The tiles that blocks share in a problem of `work` tiles; None if whole tiles end about as early.

    In a last round that few tiles are left for, most multiprocessors would be idle.
    """
    if not p.guarded or p.opened or p.ragged or p.score.causal or p.score.window is not None or listed(p):
        return None
    tiles, heads, left = tiles_of(p, t), p.batch * p.heads, work % multiprocessors
    steps, rounds = kd.cdiv(p.keys, t.block_kv), work // multiprocessors
    tight = t.consumers > 2 and computed(p.v_dim) <= 64  # many keys a step take all registers
    if not left or rounds > ROUNDS or tight:
        return None

    def end(pieces: int, count: int) -> float:
        """The time of the last round, in tiles, if so many tiles have so many pieces."""
        return kd.cdiv(count * pieces, multiprocessors) / pieces + (pieces - 1) * JOIN / steps

    pieces = min(range(1, min(MOST_PIECES, max(steps // LEAST, 1)) + 1), key=lambda n: end(n, left))
    # whole groups of heads have shared tiles, each head as many as another: as few more than `left` as there may be
    several = [n for n in range(together, min(heads, left + together) + 1, together) if kd.cdiv(left, n) <= tiles]
    chosen = min(several, key=lambda n: (n * kd.cdiv(left, n), n), default=0)
    if pieces == 1 or not chosen:
        return None
    each = kd.cdiv(left, chosen)
    count = chosen * each
    if 1 - end(pieces, count) < GAIN * (rounds + 1):
        return None
    begin = work - count
    return SharedTiles(heads - chosen, chosen, each, pieces, begin, begin + count * pieces)
