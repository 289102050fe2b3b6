"""The small kernels before attention with options: which blocks of keys a mask leaves, and which tiles ragged lengths have."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import kernel_dsl as kd

from ..kernel import identified
from .attention_score import ScoredProblem, ScorePlace

TABLE_LANES = 128
KEPT = 8  # lists, one for each device that a plan was run on


class _Untouched:
    """What a mask that depends on neither batch nor head can be given for them."""


def probe_kernel(p: ScoredProblem, batch: Any = 0, head: Any = 0) -> Any:
    """The kernel `() -> mask` of some queries and keys."""

    def body(out: Any) -> None:
        i, j = (kd.zeros(shape, kd.int32) for shape in ((16, 1), (1, 16)))
        out[...] = p.score.mask((batch, head, i, j)).astype(kd.int32)

    return kd.kernel(body, out_type=kd.ShapeDtypeStruct((16, 16), kd.int32), name="attention_mask_probe")


def depends_on_head(p: ScoredProblem) -> bool:
    """Whether `mask_mod` reads its batch or its head."""
    try:
        _ = probe_kernel(p, _Untouched(), _Untouched()).lower(target="sm_90a").ir
    except Exception:  # whatever the user's function does with what is no number
        return True
    return False


@cache
def blocks_kernel(problem: ScoredProblem, tile: int, other: int, by_head: bool, by_key: bool = False) -> Any:
    """The kernel `(any array,) -> (blocks, counts)`: int32 (batch, heads, tiles, blocks) and (batch, heads, tiles).

    A tile has `tile` queries, a block `other` keys, or the other way round `by_key`. A tile's first `count` entries are twice
    the numbers of the blocks that it has to do with, rising, and 1 more where all queries see all keys. Without `by_head` there
    is one batch and one head.
    """
    p = problem
    batch, heads = (p.batch, p.heads) if by_head else (1, 1)
    own, others = (p.keys, p.queries) if by_key else (p.queries, p.keys)
    tiles, blocks = kd.cdiv(own, tile), kd.cdiv(others, other)

    def body(_: Any, lists: Any, counts: Any) -> None:
        head, number = kd.program_id(0), kd.program_id(1)
        place, first = (kd.div(head, heads), kd.rem(head, heads)), number * tile
        mine = first + kd.broadcasted_iota(kd.int32, (tile, other), 0)
        whole = ScorePlace(*place, number, 0, 0, p.queries, p.keys)
        begin, end = (whole.query_blocks if by_key else whole.blocks)(p, first, tile, other)

        def one(index: Any, count: Any) -> Any:
            theirs = index * other + kd.broadcasted_iota(kd.int32, (tile, other), 1)
            query, key = (theirs, mine) if by_key else (mine, theirs)
            seen, there = p.score.seen((*place, query, key), p.queries, p.keys), query < p.queries
            some = kd.max((seen & there).astype(kd.int32))
            every = kd.min((seen | ~there).astype(kd.int32))
            kd.store(lists, (*place, number, count), index * 2 + every, mask=some > 0)
            return count + some

        counts[(*place, number)] = kd.fori_loop(begin, end, one, 0)

    out_type = (
        kd.ShapeDtypeStruct((batch, heads, tiles, max(blocks, 1)), kd.int32, init=0),
        kd.ShapeDtypeStruct((batch, heads, tiles), kd.int32),
    )
    return kd.kernel(body, out_type=out_type, grid=(batch * heads, tiles), name="attention_blocks")


@dataclass(frozen=True)
class BlockLists:
    """The lists of a kernel, which depend on the mask alone: found by the first call on a device and stream, and kept."""

    kernel: Any
    kept: dict[Any, Any] = field(default_factory=lambda: cast("dict[Any, Any]", {}), compare=False)

    def of(self, like: Any, how: dict[str, Any]) -> Any:
        """(blocks, counts) where the array `like` is."""
        place = type(like), str(getattr(like, "device", "")), how["stream"], bool(how["interpret"])
        if place not in self.kept:
            if len(self.kept) >= KEPT:
                self.kept.clear()
            self.kept[place] = self.kernel(like, **how)
        return self.kept[place]

    def structs(self, like: Any, target: str | None) -> list[Any]:
        """What `of` gives, described."""
        made = self.kernel.lower(like, target=target).traced.outputs
        return [kd.ShapeDtypeStruct(x.shape, x.dtype) for x in made]


@cache
def table_kernel(batch: int, tiles: int, tile: int, rising: bool = False) -> Any:
    """The kernel `(lengths,) -> table`: int32 (tiles, 2), a line for each tile of `tile` rows of ragged sequences.

    A line has the number of the sequence, and 1 more, and that of the tile in it; lines that are left over are 0. Long
    sequences come first, and of one the last tile, or if `rising` the first. `lengths`: int32 (batch + 1), cumulative.
    """
    lanes = max(kd.cdiv(batch, TABLE_LANES) * TABLE_LANES, TABLE_LANES)

    def body(lengths: Any, table: Any) -> None:
        me = kd.program_id(0)
        number = kd.arange(lanes)
        begins = kd.load(lengths, kd.ds(0, lanes), mask=number < batch)
        ends = kd.load(lengths, kd.ds(1, lanes), mask=number < batch)
        each = ends - begins
        own = lengths[me + 1] - lengths[me]
        before = (each > own) | ((each == own) & (number < me))
        count = kd.div(each + (tile - 1), tile)
        start = kd.sum(kd.where(before, count, 0))
        mine = kd.div(own + (tile - 1), tile)

        @kd.loop(0, kd.cdiv(mine, TABLE_LANES))
        def _(round_: Any) -> None:
            line = round_ * TABLE_LANES + kd.arange(TABLE_LANES)
            here = (kd.ds(start + round_ * TABLE_LANES, TABLE_LANES),)
            kd.store(table, (*here, 0), kd.full((TABLE_LANES,), 1, kd.int32) * (me + 1), mask=line < mine)
            kd.store(table, (*here, 1), line if rising else mine - 1 - line, mask=line < mine)

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct((tiles, 2), kd.int32, init=0),
        grid=(batch,),
        name="attention_table",
    )
    return identified(made, batch, tiles, tile, rising)
