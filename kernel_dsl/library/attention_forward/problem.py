"""The problem of attention with options: sizes and layouts of its arrays, and the place of a tile in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import kernel_dsl as kd

from ..first_sizes import is_open
from .score import Score
from .sizes import AttentionProblem


@dataclass(frozen=True)
class ScoredProblem:
    """q is (batch, heads, queries, dim), k (batch, kv_heads, keys, dim) and v (batch, kv_heads, keys, v_dim) by
    `layout` "bhsd"; (batch, queries, heads, dim) and so on by "bshd".

    Where lengths are `ragged` there is no axis of the batch: q is (queries, heads, dim), k and v likewise, and `batch`
    is the number of sequences. `scales`: which of q, k and v have scales, `by_batch`: which of these have a row for
    each sequence. `mask_by`: of a problem for any sizes, whether lists of blocks differ from sequence to sequence, and
    from head to head.

    With a `cache` each sequence has up to `keys` keys of its own, and uses the first of them, by lengths: "plain" ones,
    "cumulative" ones, or "whole" where all are used. k and v are then (batch, kv_heads, keys, dim), or in pages
    (`pages`, kv_heads, `page`, dim), and a table (batch, `table`) has the page numbers of each sequence; in "bshd"
    heads follow keys.

    `narrow`: scores are computed from q and k in float8; `dtype` is then the dtype of values and weights. `guarded`: an
    array has the largest norms of queries and keys (`attention_norms`), which show whether weights need a maximum.
    `alone`: of a problem for any sizes, whether each call has as many blocks as tiles. With `splits`, two or more, that
    many tiles share each head's keys, and results are those of parts, (batch, heads * splits, queries, v_dim) in both
    layouts, and their `lse`. Each tile then has its own block.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    v_dim: int
    dtype: Any
    out_dtype: Any
    scale: float
    score: Score
    layout: str = "bhsd"
    ragged: bool = False
    lse: bool = False
    scales: str = ""
    cache: str = ""
    page: int = 0
    pages: int = 0
    table: int = 0
    by_batch: str = ""
    mask_by: tuple[bool, bool] = (False, False)
    narrow: Any = None
    guarded: bool = False
    alone: bool = False
    splits: Any = 1

    @property
    def scored_dtype(self) -> Any:
        """The dtype of q and k."""
        return self.narrow or self.dtype

    def shape(self, heads: int, length: int, dim: int) -> tuple[int, ...]:
        """The shape of an array."""
        if self.ragged:
            return length, heads, dim
        return (self.batch, length, heads, dim) if self.layout == "bshd" else (self.batch, heads, length, dim)

    @property
    def shared(self) -> bool:
        """Whether several tiles share the keys of a head."""
        return is_open(self.splits) or self.splits > 1

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.shape(self.heads, self.queries, self.v_dim)

    @property
    def lse_shape(self) -> tuple[int, ...]:
        return (self.heads, self.queries) if self.ragged else (self.batch, self.heads, self.queries)

    def rows(self, batch: Any, head: Any, rows: Any, columns: Any = slice(None)) -> tuple[Any, ...]:
        """The index of some rows of a head; in ragged arrays `rows` count from the array's start."""
        if self.ragged:
            return rows, head, columns
        return (batch, rows, head, columns) if self.layout == "bshd" else (batch, head, rows, columns)

    def key_rows(self, batch: Any, head: Any, rows: Any, columns: Any = slice(None)) -> tuple[Any, ...]:
        """The index of some keys of a head. In a cache of pages, `batch` is the number of a page, and `rows` count in
        this page.
        """
        if self.ragged and not self.cache:
            return rows, head, columns
        return (batch, rows, head, columns) if self.layout == "bshd" else (batch, head, rows, columns)

    def keys_of(self, s: dict[str, Any], batch: Any) -> Any:
        """The number of keys of a cache that a sequence uses."""
        if self.cache == "whole":
            return self.keys
        # a tile on the grid's axes is one of a sequence, which the numbers of a launch do not show
        bounds = "promise" if (self.alone or self.shared) and not self.ragged else None

        def at(sequence: Any) -> Any:
            return kd.load(s["kv_seqlens"], (sequence,), bounds=bounds)

        count = at(batch) if self.cache == "plain" else at(batch + 1) - at(batch)
        return kd.minimum(kd.maximum(count, 0), self.keys)

    def lse_rows(self, batch: Any, head: Any, rows: Any) -> tuple[Any, ...]:
        return (head, rows) if self.ragged else (batch, head, rows)

    @property
    def opened(self) -> bool:
        """Whether sizes are Dims, whose values each call gives."""
        sizes: tuple[Any, ...] = (self.batch, self.queries, self.keys)
        return not all(isinstance(n, int) for n in sizes)

    @property
    def plain(self) -> AttentionProblem | None:
        """The problem without options; None if it has options."""
        p = self
        if not p.score.plain or p.ragged or p.cache or p.scales or p.dim != p.v_dim or p.dtype != p.out_dtype:
            return None
        return AttentionProblem(
            p.batch, p.heads, p.kv_heads, p.queries, p.keys, p.dim, p.dtype, bool(p.score.causal), p.scale, p.lse,
            layout=p.layout,
        )  # fmt: skip

    @property
    def extras(self) -> list[str]:
        """Names of the arrays after q, k and v."""
        names = [f"{x}_scale" for x in self.scales] + ["sinks"] * self.score.sinks
        names += ["bias"] * (self.score.bias is not None) + ["page_table"] * bool(self.page)
        if self.cache in ("plain", "cumulative") and not self.ragged:
            names.append("kv_seqlens")
        names += self.score.captured
        return names + ["q_seqlens", "kv_seqlens"] * self.ragged + ["norms"] * self.guarded

    def key_shape(self, dim: int) -> tuple[Any, ...]:
        """The shape of keys or values; in pages it is (pages, kv_heads, page, dim) by "bhsd"."""
        if not self.cache:
            return self.shape(self.kv_heads, self.keys, dim)
        first, length = (self.pages, self.page) if self.page else (self.batch, self.keys)
        return (first, length, self.kv_heads, dim) if self.layout == "bshd" else (first, self.kv_heads, length, dim)

    def scale_of(self, array: Any, name: str, batch: Any, kv_head: Any) -> Any:
        """The scale of "q", "k" or "v" of a head, from an array of rank 0, or of shape (batch or 1, kv_heads or 1)."""
        if not hasattr(array, "at"):
            return array
        if not array.shape:
            return array[...]
        if name not in self.by_batch:
            batch = 0
        elif self.ragged:
            batch = kd.minimum(batch, array.shape[0] - 1)  # rows after the last sequence have no scale
        return array[batch, 0 if array.shape[1] == 1 else kv_head]

    def bias_tile(self, bias: Any, place: tuple[Any, Any], rows: Any, columns: Any, transposed: bool = False) -> Any:
        """The bias of some queries and keys of a head, (rows, columns) or `transposed`, or with extents of 1; of rank 0 if
        the bias is.
        """
        view = bias.at[self.bias_index(place, rows, columns)]
        if len(self.score.bias or ()) == 1:
            return view[...][:, None] if transposed else view[...][None]
        return (view.T if transposed else view)[...]

    def bias_index(self, place: tuple[Any, Any], rows: Any, columns: Any) -> tuple[Any, ...]:
        """The index of a tile of the bias."""
        shape = self.score.bias or ()
        wanted = (*place, rows, columns)[4 - len(shape) :]
        one = [isinstance(n, int) and n == 1 for n in cast("tuple[Any, ...]", shape)]
        index = [0 if n and i < len(shape) - 2 else x for i, (n, x) in enumerate(zip(one, wanted, strict=True))]
        for axis in range(1, min(2, len(shape)) + 1):
            if one[-axis]:
                index[-axis] = slice(None)
        return tuple(index)


def clear_rows(tile: Any, first: Any) -> None:
    """Set rows of SMEM from `first` on to zero, for asynchronous readers. It takes one row at a time, because a
    producer has few registers.
    """

    @kd.loop(kd.maximum(first, 0), tile.shape[0])
    def _(row: Any) -> None:
        tile[row] = kd.zeros(tile.shape[1:], tile.dtype)

    kd.commit_smem()


def ragged_tiles(p: ScoredProblem, rows: int, length: int | None = None) -> int:
    """The most tiles of `rows` rows that sequences of these total lengths, and the rows after the last, can have."""
    return most_lines(p.queries if length is None else length, rows, p.batch + 1)


def most_lines(total: Any, rows: int, lengths: Any) -> Any:
    """The most tiles of `rows` rows in arrays of `total` rows with so many cumulative `lengths`: each length but the first
    ends a sequence, and other rows follow the last.
    """
    return total // rows + lengths


@dataclass(frozen=True)
class ScorePlace:
    """A tile of a head: its number; with ragged lengths also its sequence's start in the arrays, and length.

    With ragged lengths, rows after the last sequence are one more sequence, which has nothing on the other side: `batch`
    is then the number of sequences. `line`: the line of its list of blocks; with ragged lengths also the line of the table.
    """

    batch: Any
    head: Any
    number: Any
    q_row: Any
    k_row: Any
    queries: Any
    keys: Any
    line: Any

    @staticmethod
    def of(
        p: ScoredProblem, head: Any, number: Any, s: dict[str, Any], heads: int | None = None, by_key: bool = False
    ) -> ScorePlace:
        """The tile with a number in a head, or with ragged lengths the tile of a line of the table; missing tiles are
        empty. `by_key`: tiles are of keys.
        """
        heads = heads or p.heads
        if not p.ragged:
            batch = kd.div(head, heads)
            keys = p.keys_of(s, batch) if p.cache else p.keys
            return ScorePlace(batch, kd.rem(head, heads), number, 0, 0, p.queries, keys, number)
        where = number
        line, number = s["table"][where, 0], s["table"][where, 1]
        batch, count = kd.maximum(line - 1, 0), s["q_seqlens"].shape[0] - 1
        last = kd.minimum(batch + 1, count)  # rows after the last sequence end where the array does
        names = ("q_seqlens",) if p.cache else ("q_seqlens", "kv_seqlens")
        begins, ends = ([s[name][at] for name in names] for at in (batch, last))
        ends[by_key] = kd.where(batch < count, ends[by_key], p.keys if by_key else p.queries)
        lengths = [end - begin for begin, end in zip(begins, ends, strict=True)]
        if p.cache:
            begins.append(0)
            lengths.append(kd.where(batch < count, p.keys_of(s, kd.minimum(batch, count - 1)), 0))
        return ScorePlace(batch, head, number, *begins, *(kd.where(line > 0, n, 0) for n in lengths), line=where)

    def blocks(self, p: ScoredProblem, first: Any, rows: int, block_kv: int) -> tuple[Any, Any]:
        """The first block of keys that `rows` queries from `first` on see, ignoring `mask_mod`, and the one after the last."""
        last = kd.minimum(first + rows, self.queries) - 1
        begin = kd.div(kd.minimum(p.score.first_key(first, self.queries, self.keys), self.keys), block_kv)
        end = kd.div(kd.maximum(p.score.end_key(last, self.queries, self.keys), 0) + (block_kv - 1), block_kv)
        return begin, kd.maximum(begin, end)

    def query_blocks(self, p: ScoredProblem, first: Any, rows: int, block_q: int) -> tuple[Any, Any]:
        """The first block of queries that see one of `rows` keys from `first` on, and the one after the last."""
        last = kd.minimum(first + rows, self.keys) - 1
        begin = kd.div(kd.minimum(p.score.first_query(first, self.queries, self.keys), self.queries), block_q)
        end = kd.div(p.score.end_query(last, self.queries, self.keys) + (block_q - 1), block_q)
        return begin, kd.maximum(begin, end)
