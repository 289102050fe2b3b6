"""Decoding for changing batches and lengths: a kernel for the first sizes, then one kernel for all sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from ..first_sizes import FirstSizes, dim_of, is_open
from .problem import DecodeProblem, MlaProblem

P = TypeVar("P", DecodeProblem, MlaProblem)
BATCH, TABLE, PAGES = 2**20, 2**20, 2**30  # the most sequences, pages of a sequence, pages of a cache
KEYS = 2**28  # the most keys of a sequence

_first = FirstSizes()


def sizes_of(p: DecodeProblem | MlaProblem) -> dict[str, int]:
    """The sizes in which calls of one kernel may differ."""
    if isinstance(p, MlaProblem) or p.page:
        return {"batch": p.batch, "pages": p.pages, "table": p.table}
    return {"batch": p.batch, "keys": p.keys}


def without_sizes(p: P) -> P:
    """The problem of one sequence, with the lengths left out: the combination of parts depends only on this."""
    return replace(p, batch=1, **dict.fromkeys([name for name in sizes_of(p) if name != "batch"], 0), **_of_table(p))


def _of_table(p: DecodeProblem | MlaProblem) -> dict[str, int]:
    """The field `keys` as 0 for a cache in pages, because the table gives the keys of a sequence."""
    return {"keys": 0} if isinstance(p, DecodeProblem) and p.page else {}


def opened(p: P, how: Any) -> P | None:
    """The problem with Dims if it came with other sizes before. None for the first sizes, and if no kernel takes any
    sizes.

    `how`: everything besides the problem that decides the kernel.
    """
    sizes = sizes_of(p)
    most = {"batch": BATCH, "pages": PAGES, "table": TABLE, "keys": KEYS}
    if any(not 0 < n <= most[name] for name, n in sizes.items()) or p.units * p.rows > 2**30:
        return None
    if not _first.comes_again((without_sizes(p), how), tuple(sizes.values())):
        return None
    return replace(p, **{name: dim_of(name, most[name]) for name in sizes}, **_of_table(p))


def is_opened(p: DecodeProblem | MlaProblem) -> bool:
    """Whether sizes are Dims, whose values each call gives."""
    return is_open(p.batch)


def declared(p: DecodeProblem | MlaProblem) -> dict[int, tuple[Any, ...]] | None:
    """`shapes=` of a kernel `(q, k, v, lengths, page_table, ...)`, or `(q, cache, lengths, page_table)`."""
    if not is_opened(p):
        return None
    found: dict[int, tuple[Any, ...]] = {0: (p.batch, None, None, None)}
    if isinstance(p, MlaProblem):
        return found | {1: (p.pages, None, None), 2: (p.batch,), 3: (p.batch, p.table)}
    first, length = (p.pages, None) if p.page else (p.batch, p.keys)
    shape = (first, length, None, None) if p.heads_last else (first, None, length, None)
    found |= dict.fromkeys((1, 2), shape) | {3: (p.batch,)}
    extras = {"page_table": (p.batch, p.table)} | {f"{name}_scale": (p.batch, None) for name in p.by_head}
    return found | {4 + i: extras[name] for i, name in enumerate(p.extras) if name in extras}


def at_launch(p: P, k: Any, page_table: Any) -> P:
    """In a body: the problem with the lengths of the launch."""
    if not is_opened(p):
        return p
    if isinstance(p, MlaProblem):
        return replace(p, table=page_table.shape[1])
    return replace(p, keys=page_table.shape[1] * p.page if p.page else k.shape[p.length_axis])


def of_call(p: P, q: Any, k: Any, page_table: Any) -> P:
    """The problem with the sizes of a call's structs."""
    if not is_opened(p):
        return p
    if isinstance(p, MlaProblem):
        return replace(p, batch=q.shape[0], pages=k.shape[0], table=page_table.shape[1])
    if not p.page:
        return replace(p, batch=q.shape[0], keys=k.shape[p.length_axis])
    most = page_table.shape[1]
    return replace(p, batch=q.shape[0], pages=k.shape[0], table=most, keys=most * p.page)
