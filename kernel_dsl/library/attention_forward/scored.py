"""Attention with options as a plan: the kernels of a problem, in the order in which a call runs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.dtypes import FP8
from kernel_dsl.kernel import identified
from kernel_dsl.lazy import lazy

from ..first_sizes import dim_of, is_later
from ..latest import Launch, launching, results_of, seen_launching
from .blocks import BlockLists, block_arrays, blocks_kernel, depends_on, lists_by, table_of
from .general import ROWS as GENERAL_ROWS
from .general import attention_general
from .norms import norms_kernel
from .opened import scored_opened, takes_number
from .options import AttentionOptions, check_lengths
from .pages import copied_first, loaded_together, page_arrays, pages_kernel, pages_opened, without_pages
from .problem import ScoredProblem, ragged_tiles
from .scored_config import (
    blocks_together_of,
    few_config,
    few_tiles,
    listed,
    paged_config,
    scored_config,
    scored_together,
    short_config,
    step_counts,
    tiles_of,
)
from .scored_kernel import scored_kernel
from .sizes import ROWS, AttentionConfig
from .split import combine_kernel, splits_for

ELEMENTS = 4096  # elements of a block that converts
GUARDED = 2**26  # scores from which norms are computed: for fewer, that takes longer than the loop saves
SHARED = 1024  # keys less of a block that are worth the kernel that combines
PARTS = 8  # a second block of a multiprocessor saves less than more parts cost
LATER = 4  # where a mask hides keys, or products take longer than exponentials, as many times more


@cache
def widen_kernel(rank: int, columns: int, dtype: Any) -> Any:
    """The kernel `(x,) -> x` for arrays of any shape with `columns` columns. It gives bfloat16, which holds every
    float8.
    """
    rows = max(ELEMENTS // max(columns, 1), 1)
    extents = [kd.Dim(f"n{i}", min=0, max=2**31 - 1) for i in range(rank - 1)]

    def body(x: Any, out: Any) -> None:
        number, place = kd.program_id(0), []
        for n in (x.shape[i] for i in reversed(range(rank - 2))):
            place.insert(0, kd.rem(number, n))
            number = kd.div(number, n)
        here = (*place, kd.ds(kd.program_id(1) * rows, rows))
        out[here] = x[here].astype(kd.bfloat16)

    shape = (*extents, columns)
    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(shape, kd.bfloat16),
        grid=(math.prod(extents[:-1]), kd.cdiv(extents[-1], rows)),
        shapes={0: shape, 1: shape},
        name="attention_widen",
    )
    return identified(made, rank, columns, dtype)


def guards(p: ScoredProblem) -> bool:
    """Whether a kernel has two loops, and takes the one without a maximum where norms show that scores are small.

    Products of float8 are so fast that the maximum takes time. The norms need a launch, which pays for large problems.
    """
    every = not p.ragged and not p.score.causal and p.score.window is None and p.score.mask_mod is None
    least = GUARDED if every and max(p.dim, p.v_dim) <= 128 else LATER * GUARDED
    few = p.heads * p.queries * p.keys * (1 if p.ragged else p.batch) < least
    return p.narrow is not None and not few and not p.score.natural and p.score.softcap is None


def scored_splits(p: ScoredProblem, t: AttentionConfig, multiprocessors: int) -> int:
    """The number of tiles that share the keys of a tile: where there are few, and the longest has many steps."""
    if p.ragged:
        return 1
    steps, tiles = max(step_counts(p, t), default=0), p.batch * p.heads * tiles_of(p, t)
    found = splits_for(tiles, steps, multiprocessors * blocks_together_of(p, t))
    if found > PARTS:
        found = splits_for(tiles, steps, multiprocessors)
    return found if (steps - kd.cdiv(steps, found)) * t.block_kv >= SHARED else 1


def norms_of(p: ScoredProblem) -> Any:
    """The kernel `(q, k) -> norms`."""
    return norms_kernel(p.layout, p.ragged, p.heads, p.kv_heads, p.dim, p.narrow)


@dataclass(frozen=True)
class ScoredPlan:
    """The kernels of a problem.

    `inner`: the problem of the last one. `tile` queries share a line of the table. `pages` copies keys in pages first,
    or is None. `opened`: the kernel takes any lengths, and a `number` beside its arrays if `takes_number`. `combine`:
    the kernel that combines the results of tiles that share keys, or None.
    """

    problem: ScoredProblem
    inner: ScoredProblem
    kernel: Any
    tile: int
    fast: bool
    lists: BlockLists | None
    pages: Any = None
    opened: bool = False
    number: Any = None
    combine: Any = None

    @staticmethod
    def of(
        p: ScoredProblem,
        config: AttentionConfig | None,
        multiprocessors: int,
        why: str,
        promise: bool,
        captured: Sequence[Any],
        closed: bool = False,
        narrow: Any = None,
    ) -> ScoredPlan:
        """The plan of the kernel for Hopper, or of the general kernel if there is a reason `why`.

        `promise`: all page numbers are in the cache; `captured`: the arrays that functions closed over; `closed`: the
        plan takes these sizes alone. `narrow`: the dtype in which q and k are multiplied, if it differs from that of
        weights and values.
        """
        if why:
            alone = replace(p, score=replace(p.score, bias_tiles=None))
            general = None if closed else scored_opened(alone, "general", promise)
            kernel = attention_general(general or p, promise)
            return ScoredPlan(p, p, kernel, GENERAL_ROWS, False, None, opened=general is not None)
        from .linear import is_linear  # operations, imported for the first trace

        inner = replace(p, dtype=kd.bfloat16, narrow=narrow) if p.dtype in FP8 else p
        inner = replace(inner, guarded=guards(inner))
        given, linear = config, is_linear(p, captured)

        def chosen(p: ScoredProblem) -> AttentionConfig:
            own = few_config(p, multiprocessors) or short_config(p, multiprocessors, closed)
            return paged_config(p, own) if own else scored_config(p, linear)

        config = paged_config(inner, given) if given else chosen(inner)
        found = loaded_together(p, config.block_kv) if p.page and p.dtype not in FP8 else None
        if p.page and (found is None or copied_first(p, found[0])):
            inner = without_pages(p)
            config = config if given else chosen(inner)
        blocks = multiprocessors * blocks_together_of(inner, config)  # that run at once
        tile, lists = ROWS * config.consumers, None
        depends = depends_on(p, captured) if listed(p) else (False, False)
        inner = replace(inner, mask_by=lists_by(p, depends))
        general = None if closed else scored_opened(inner, multiprocessors)
        pages = None
        if p.page and not inner.page:
            pages = pages_kernel(pages_opened(p) if general is not None else p, promise)
        if listed(p):
            found = blocks_kernel(general or p, tile, config.block_kv, depends)
            lists = BlockLists(found, opened=general is not None)
        splits, combine, number = scored_splits(inner, config, multiprocessors), None, None
        if splits > 1:
            own = None if general is not None else splits
            combine = combine_kernel(own, p.heads, p.v_dim, p.out_dtype, p.lse, p.layout, gaps=True)
            inner = replace(inner, splits=splits, lse=True)
            if general is not None:
                general = replace(general, splits=dim_of("splits", least=2), lse=True, alone=True)
        elif general is not None and not is_later():  # such kernels need no counter, which a launch would clear
            general = replace(general, alone=few_tiles(inner, config, blocks))
        kernel = scored_kernel(general or inner, config, blocks, promise and bool(inner.page))
        if general is not None and takes_number(general):
            number = np.int32(splits if splits > 1 else scored_together(inner, config, blocks))
        return ScoredPlan(p, inner, kernel, tile, True, lists, pages, general is not None, number, combine)

    @lazy
    def _widened(self) -> tuple[int, ...]:
        """The names among q, k and v that are widened. The copy out of pages widens keys and values in pages."""
        if not self.fast or self.problem.dtype not in FP8:
            return ()
        return (0,) if self.pages is not None else (2,) if self.inner.narrow is not None else (0, 1, 2)

    def __call__(self, q: Any, k: Any, v: Any, options: AttentionOptions, out: Any, how: dict[str, Any]) -> Any:
        return self._launched(q, k, v, options, out, how, launching(**how))

    def seen(self, inputs: list[Any], out: Any, stream: Any) -> Any:
        """The result of a call on a GPU that resembles an earlier one, of (q, k, v, options); else raises `Unseen`."""
        q, k, v, options = inputs
        return self._launched(q, k, v, options, out, {"stream": stream, "interpret": None}, seen_launching(stream))

    @lazy
    def _names(self) -> tuple[list[str], list[str]]:
        """Of the kernel's arrays after q, k and v, and of those that lists depend on."""
        return self.inner.extras, [] if self.lists is None else block_arrays(self.inner, self.opened)

    def _launched(
        self, q: Any, k: Any, v: Any, options: AttentionOptions, out: Any, how: dict[str, Any], launch: Launch
    ) -> Any:
        p = self.problem
        if p.ragged or p.cache:
            check_lengths(options, p, "attention")
        inputs = [q, k, v]
        if self.pages is not None:
            copied = (k, v, *options.arrays(page_arrays(p)))
            inputs[1:] = launch(self.pages, copied, partial=True)  # rows past sequences are not read
        for n in self._widened:
            inputs[n] = launch(widen_kernel(len(inputs[n].shape), inputs[n].shape[-1], p.dtype), (inputs[n],))
        names, listed = self._names
        extras = options.arrays([name for name in names if name != "norms"])
        if self.inner.guarded:  # the last name
            extras.append(launch(norms_of(self.inner), inputs[:2]))
        table: list[Any] = []
        if p.ragged:
            like = q if self.opened else None
            table = [table_of(options.q_seqlens, p.batch, p.queries, self.tile, launch, like=like)]
        extras += table
        if self.lists is not None:
            extras += self.lists.of(q, inputs[1], options.arrays(listed) + table, how, launch)
        given = (*inputs, *([] if self.number is None else [self.number]), *extras)
        if self.combine is None:
            return launch(self.kernel, given, out)
        return launch(self.combine, launch(self.kernel, given), out)

    def lower(self, q: Any, k: Any, v: Any, options: AttentionOptions, target: str | None) -> Any:
        """The stages of the kernel that computes attention."""
        p = self.problem
        inputs = [q, k, v]
        if self.pages is not None:
            inputs[1:] = results_of(self.pages, k, v, *options.arrays(page_arrays(p)))
        for n in self._widened:
            inputs[n] = kd.ShapeDtypeStruct(tuple(inputs[n].shape), kd.bfloat16)
        extras = options.arrays([name for name in self.inner.extras if name != "norms"])
        extras += [kd.ShapeDtypeStruct((p.heads + p.kv_heads,), kd.int32)] * self.inner.guarded
        table = [kd.ShapeDtypeStruct((ragged_tiles(p, self.tile), 2), kd.int32)] if p.ragged else []
        extras += table
        if self.lists is not None:
            extras += self.lists.structs(q, inputs[1], options.arrays(self._names[1]) + table)
        number = [] if self.number is None else [self.number]
        return self.kernel.lower(*inputs, *number, *extras, target=target)
