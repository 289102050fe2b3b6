"""The kernels of attention's gradients with options, in the order in which a call runs them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.lazy import lazy

from ..attention_forward.blocks import BlockLists, block_arrays, blocks_kernel, depends_on, lists_by, table_of
from ..attention_forward.options import AttentionOptions
from ..attention_forward.problem import ScoredProblem, ragged_tiles
from ..latest import Launch, results_of
from .general import MINE, gradient_extras, gradient_kernels
from .order import EIGHT, KEYS, AttentionBackwardConfig, WalkNumbers, all_at_once
from .scored import (
    scored_backward_kernel,
    scored_finish_kernel,
    scored_stats_kernel,
    scored_sum_kernel,
)
from .scored_sizes import in_order, keys_of, padded_dims, stores_queries
from .scored_walk import ScoredWalk


def number_structs(sizes: WalkNumbers | None, stats: Any) -> list[Any]:
    """The number and a description of the array that `sizes.numbers(stats)` gives, nothing without sizes."""
    if sizes is None:
        return []
    return [np.int32(sizes.together), kd.ShapeDtypeStruct((sizes.splits,), stats.dtype)]


@dataclass(frozen=True)
class GeneralGradients:
    """The kernels for any input."""

    problem: ScoredProblem
    extras: list[str]  # the names of the arrays after lse, without the table
    by_query: Any
    by_key: Any
    opened: bool  # whether the kernels take any sizes

    @staticmethod
    def of(problem: ScoredProblem, takes_dlse: bool, general: ScoredProblem | None) -> GeneralGradients:
        """The kernels of a problem; with a `general` problem, those for any sizes."""
        extras = [name for name in gradient_extras(problem, takes_dlse) if name != "table"]
        kernels = gradient_kernels(general or problem, takes_dlse)
        return GeneralGradients(problem, extras, *kernels, general is not None)

    def launched(
        self, arrays: Sequence[Any], options: AttentionOptions, how: dict[str, Any], launch: Launch
    ) -> tuple[Any, ...]:
        """(dq, dk, dv)."""
        p, extras = self.problem, options.arrays(self.extras)
        tables: list[list[Any]] = [[], []]
        if p.ragged:
            lengths = (("q_seqlens", p.queries, arrays[1]), ("kv_seqlens", p.keys, arrays[2]))
            for table, (name, length, like) in zip(tables, lengths, strict=True):
                like = like if self.opened else None
                table.append(table_of(options.arrays([name])[0], p.batch, length, MINE, launch, like=like))
        dq = launch(self.by_query, (*arrays, *extras, *tables[0]))
        return (dq, *launch(self.by_key, (*arrays, *extras, *tables[1])))

    def lower(self, arrays: tuple[Any, ...], options: AttentionOptions, target: str | None) -> tuple[Any, ...]:
        p, extras = self.problem, options.arrays(self.extras)
        made: list[Any] = []
        for kernel, length in ((self.by_query, p.queries), (self.by_key, p.keys)):
            table = [kd.ShapeDtypeStruct((ragged_tiles(p, MINE, length), 2), kd.int32)] if p.ragged else []
            made.append(kernel.lower(*arrays, *extras, *table, target=target))
        return tuple(made)


@dataclass(frozen=True)
class ScoredGradients:
    """The kernels for Hopper that take options."""

    problem: ScoredProblem
    config: AttentionBackwardConfig
    stats: Any
    main: Any
    sums: tuple[Any, ...]  # the sums of dk and dv, if there are parts
    finish: Any  # None if the walk stores the queries' gradient
    lists: BlockLists | None
    sizes: WalkNumbers | None = None  # given if the kernels take any sizes
    keeps_bias: bool = False  # whether the walk stores the bias' gradient
    ordered: bool = False  # whether sums have second ones, which the walk's turns tell of

    @staticmethod
    def of(
        p: ScoredProblem,
        config: AttentionBackwardConfig,
        multiprocessors: int,
        captured: Sequence[Any],
        bias_dtype: Any = None,
        general: ScoredProblem | None = None,
        takes_dlse: bool = False,
    ) -> ScoredGradients:
        """The kernels of a problem; the first one may take dlse. With a `bias_dtype`, the last result is the bias'
        gradient, which the walk stores.

        `general`: the problem of kernels for any sizes, or None.
        """
        if p.ragged or p.score.causal or p.score.window is not None or p.score.mask_mod is not None:
            config = replace(config, tail=1)  # blocks have all lengths
        depends = depends_on(p, captured) if p.score.mask_mod is not None else (False, False)
        # the order counts blocks without a list, and the heads of a group share one list
        listed = p.score.mask_mod is not None and not config.in_turn and not depends[1]
        q, t, sizes = p, config, None
        if general is not None:
            sizes = WalkNumbers(ScoredWalk(p, config, multiprocessors, listed).together, config.splits)
            q = replace(general, mask_by=lists_by(p, depends))
            t = replace(config, splits=min(config.splits, 2))
        sums = tuple(scored_sum_kernel(q, config.splits, dim) for dim in (p.dim, p.v_dim) if config.splits > 1)
        lists = None
        if listed:
            found = blocks_kernel(q, keys_of(p), t.block_q, depends, True)
            lists = BlockLists(found, not p.ragged, general is not None)
        single = general is not None and not p.ragged and all_at_once(p, config, keys_of(p), multiprocessors)
        main = scored_backward_kernel(replace(q, alone=single), t, multiprocessors, listed, bias_dtype)
        # the small kernels don't depend on these
        ends = replace(t, splits=t.splits if sizes is None else 1, tail=1, stores_first=False)
        stats = scored_stats_kernel(q, ends, takes_dlse)
        finish = None if stores_queries(q) else scored_finish_kernel(q, ends)
        return ScoredGradients(p, t, stats, main, sums, finish, lists, sizes, bias_dtype is not None, in_order(q, t))

    def _tables(self) -> list[tuple[str, int, int]]:
        """For queries, then for keys: (the lengths, the length of the arrays, the rows of a line of their table)."""
        p = self.problem
        return [("q_seqlens", p.queries, self.config.block_q), ("kv_seqlens", p.keys, keys_of(p))]

    def launched(
        self, arrays: Sequence[Any], options: AttentionOptions, how: dict[str, Any], launch: Launch
    ) -> tuple[Any, ...]:
        """(dq, dk, dv), then dbias if the walk stores it."""
        dout, q, k, v, out, lse = arrays
        p, by_query, by_key = self.problem, [], []
        if p.ragged:
            lengths = options.arrays(["q_seqlens", "kv_seqlens"])
            tables = [
                table_of(options.arrays([name])[0], p.batch, total, rows, launch, rising, like if self.sizes else None)
                for (name, total, rows), like, rising in zip(self._tables(), (q, k), (False, True), strict=True)
            ]
            by_query, by_key = ([*lengths, table] for table in tables)
        rows = *options.rows(out, dout, lse), *by_query
        stats = launch(self.stats, rows, partial=True)  # lines past sequences are not read
        listed: Sequence[Any] = []
        if self.lists is not None:
            listed = self.lists.of(q, k, options.arrays(block_arrays(p)) + list(by_key[2:]), how, launch)
        numbers = self.sizes.numbers(stats) if self.sizes else []
        extras = options.arrays(self._extras)
        given = (q, k, v, dout, stats, *numbers, *extras, *by_key, *listed)
        made = launch(self.main, given, partial=self.ordered)  # few steps have second sums
        (dk, dv, dq), rest, turns = made[:3], list(made[3 : 3 + self.keeps_bias]), list(made[3:])
        turns = turns if self.ordered else []
        if self.sums:
            dk, dv = (launch(kernel, (x,)) for kernel, x in zip(self.sums, (dk, dv), strict=True))
        if self.finish is not None:
            dq_sum = dq.reshape(-1, self._rows, EIGHT)
            dq = launch(self.finish, (dq_sum, *turns, *([q] if self.sizes else []), *by_query))
        return dq, dk, dv, *rest

    @lazy
    def _rows(self) -> int:
        """The rows of a tile of the sum of the queries' gradients."""
        return padded_dims(self.problem)[0] if keys_of(self.problem) == KEYS else self.config.block_q

    @lazy
    def _extras(self) -> list[str]:
        return ["bias"] * (self.problem.score.bias is not None) + self.problem.score.captured

    def lower(self, arrays: tuple[Any, ...], options: AttentionOptions, target: str | None) -> tuple[Any, ...]:
        dout, q, k, v, out, lse = arrays
        p, by_query, by_key = self.problem, [], []
        if p.ragged:
            lengths = options.arrays(["q_seqlens", "kv_seqlens"])
            by_query, by_key = (
                [*lengths, kd.ShapeDtypeStruct((ragged_tiles(p, rows, total), 2), kd.int32)]
                for _, total, rows in self._tables()
            )
        rows = *options.rows(out, dout, lse), *by_query
        first = self.stats.lower(*rows, target=target)
        (stats,) = results_of(self.stats, *rows)
        given = options.arrays(block_arrays(p)) + list(by_key[2:])
        extras = [
            *number_structs(self.sizes, stats),
            *options.arrays(self._extras),
            *by_key,
            *([] if self.lists is None else self.lists.structs(q, k, given)),
        ]
        main = self.main.lower(q, k, v, dout, stats, *extras, target=target)
        *parts, sums = (results := results_of(self.main, q, k, v, dout, stats, *extras))[:3]
        turns = list(results[3:]) if self.ordered else []
        middle = [kernel.lower(x, target=target) for kernel, x in zip(self.sums, parts, strict=False)]
        if self.finish is None:
            return first, main, *middle
        shape = (math.prod(sums.shape) // (self._rows * EIGHT), self._rows, EIGHT)
        ends = [kd.ShapeDtypeStruct(shape, kd.float32), *turns, *([q] if self.sizes else []), *by_query]
        return first, main, *middle, self.finish.lower(*ends, target=target)
