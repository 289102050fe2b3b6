"""The problem of `kd.library.decode_attention`, and how kernels find keys, rows and masks in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import kernel_dsl as kd

from ..attention_forward.sizes import LOG2E

DIM, V_DIM = 576, 512  # dimensions of latent keys, and of the values in them


SUMS = 4  # extra elements of a row: the first is the base-2 logarithm of its sum; 4 keep rows at multiples of 16 bytes


def parts_type(units: int, splits: int, rows: int, columns: int) -> Any:
    """The results of several splits, with the logarithms of their sums: one array, because each allocation takes time."""
    return kd.ShapeDtypeStruct((units, splits, rows, columns + SUMS), kd.float32)


@dataclass(frozen=True)
class DecodeProblem:
    """q is (batch, heads, queries, dim); k and v are (batch, kv_heads, keys, dim), or in pages (`pages`, kv_heads,
    `page`, dim).

    With pages, a table (batch, `table`) has the page numbers of each sequence, and `keys` is the most that its pages
    hold. `scales`: the names among k and v with scales; `by_head`: those of them whose scales are arrays (batch,
    kv_heads). `heads_last`: kernels take k and v as (batch, keys, kv_heads, dim), or (pages, page, kv_heads, dim).
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    dtype: Any
    cache_dtype: Any
    causal: bool = True
    window: int | None = None
    softcap: float | None = None
    scales: str = ""
    lse: bool = False
    page: int = 0
    pages: int = 0
    table: int = 0
    by_head: str = ""
    heads_last: bool = False

    @property
    def length_axis(self) -> int:
        """The axis of keys in k and v, as kernels take them."""
        return 1 if self.heads_last else 2

    @property
    def group(self) -> int:
        """The number of query heads of a key head."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> int:
        """The number of rows that share keys: all queries of all heads of a group.

        Row r is query r % queries of head r // queries.
        """
        return self.group * self.queries

    @property
    def units(self) -> int:
        """The number of key heads of all sequences."""
        return self.batch * self.kv_heads

    @property
    def extras(self) -> list[str]:
        """Names of the arrays after q, k, v and lengths that kernels take."""
        return ["page_table"] * bool(self.page) + [f"{name}_scale" for name in self.scales]

    @property
    def out_type(self) -> Any:
        """The results: the output, and the logarithms of the sums."""
        out = kd.ShapeDtypeStruct((self.batch, self.heads, self.queries, self.dim), self.dtype)
        return (out, kd.ShapeDtypeStruct(out.shape[:3], kd.float32)) if self.lse else out

    # --- in a kernel ------------------------------------------------------------------------------

    def head_of(self, source: Any, place: Any, kv_head: Any) -> Any:
        """The keys or values of a head at a `place` of the first axis."""
        return source.at[place, :, kv_head] if self.heads_last else source.at[place, kv_head]

    def length(self, lengths: Any, batch: Any, promise: bool) -> Any:
        """The number of keys of a sequence, clamped to what the cache can hold. `promise`: see `clamped`."""
        return clamped(lengths[batch], self.keys, promise)

    def first_key(self, length: Any) -> Any:
        """The first key that some query sees."""
        if self.window is None:
            return 0
        return kd.maximum(length - (self.queries - 1 + self.window), 0)

    def seen(self, query: Any, key: Any, length: Any) -> Any:
        """Whether queries see keys; the last query is at the position of the last key."""
        at = length - self.queries + query
        found = key < length
        if self.causal:
            found = found & (key <= at)
        if self.window is not None:
            found = found & (at - key < self.window)
            if not self.causal:
                found = found & (key - at < self.window)
        return found

    def scale(self, scales: dict[str, Any], name: str, batch: Any, kv_head: Any) -> Any:
        """The scale of k or v; 1 if it has none."""
        if name not in self.scales:
            return 1.0
        x = scales[f"{name}_scale"]
        return x[batch, kv_head] if x.shape else x[...]

    def scored(self, x: Any, k_scale: Any) -> tuple[Any, Any]:
        """From products q.k: (the scores to mask, their factor to base-2 logarithms of weights)."""
        scale = k_scale * self.dim**-0.5
        if self.softcap is None and "k" in self.scales:  # it may be 0 or below, and a mask comes next
            return x * (scale * LOG2E), 1.0
        if self.softcap is None:
            return x, scale * LOG2E
        return kd.tanh(x * (scale * (1.0 / self.softcap))), self.softcap * LOG2E

    def taken(self, x: Any, batch: Any, kv_head: Any, first: Any, count: int, width: int) -> Any:
        """`count` rows from `first` on of q, the first `width` of their elements; zeros beyond the last row."""
        if self.queries == 1:
            return x.at[batch, kd.ds(kv_head * self.group, self.group), 0].at[kd.ds(first, count), kd.ds(0, width)][...]
        row = first + kd.arange(count)
        head, query = kv_head * self.group + kd.div(row, self.queries), kd.rem(row, self.queries)
        mask = (row < self.rows)[:, None] if self.rows % count else None
        return kd.load(x.at[batch], (head, query, kd.ds(0, width)), mask=mask)

    def places(self, unit: Any, row: Any) -> tuple[Any, Any]:
        """The place of a row: (in the output, in the logarithms)."""
        batch, kv_head = kd.div(unit, self.kv_heads), kd.rem(unit, self.kv_heads)
        place = batch, kv_head * self.group + kd.div(row, self.queries), kd.rem(row, self.queries)
        return place, place

    def put(self, x: Any, batch: Any, kv_head: Any, first: Any, value: Any) -> None:
        """Store rows from `first` on, (rows, width) or (rows,); rows beyond the last are dropped."""
        count = value.shape[0]
        columns = () if value.ndim == 1 else (kd.ds(0, value.shape[1]),)
        if self.queries == 1:
            view = x.at[batch, kd.ds(kv_head * self.group, self.group), 0]
            kd.store(view, (kd.ds(first, count), *columns), value)
            return
        row = first + kd.arange(count)
        head, query = kv_head * self.group + kd.div(row, self.queries), kd.rem(row, self.queries)
        mask = row < self.rows if self.rows % count else None
        kd.store(
            x.at[batch], (head, query, *columns), value, mask=mask if value.ndim == 1 or mask is None else mask[:, None]
        )


@dataclass(frozen=True)
class MlaProblem:
    """q is (batch, queries, heads, DIM), a cache of pages (`pages`, `page`, DIM), a table (batch, `table`).

    Values are the first V_DIM elements of keys.
    """

    batch: int
    queries: int
    heads: int
    page: int
    pages: int
    table: int
    scale: float
    lse: bool = False
    dtype: Any = kd.bfloat16

    @property
    def units(self) -> int:
        """The number of queries of all sequences."""
        return self.batch * self.queries

    @property
    def rows(self) -> int:
        """The number of rows that share keys."""
        return self.heads

    @property
    def out_type(self) -> Any:
        """The results, (batch, queries, heads, V_DIM), and the logarithms of their sums, (batch, heads, queries)."""
        out = kd.ShapeDtypeStruct((self.batch, self.queries, self.heads, V_DIM), self.dtype)
        return (out, kd.ShapeDtypeStruct((self.batch, self.heads, self.queries), kd.float32)) if self.lse else out

    def places(self, unit: Any, row: Any) -> tuple[Any, Any]:
        """The place of a row: (in the output, in the logarithms)."""
        batch, query = kd.div(unit, self.queries), kd.rem(unit, self.queries)
        return (batch, query, row), (batch, row, query)

    def keys(self, lengths: Any, unit: Any, promise: bool) -> Any:
        """The number of keys that a query sees; the last query is at the position of the last key. `promise`: see
        `clamped`.
        """
        batch, query = kd.div(unit, self.queries), kd.rem(unit, self.queries)
        return kd.maximum(clamped(lengths[batch], self.table * self.page, promise) - (self.queries - 1 - query), 0)


def clamped(length: Any, most: Any, promise: bool) -> Any:
    """A sequence's length, from 0 to the `most` keys that its cache holds. `promise`: it is within, which the interpreter
    checks; a GPU takes the nearest length that is.
    """
    if promise:
        kd.debug_check((length >= 0) & (length <= most), "lengths of sequences are from 0 to the keys of their cache")
    return kd.minimum(kd.maximum(length, 0), most)


def chunks(page: int, most: int, unit: int = 1) -> tuple[int, int] | None:
    """(contiguous keys, keys of a step): the largest divisor of a page that is a multiple of `unit`, and steps of up to `most`.

    None if pages are too small.
    """
    if not page:
        return most, most
    found: list[tuple[bool, int, int]] = []
    for chunk in range(8, page + 1):
        together = math.lcm(chunk, 16)
        if page % chunk == 0 and chunk % unit == 0 and together <= most:
            block = most // together * together
            found.append((2 * block > most, chunk, block))
    return max(found)[1:] if found else None
