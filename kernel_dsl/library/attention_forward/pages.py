"""Keys and values in pages, for attention of many queries: loads by page, and copies of caches with small pages."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.dtypes import FP8
from kernel_dsl.kernel import identified

from ..decoding.problem import chunks
from ..first_sizes import declared_outputs, dim_of
from .problem import ScoredProblem

ELEMENTS = 4096  # elements of a block that copies keys
COPIED = 16  # TMA loads keys from their pages if a load has more keys than this
QUERIES = 2048  # a copy pays from this number of queries of a key head on
BYTES = 2**30  # the most bytes of a copy
BATCH, PAGES = 2**24, 2**30  # the most sequences, the most pages of a sequence or of a cache
READ_BEYOND = 256  # rows after a sequence's last that attention may load, so they must exist


def loaded_together(p: ScoredProblem, block: int) -> tuple[int, int] | None:
    """(keys that TMA loads at once, keys of a step) for steps of at most `block`; None if pages are too small."""
    return chunks(p.page, block, 8)


def copied_first(p: ScoredProblem, chunk: int) -> bool:
    """Whether to copy keys out of their pages first, although TMA could load them `chunk` at a time.

    With many small loads the producer is slower than the consumers. A copy takes the time of some hundred queries of a
    key head, and memory.
    """
    queries = p.queries // p.batch if p.ragged else p.queries
    copies = p.batch * p.kv_heads * p.keys * (p.dim + p.v_dim) * p.dtype.itemsize
    return chunk <= COPIED and queries * (p.heads // p.kv_heads) >= QUERIES and copies <= BYTES


def gathered(
    p: ScoredProblem, s: dict[str, Any], x: Any, place: tuple[Any, Any], keys: Any, end: Any, promise: bool
) -> Any:
    """Rows `keys` of a cache at `place`, (batch, key head), zeros from `end` on. `promise`: its pages exist."""
    (batch, head), there = place, keys < end
    if not p.page:
        return kd.load(x, p.key_rows(batch, head, keys), mask=there[:, None])
    pages = kd.load(s["page_table"].at[batch], (kd.div(keys, p.page),), mask=there)
    heads = x.at[:, :, head] if p.layout == "bshd" else x.at[:, head]
    # a missing page is zeros on a GPU; in the interpreter the promise makes it a hazard
    return kd.load(heads, (pages, kd.rem(keys, p.page)), mask=there[:, None], bounds="promise" if promise else None)


def without_pages(p: ScoredProblem) -> ScoredProblem:
    """The problem after `pages_kernel`, without pages."""
    return replace(p, page=0, pages=0, table=0, dtype=kd.bfloat16 if p.dtype in FP8 else p.dtype)


def page_arrays(p: ScoredProblem) -> list[str]:
    """Names of the arrays that `pages_kernel` takes after k and v."""
    return ["page_table"] + [n for n in ("q_seqlens", "kv_seqlens") if n in p.extras]


def pages_opened(p: ScoredProblem) -> ScoredProblem:
    """The problem of `pages_kernel` for any batch, cache and lengths."""
    batch, table = dim_of("batch", BATCH), dim_of("table", PAGES)
    return replace(p, batch=batch, queries=1, pages=dim_of("pages", PAGES), table=table, keys=1)


def _shapes(p: ScoredProblem, names: list[str]) -> dict[int, tuple[Any, ...]]:
    """`shapes=` of the kernel that copies pages."""
    found: dict[int, tuple[Any, ...]] = {n: p.key_shape(dim) for n, dim in enumerate((p.dim, p.v_dim))}
    found |= {2 + n: (dim_of(f"{name}_bounds", PAGES),) for n, name in enumerate(names)}
    return found | {2: (p.batch, p.table)}


@cache
def pages_kernel(problem: ScoredProblem, promise: bool) -> Any:
    """The kernel `(k, v, *page_arrays) -> (k, v)`, (batch, kv_heads, keys, dim) by `layout`; float8 becomes bfloat16.

    Blocks of keys that begin `READ_BEYOND` or more after a sequence's last key are not written.
    """
    names, inner = page_arrays(problem), without_pages(problem)
    rows = max(ELEMENTS // max(problem.dim, problem.v_dim), 1)

    def body(*arrays: Any) -> None:
        p = problem
        if p.opened:
            p = replace(p, keys=arrays[2].shape[1] * p.page)
        sources, s, targets = arrays[:2], dict(zip(names, arrays[2:], strict=False)), arrays[-2:]
        head, first = kd.program_id(0), kd.program_id(1) * rows
        place = kd.div(head, p.kv_heads), kd.rem(head, p.kv_heads)
        end = p.keys_of(s, place[0])
        keys = first + kd.arange(rows)

        @kd.when((end > 0) & (first < end + READ_BEYOND))
        def _() -> None:
            for x, out in zip(sources, targets, strict=True):
                made = gathered(p, s, x, place, keys, end, promise).astype(inner.dtype)
                out[inner.key_rows(*place, kd.ds(first, rows))] = made

    p = problem
    length: Any = p.table * p.page if p.opened else p.keys

    def shape(dim: int) -> tuple[Any, ...]:
        one = (length, p.kv_heads) if p.layout == "bshd" else (p.kv_heads, length)
        return p.batch, *one, dim

    outs = tuple(kd.ShapeDtypeStruct(shape(d), inner.dtype) for d in (p.dim, p.v_dim))
    made = kd.kernel(
        body,
        out_type=outs,
        grid=(p.batch * p.kv_heads, kd.cdiv(length, rows)),
        shapes=_shapes(p, names) | declared_outputs(outs, 2 + len(names)) if p.opened else None,
        name="attention_pages",
    )
    return made if p.score.has_functions else identified(made, problem, promise)
