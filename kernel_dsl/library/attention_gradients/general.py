"""Attention's gradients for every float dtype, dimension, stride, option and target. Lanes multiply and add, in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified
from kernel_dsl.layout import pow2_ceil

from ..attention_forward.captured import reading
from ..attention_forward.opened import at_launch, gradient_shapes, lines_of
from ..attention_forward.problem import ScoredProblem, ScorePlace, ragged_tiles
from .ends import centre

MINE = 4  # rows of a block
MOST = 64  # registers of a lane for the products of a block's rows and those of a step: more would spill


def gradient_extras(p: ScoredProblem, takes_dlse: bool) -> list[str]:
    """Names of the arrays after dout, q, k, v, out and lse that the kernels take; `table` is the table of the rows that
    blocks own.
    """
    return ["dlse"] * takes_dlse + [name for name in p.extras if name != "sinks"] + ["table"] * p.ragged


class _GeneralGradients:
    """The common parts of both kernels."""

    def __init__(self, p: ScoredProblem, takes_dlse: bool) -> None:
        self.p = p
        self.wide = kd.float64 if p.dtype == kd.float64 else kd.float32
        self.group = p.heads // p.kv_heads
        self.takes_dlse = takes_dlse
        self.names = gradient_extras(p, takes_dlse)
        row = MINE * pow2_ceil(max(p.dim, p.v_dim)) * self.wide.itemsize // 512
        most = MOST if row <= 8 else MOST // (2 if self.wide == kd.float32 else 4)  # the block's own rows take as many
        self.others = max(min(16, most // max(row, 1)), 1)  # rows of a step
        # The assembler keeps more blocks on a multiprocessor, and spills a few registers for that in some kernels. With a limit
        # it does not, but plain rows of float32 took 1.04 to 1.07 of the time.
        even = all(n in (64, 128) for n in (p.dim, p.v_dim)) and self.wide == kd.float32
        self.how = None if even else kd.CompilerParams(max_registers=255)

    def rows(self, ref: Any, place: ScorePlace, head: Any, row: Any, first: Any, count: int, length: Any) -> Any:
        """Some rows of a sequence. Rows beyond it, which may belong to another sequence, are zeros."""
        value = ref[self.p.rows(place.batch, head, kd.ds(row + first, count))].astype(self.wide)
        if not self.p.ragged:
            return value
        return kd.where(first + kd.broadcasted_iota(kd.int32, value.shape, 0) < length, value, 0.0)

    def centre(self, mean: Any, s: dict[str, Any], lse: Any, here: Any, place: ScorePlace, first: Any) -> Any:
        """`centre` of some rows of a sequence; zeros for those beyond it, whose dlse may be NaN."""
        found = centre(mean, lse, s.get("dlse"), here)
        if not self.p.ragged or not self.takes_dlse:
            return found
        return kd.where(first + kd.arange(mean.shape[0]) < place.queries, found, 0.0)

    def products(self, a: Any, b: Any) -> Any:
        """(i, dim) and (j, dim) give (i, j)."""
        return kd.sum(a[:, None, :] * b[None], axis=2)

    def both(self, x: Any, lse: Any, place: ScorePlace, head: Any, query: Any, key: Any, tile: Any, bias: Any) -> Any:
        """(weights, the slope of their scores) of products `x` whose indices are `query` and `key`."""
        p = self.p
        here = place.batch, head, query, key

        def load() -> Any:
            """A tile of the bias (queries, keys), transposed if `x` is."""
            return p.bias_tile(bias, (place.batch, head), *tile, transposed=tile[0].size != x.shape[0])

        x, _, slope = p.score.with_slopes(x, p.scale, load, here)
        seen = p.score.seen(here, place.queries, place.keys) & (query < place.queries) & (lse > -math.inf)
        return kd.where(seen, kd.exp(kd.where(seen, x - lse, 0.0)), 0.0), slope

    def body(self, compute: Callable[..., None]) -> Callable[..., None]:
        """A kernel's body from `compute`, which makes the results and gets the extra arrays by name."""

        def body(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any) -> None:
            s = dict(zip(self.names, rest, strict=False))
            here = copy(self)
            here.p = at_launch(self.p, q, k, None) if self.p.opened else self.p
            with reading(s):
                compute(here, dout, q, k, v, out, lse, s, *rest[len(self.names) :])

        return body

    def dq(self, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, s: dict[str, Any], dq: Any) -> None:
        p = self.p
        place = ScorePlace.of(p, kd.program_id(0), kd.program_id(1), s)
        head, kv_head, first = place.head, kd.div(place.head, self.group), place.number * MINE
        mine = place, head, place.q_row, first, MINE, place.queries
        own, grad = (self.rows(x, *mine) for x in (q, dout))
        mean = kd.sum(grad * self.rows(out, *mine), axis=1)
        here = kd.ds(place.q_row + first, MINE)
        logs = p.lse_rows(place.batch, head, here)
        total = lse[logs].astype(self.wide)
        delta, total = self.centre(mean, s, total, logs, place, first), total[:, None]
        query = first + kd.broadcasted_iota(kd.int32, (MINE, self.others), 0)

        def step(block: Any, acc: Any) -> Any:
            start = block * self.others
            keys, values = (self.rows(x, place, kv_head, place.k_row, start, self.others, place.keys) for x in (k, v))
            key = start + kd.broadcasted_iota(kd.int32, (MINE, self.others), 1)
            tile = kd.ds(first, MINE), kd.ds(start, self.others)
            weights, slope = self.both(self.products(own, keys), total, place, head, query, key, tile, s.get("bias"))
            ds = weights * (self.products(grad, values) - delta[:, None])
            ds = ds if slope is None else ds * slope
            return acc + kd.sum(ds[:, :, None] * keys[None], axis=1)

        acc = kd.fori_loop(*place.blocks(p, first, MINE, self.others), step, kd.zeros((MINE, p.dim), self.wide))
        self.store(dq, p.rows(place.batch, head, here), acc * p.scale, first, place.queries)

    def dkv(self, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, s: dict[str, Any], dk: Any, dv: Any) -> None:
        p = self.p
        place = ScorePlace.of(p, kd.program_id(0), kd.program_id(1), s, p.kv_heads, by_key=True)
        kv_head, first = place.head, place.number * MINE
        keys, values = (self.rows(x, place, kv_head, place.k_row, first, MINE, place.keys) for x in (k, v))
        key = first + kd.broadcasted_iota(kd.int32, (MINE, self.others), 0)
        begin, end = place.query_blocks(p, first, MINE, self.others)

        def step(head: Any, block: Any, carry: Any) -> Any:
            start = block * self.others
            theirs = place, head, place.q_row, start, self.others, place.queries
            own, grad = (self.rows(x, *theirs) for x in (q, dout))
            mean = kd.sum(grad * self.rows(out, *theirs), axis=1)
            logs = p.lse_rows(place.batch, head, kd.ds(place.q_row + start, self.others))
            total = lse[logs].astype(self.wide)
            delta, total = self.centre(mean, s, total, logs, place, start), total[None]
            query = start + kd.broadcasted_iota(kd.int32, (MINE, self.others), 1)
            tile = kd.ds(start, self.others), kd.ds(first, MINE)
            weights, slope = self.both(self.products(keys, own), total, place, head, query, key, tile, s.get("bias"))
            ds = weights * (self.products(values, grad) - delta[None])
            ds = ds if slope is None else ds * slope
            return tuple(
                acc + kd.sum(x[:, :, None] * y[None], axis=1)
                for acc, x, y in zip(carry, (ds, weights), (own, grad), strict=True)
            )

        def each_head(n: Any, carry: Any) -> Any:
            head = kv_head * self.group + n
            return kd.fori_loop(begin, end, lambda block, carry: step(head, block, carry), carry)

        start = tuple(kd.zeros((MINE, dim), self.wide) for dim in (p.dim, p.v_dim))
        dk_sum, dv_sum = kd.fori_loop(0, self.group, each_head, start)
        here = p.rows(place.batch, kv_head, kd.ds(place.k_row + first, MINE))
        self.store(dk, here, dk_sum * p.scale, first, place.keys)
        self.store(dv, here, dv_sum, first, place.keys)

    def store(self, out: Any, here: Any, value: Any, first: Any, length: Any) -> None:
        there = (first + kd.arange(MINE) < length)[:, None] if self.p.ragged else None
        kd.store(out, here, value.astype(self.p.dtype), mask=there)


@cache
def gradient_kernels(problem: ScoredProblem, takes_dlse: bool) -> tuple[Any, Any]:
    """The kernels `(dout, q, k, v, out, lse, *extras) -> dq` and `-> (dk, dv)`; `gradient_extras` names the arrays between."""
    p, shared = problem, _GeneralGradients(problem, takes_dlse)
    shapes = gradient_shapes(p, shared.names) if p.opened else None
    like = [
        kd.ShapeDtypeStruct(p.shape(*x), p.dtype)
        for x in ((p.heads, p.queries, p.dim), (p.kv_heads, p.keys, p.dim), (p.kv_heads, p.keys, p.v_dim))
    ]

    def grid(heads: int, length: int) -> tuple[Any, Any]:
        if p.ragged:
            return heads, lines_of(p) if p.opened else ragged_tiles(p, MINE, length)
        return p.batch * heads, kd.cdiv(length, MINE)

    by_query = kd.kernel(
        shared.body(_GeneralGradients.dq),
        out_type=like[0],
        grid=grid(p.heads, p.queries),
        shapes=shapes,
        compiler_params=shared.how,
        name="attention_backward_general_q",
    )
    by_key = kd.kernel(
        shared.body(_GeneralGradients.dkv),
        out_type=tuple(like[1:]),
        grid=grid(p.kv_heads, p.keys),
        shapes=shapes,
        compiler_params=shared.how,
        name="attention_backward_general_kv",
    )
    if p.score.has_functions:
        return by_query, by_key
    return identified(by_query, problem, takes_dlse), identified(by_key, problem, takes_dlse)
