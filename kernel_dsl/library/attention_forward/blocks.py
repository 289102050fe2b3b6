"""The small kernels before attention with options: lists of the blocks of keys that a mask keeps, and of ragged tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import Any, cast

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..latest import Launch, results_of
from .captured import reading
from .opened import at_launch, list_shapes
from .problem import ScoredProblem, ScorePlace, most_lines
from .score import Score

TABLE_LANES = 128
ELEMENTS = 16384  # elements of a mask that a block computes at a time
LIST_LANES = 128  # flags of blocks that are counted at a time
PROBED = 16  # queries, keys and extents of arrays in the trace that finds what a mask depends on
KEPT = 8  # lists, one for each device that a plan was run on


def probe_kernel(p: ScoredProblem) -> Any:
    """The kernel `(*captured,) -> mask` of some queries and keys, of the batch and the head of its place in the grid."""

    def body(*rest: Any) -> None:
        i, j = (kd.zeros(shape, kd.int32) for shape in ((PROBED, 1), (1, PROBED)))
        place = kd.program_id(0), kd.program_id(1)
        with reading(dict(zip(p.score.captured, rest, strict=False))):
            rest[-1][...] = p.score.mask((*place, i, j)).astype(kd.int32)

    out = kd.ShapeDtypeStruct((PROBED, PROBED), kd.int32)
    return kd.kernel(body, out_type=out, grid=(2, 2), name="attention_mask_probe")


def depends_on(p: ScoredProblem, captured: Sequence[Any]) -> tuple[bool, bool]:
    """(whether `mask_mod` reads its batch, whether it reads its head); it closed over the arrays `captured`."""
    functions = p.score.score_mod, p.score.mask_mod, p.score.score_mod_grad
    names = "score_mod", "mask_mod", "score_mod_grad"
    alone = replace(
        p, batch=1, queries=1, keys=1, pages=0, table=0, score=Score(**dict(zip(names, functions, strict=True)))
    )
    # arrays of any size give this answer
    return _depends(alone, tuple([kd.ShapeDtypeStruct((PROBED,) * len(x.shape), x.dtype) for x in captured]))


@lru_cache(64)
def _depends(p: ScoredProblem, structs: tuple[Any, ...]) -> tuple[bool, bool]:
    """What the trace of a mask reads. Placeholders in place of values would not show each use: they equal nothing."""
    from kernel_dsl.ops.index import AxisIndex  # only now: importing the library imports no ops

    try:
        ir = probe_kernel(p).lower(*structs, target="sm_90a").ir
    except Exception:  # the user's function may raise anything; the trace of the kernel raises it again
        return True, True
    read = {value for op in ir.walk() for value in op.values()}
    axes = {op.position for op in ir.walk() if isinstance(op, AxisIndex) and op.result in read}
    return 0 in axes, 1 in axes


def block_arrays(p: ScoredProblem, opened: bool = False) -> list[str]:
    """Names of the arrays that `blocks_kernel` takes; with ragged lengths it takes `table` after them.

    `opened`: the kernel takes any sizes, and so also the table of pages.
    """
    lengths = [name for name in ("q_seqlens", "kv_seqlens") if name in p.extras]
    return p.score.captured + lengths + ["page_table"] * (opened and bool(p.page))


def lists_by(p: ScoredProblem, depends: tuple[bool, bool]) -> tuple[bool, bool]:
    """(whether lists differ from sequence to sequence, whether from head to head). `depends`: whether the mask reads
    its batch, its head.
    """
    return (depends[0] or bool(p.cache)) and not p.ragged, depends[1]


@cache
def blocks_kernel(
    problem: ScoredProblem, tile: int, other: int, depends: tuple[bool, bool], by_key: bool = False
) -> Any:
    """The kernel `(any array, *block_arrays) -> kept`, int32 (batch, heads, tiles, blocks): which blocks a tile needs.

    For a problem of any sizes it is `(q, k, *block_arrays) -> kept`.

    A tile has `tile` queries, a block `other` keys, or the other way round `by_key`. 0: no query sees a key, 2: some
    see some, 3: all see all. The batch, or the head, is one if nothing `depends` on it. With ragged lengths there is
    one batch, and its tiles are the lines of the table.
    """
    p = problem
    heads = p.heads if depends[1] else 1
    names = block_arrays(p, p.opened) + ["table"] * p.ragged
    first = 2 if p.opened else 1  # the number of arrays before `block_arrays`

    def launched(given: Sequence[Any]) -> ScoredProblem:
        return at_launch(p, given[0], given[1], given[first + names.index("page_table")] if p.page else None)

    def sizes(*structs: Any) -> tuple[Any, Any, Any]:
        """Batches, tiles and blocks of a call."""
        here = launched(structs) if p.opened else p
        own, others = (here.keys, here.queries) if by_key else (here.queries, here.keys)
        lines = structs[first + names.index("table")].shape[0] if p.ragged else kd.cdiv(own, tile)
        return here.batch if lists_by(p, depends)[0] else 1, lines, max(kd.cdiv(others, other), 1)

    rows = next(n for n in range(tile, 0, -1) if tile % n == 0 and n * other <= ELEMENTS)

    def body(*refs: Any) -> None:
        s = dict(zip(names, refs[first:], strict=False))
        with reading(s):
            find(launched(refs) if p.opened else p, refs[-1], s)

    def find(p: ScoredProblem, kept: Any, s: dict[str, Any]) -> None:
        head, number, index = (kd.program_id(axis) for axis in range(3))
        place, line = (kd.div(head, heads), kd.rem(head, heads)), number
        if p.ragged:
            whole = ScorePlace.of(p, head, number, s, by_key=by_key)
            batch, number = whole.batch, whole.number
        else:
            batch, keys = place[0], p.keys_of(s, place[0]) if p.cache else p.keys
            whole = ScorePlace(place[0], place[1], number, 0, 0, p.queries, keys, number)
        first = number * tile
        begin, end = (whole.query_blocks if by_key else whole.blocks)(p, first, tile, other)

        def numbers(start: Any, count: int, axis: int) -> Any:  # of queries or keys, which the function may broadcast
            return start + kd.broadcasted_iota(kd.int32, (1, count) if axis else (count, 1), axis)

        theirs = partial(numbers, index * other, other, int(not by_key))

        def part(number: Any, carry: Any) -> Any:
            mine, others = numbers(first + number * rows, rows, int(by_key)), theirs()
            query, key = (others, mine) if by_key else (mine, others)
            seen = p.score.seen((batch, place[1], query, key), whole.queries, whole.keys)
            there = query < whole.queries
            some, every = kd.max((seen & there).astype(kd.int32)), kd.min((seen | ~there).astype(kd.int32))
            return kd.maximum(carry[0], some), kd.minimum(carry[1], every)

        def looked() -> Any:
            some, every = kd.fori_loop(0, tile // rows, part, (kd.int32(0), kd.int32(1)))
            return some * (2 + every)

        def found() -> Any:
            from .intervals import decided  # operations, imported for the first trace

            mine, others, start = numbers(first, tile, int(by_key)), theirs(), index * other
            lines = {mine: (first, first + (tile - 1)), others: (start, start + (other - 1))}
            pairs = (others, mine) if by_key else (mine, others)
            both = decided(
                lambda: p.score.seen((batch, place[1], *pairs), whole.queries, whole.keys), lines, tile * other
            )
            if both is None:
                return looked()
            some, every = both
            return kd.cond(some & ~every, looked, lambda: kd.where(every, kd.int32(3), kd.int32(0)))

        kept[(*place, line, index)] = kd.cond((index >= begin) & (index < end), found, lambda: kd.int32(0))

    def out_type(*structs: Any) -> Any:
        batch, tiles, blocks = sizes(*structs)
        return kd.ShapeDtypeStruct((batch, heads, tiles, blocks), kd.int32)

    def grid(*structs: Any) -> tuple[Any, Any, Any]:
        batch, tiles, blocks = sizes(*structs)
        return batch * heads, tiles, blocks

    shapes = list_shapes(p, names, lists_by(p, depends)) if p.opened else None
    return kd.kernel(body, out_type=out_type, grid=grid, shapes=shapes, name="attention_blocks")


@cache
def lists_kernel() -> Any:
    """The kernel `(kept,) -> (blocks, counts)` of any sizes: int32 (batch, heads, tiles, blocks), (batch, heads,
    tiles).

    `kept` is the result of `blocks_kernel`. A tile's first `count` entries are 2 * the number of a block that it needs,
    + 1 if all queries see all keys of this block; they rise.
    """
    shape = tuple(kd.Dim(name, max=2**31 - 1) for name in ("batch", "heads", "tiles", "blocks"))

    def body(kept: Any, lists: Any, counts: Any) -> None:
        kd.griddepcontrol_wait()  # it starts while the kernel before it ends
        head, tile = kd.program_id(0), kd.program_id(1)
        heads, blocks = kept.shape[1], kept.shape[3]
        place = kd.div(head, heads), kd.rem(head, heads), tile

        @kd.loop(0, kd.cdiv(blocks, LIST_LANES), init_carry=0)
        def end(turn: Any, count: Any) -> Any:
            flags = kept[(*place, kd.ds(turn * LIST_LANES, LIST_LANES))]
            some = (flags > 0).astype(kd.int32)
            entry = ((turn * LIST_LANES + kd.arange(LIST_LANES)) * 2 + kd.rem(flags, 2)).astype(kd.int32)
            kd.store(lists.at[place], (count + kd.cumsum(some, exclusive=True),), entry, mask=flags > 0)
            return count + kd.sum(some)

        counts[place] = end

        @kd.when(end == 0)  # the first entry is read of each tile
        def _() -> None:
            lists[(*place, 0)] = 0

    return kd.kernel(
        body,
        out_type=(kd.ShapeDtypeStruct(shape, kd.int32), kd.ShapeDtypeStruct(shape[:3], kd.int32)),
        grid=(shape[0] * shape[1], shape[2]),
        shapes={0: shape, 1: shape, 2: shape[:3]},
        name="attention_lists",
    )


@cache
def order_kernel() -> Any:
    """The kernel `(counts,) -> order` of any sizes: int32 (batch, heads, tiles), the tiles in an order.

    Of each `LIST_LANES` neighbours those with the longest lists come first, so that blocks that take tiles in this order
    end together. Neighbours stay together, because their lists name the same blocks.
    """
    shape = tuple(kd.Dim(name, max=2**31 - 1) for name in ("batch", "heads", "tiles"))

    def body(counts: Any, order: Any) -> None:
        kd.griddepcontrol_wait()  # it starts while the kernel before it ends
        head, first = kd.program_id(0), kd.program_id(1) * LIST_LANES
        heads, tiles = counts.shape[1:]
        place, numbers = (kd.div(head, heads), kd.rem(head, heads)), first + kd.arange(LIST_LANES)
        count = kd.load(counts, (*place, numbers), mask=numbers < tiles, fill=-1)
        mine, others = count[:, None], count[None]
        before = (others > mine) | ((others == mine) & (numbers[None] < numbers[:, None]))
        rank = first + kd.sum(before.astype(kd.int32), axis=1)
        kd.store(order, (*place, rank), numbers.astype(kd.int32), mask=numbers < tiles)

    return kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(shape, kd.int32),
        grid=(shape[0] * shape[1], kd.cdiv(shape[2], LIST_LANES)),
        shapes={0: shape, 1: shape},
        name="attention_order",
    )


@dataclass(frozen=True)
class BlockLists:
    """The lists of a kernel.

    The first call on a device and stream makes lists that depend on the mask alone, and they are kept. Each call makes
    lists that depend on arrays (closed over, or lengths), because arrays may change.
    """

    kernel: Any  # finds the blocks that tiles need
    ordered: bool = False  # whether the kernel also takes the tiles in the order of `order_kernel`
    opened: bool = False  # whether the kernel takes any sizes, which q and k show
    kept: dict[Any, Any] = field(default_factory=lambda: cast("dict[Any, Any]", {}), compare=False)

    def of(self, like: Any, k: Any, arrays: Sequence[Any], how: dict[str, Any], launch: Launch) -> Any:
        """(blocks, counts), and the order where there is one, where the array `like`, which is q, is, of the kernel's other
        arrays.
        """
        sizes = (like, k) if self.opened else (like,)
        if arrays:
            return self._made((*sizes, *arrays), launch)
        place = type(like), str(getattr(like, "device", "")), how["stream"], bool(how["interpret"])
        if place not in self.kept:
            if len(self.kept) >= KEPT:
                self.kept.clear()
            self.kept[place] = self._made(sizes, launch)
        return self.kept[place]

    def _made(self, given: Sequence[Any], launch: Launch) -> Any:
        blocks, counts = launch(lists_kernel(), (launch(self.kernel, given),), partial=True)
        return (blocks, counts, launch(order_kernel(), (counts,))) if self.ordered else (blocks, counts)

    def structs(self, like: Any, k: Any, arrays: Sequence[Any]) -> list[Any]:
        """Descriptions of the results of `of`."""
        sizes = (like, k) if self.opened else (like,)
        (blocks,) = results_of(self.kernel, *sizes, *arrays)
        shapes = [blocks.shape, *[blocks.shape[:-1]] * (1 + self.ordered)]
        return [kd.ShapeDtypeStruct(each, blocks.dtype) for each in shapes]


@cache
def table_kernel(batch: Any, total: Any, tile: int, rising: bool = False) -> Any:
    """The kernel `(lengths,) -> table`: int32 (tiles, 2), a line for each tile of `tile` rows of ragged sequences.

    A line has the number of the sequence plus 1, and the number of the tile in it; extra lines are 0. Long sequences
    come first, and in each the last tile first, or with `rising` the first one. The rows after the last sequence, up to
    `total`, come last, as a sequence with the number `batch`. `lengths`: int32 (batch + 1), cumulative.

    `total` None: the kernel `(lengths, like) -> table` for any batch up to `batch`; `like` is the array of all sequences.
    """
    lanes = max(kd.cdiv(batch, TABLE_LANES) * TABLE_LANES, TABLE_LANES)
    most, opened = batch, total is None

    def any_batch(lengths: Any, like: Any, table: Any) -> None:
        fill(lengths, table, lengths.shape[0] - 1, like.shape[0])

    def body(lengths: Any, table: Any) -> None:
        fill(lengths, table, batch, total)

    def fill(lengths: Any, table: Any, batch: Any, total: Any) -> None:
        me = kd.program_id(0)
        number = kd.arange(lanes)
        begins = kd.load(lengths, kd.ds(0, lanes), mask=number < batch)
        ends = kd.load(lengths, kd.ds(1, lanes), mask=number < batch)
        each = ends - begins
        own = kd.where(me < batch, lengths[kd.minimum(me + 1, batch)], total) - lengths[me]
        before = (me == batch) | (each > own) | ((each == own) & (number < me))
        count = kd.div(each + (tile - 1), tile)
        start = kd.sum(kd.where(before, count, 0))
        mine = kd.div(kd.maximum(own, 0) + (tile - 1), tile)

        @kd.loop(0, kd.cdiv(mine, TABLE_LANES))
        def _(round_: Any) -> None:
            line = round_ * TABLE_LANES + kd.arange(TABLE_LANES)
            here = (kd.ds(start + round_ * TABLE_LANES, TABLE_LANES),)
            kd.store(table, (*here, 0), kd.full((TABLE_LANES,), 1, kd.int32) * (me + 1), mask=line < mine)
            kd.store(table, (*here, 1), line if rising else mine - 1 - line, mask=line < mine)

    bounds: Any = kd.Dim("bounds", min=2, max=most + 1) if opened else None

    length: Any = kd.Dim("total", max=2**31 - 1) if opened else total
    lines: Any = most_lines(length, tile, bounds if opened else batch + 1)
    made = kd.kernel(
        any_batch if opened else body,
        out_type=kd.ShapeDtypeStruct((lines, 2), kd.int32, init=0),
        shapes={0: (bounds,), 1: (length, None, None), 2: (kd.Dim("tiles"), 2)} if opened else None,
        grid=(bounds,) if opened else (batch + 1,),
        name="attention_table",
    )
    return identified(made, batch, total, tile, rising)


def table_of(
    lengths: Any, batch: int, total: int, tile: int, launch: Launch, rising: bool = False, like: Any = None
) -> Any:
    """The table of ragged lengths in arrays of `total` rows; with `like`, the array of all sequences, by a kernel for
    any batch and lengths.
    """
    if like is None:
        return launch(table_kernel(batch, total, tile, rising), (lengths,))
    most = 1 << max(batch - 1, TABLE_LANES - 1).bit_length()
    return launch(table_kernel(most, None, tile, rising), (lengths, like))
