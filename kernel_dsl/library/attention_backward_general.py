"""Attention's gradients for every float dtype, head dimension, stride and target. Lanes multiply and add, in a fixed order."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .attention_kernel import AttentionProblem

MINE, OTHERS = 4, 16  # rows of a block, and of a step


@cache
def gradient_kernels(problem: AttentionProblem) -> tuple[Any, Any]:
    """The kernels `(dout, q, k, v, out, lse) -> dq` and `(dout, q, k, v, out, lse) -> (dk, dv)`."""
    p = problem
    wide = kd.float64 if p.dtype == kd.float64 else kd.float32
    group = p.heads // p.kv_heads

    def rows(ref: Any, batch: Any, head: Any, first: Any, count: int) -> Any:
        return ref[batch, head, kd.ds(first, count)].astype(wide)

    def products(a: Any, b: Any) -> Any:
        """(i, dim) and (j, dim) give (i, j)."""
        return kd.sum(a[:, None, :] * b[None], axis=2)

    def weights_of(scores: Any, lse: Any, query: Any, key: Any) -> Any:
        """Of scores whose indices are `query` and `key`; none of pairs that don't see each other."""
        seen = (key < p.keys) & (query < p.queries) & (lse > -math.inf)
        if p.causal:
            seen = seen & (key <= query)
        return kd.where(seen, kd.exp(kd.where(seen, scores * p.scale - lse, 0.0)), 0.0)

    def dq_body(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dq: Any) -> None:
        batch, head = kd.div(kd.program_id(0), p.heads), kd.rem(kd.program_id(0), p.heads)
        kv_head, first = kd.div(head, group), kd.program_id(1) * MINE
        own, grad = (rows(x, batch, head, first, MINE) for x in (q, dout))
        delta = kd.sum(grad * rows(out, batch, head, first, MINE), axis=1)
        total = lse[batch, head, kd.ds(first, MINE)].astype(wide)[:, None]
        query = first + kd.broadcasted_iota(kd.int32, (MINE, OTHERS), 0)

        def step(block: Any, acc: Any) -> Any:
            start = block * OTHERS
            keys, values = (rows(x, batch, kv_head, start, OTHERS) for x in (k, v))
            key = start + kd.broadcasted_iota(kd.int32, (MINE, OTHERS), 1)
            weights = weights_of(products(own, keys), total, query, key)
            ds = weights * (products(grad, values) - delta[:, None])
            return acc + kd.sum(ds[:, :, None] * keys[None], axis=1)

        blocks: Any = kd.cdiv(p.keys, OTHERS)
        if p.causal:
            blocks = kd.minimum(kd.cdiv(first + MINE, OTHERS), blocks)
        acc = kd.fori_loop(0, blocks, step, kd.zeros((MINE, p.dim), wide))
        dq[batch, head, kd.ds(first, MINE)] = (acc * p.scale).astype(p.dtype)

    def dkv_body(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dk: Any, dv: Any) -> None:
        batch, kv_head = kd.div(kd.program_id(0), p.kv_heads), kd.rem(kd.program_id(0), p.kv_heads)
        first = kd.program_id(1) * MINE
        keys, values = (rows(x, batch, kv_head, first, MINE) for x in (k, v))
        key = first + kd.broadcasted_iota(kd.int32, (MINE, OTHERS), 0)
        blocks = kd.cdiv(p.queries, OTHERS)
        skipped = kd.div(first, OTHERS) if p.causal else 0

        def step(index: Any, carry: Any) -> Any:
            head, start = kv_head * group + kd.div(index, blocks), kd.rem(index, blocks) * OTHERS
            own, grad = (rows(x, batch, head, start, OTHERS) for x in (q, dout))
            delta = kd.sum(grad * rows(out, batch, head, start, OTHERS), axis=1)
            total = lse[batch, head, kd.ds(start, OTHERS)].astype(wide)[None]
            query = start + kd.broadcasted_iota(kd.int32, (MINE, OTHERS), 1)
            weights = weights_of(products(keys, own), total, query, key)
            ds = weights * (products(values, grad) - delta[None])
            return tuple(
                acc + kd.sum(x[:, :, None] * y[None], axis=1)
                for acc, x, y in zip(carry, (ds, weights), (own, grad), strict=True)
            )

        def visible(index: Any, carry: Any) -> Any:
            return kd.cond(kd.rem(index, blocks) >= skipped, lambda c: step(index, c), lambda c: c, carry)

        start = (kd.zeros((MINE, p.dim), wide), kd.zeros((MINE, p.dim), wide))
        dk_sum, dv_sum = kd.fori_loop(0, blocks * group, visible if p.causal else step, start)
        here = kd.ds(first, MINE)
        dk[batch, kv_head, here] = (dk_sum * p.scale).astype(p.dtype)
        dv[batch, kv_head, here] = dv_sum.astype(p.dtype)

    like_q = kd.ShapeDtypeStruct((p.batch, p.heads, p.queries, p.dim), p.dtype)
    like_k = kd.ShapeDtypeStruct((p.batch, p.kv_heads, p.keys, p.dim), p.dtype)
    grid = (p.batch * p.heads, kd.cdiv(p.queries, MINE))
    by_query = kd.kernel(dq_body, out_type=like_q, grid=grid, name="attention_backward_general_q")
    grid = (p.batch * p.kv_heads, kd.cdiv(p.keys, MINE))
    by_key = kd.kernel(dkv_body, out_type=(like_k, like_k), grid=grid, name="attention_backward_general_kv")
    return identified(by_query, problem), identified(by_key, problem)
