"""Attention that takes every float dtype, head dimension, stride and target. Lanes multiply and add."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .attention_kernel import LOWEST, AttentionProblem

ROWS, KEYS = 4, 16


@cache
def attention_general(problem: AttentionProblem) -> Any:
    """The kernel `(q, k, v) -> out` or `-> (out, lse)`."""
    p = problem
    wide = kd.float64 if p.dtype == kd.float64 else kd.float32

    def body(q: Any, k: Any, v: Any, out: Any, *rest: Any) -> None:
        index = kd.program_id(0)
        batch, head = kd.div(index, p.heads), kd.rem(index, p.heads)
        kv_head = kd.div(head, p.heads // p.kv_heads)
        first = kd.program_id(1) * ROWS
        rows = kd.ds(first, ROWS)
        x = q[batch, head, rows].astype(wide) * p.scale
        query = first + kd.broadcasted_iota(kd.int32, (ROWS, KEYS), 0)

        def step(block: Any, carry: Any) -> Any:
            top, total, acc = carry
            keys = kd.ds(block * KEYS, KEYS)
            key = block * KEYS + kd.broadcasted_iota(kd.int32, (ROWS, KEYS), 1)
            scores = kd.sum(x[:, None, :] * k[batch, kv_head, keys].astype(wide)[None], axis=2)
            seen = key < p.keys
            if p.causal:
                seen = seen & (key <= query)
            scores = kd.where(seen, scores, -math.inf)
            new_top = kd.maximum(top, kd.max(scores, axis=1, keepdims=True))
            weights = kd.exp(scores - new_top)
            fade = kd.exp(top - new_top)
            values = v[batch, kv_head, keys].astype(wide)
            acc = acc * fade + kd.sum(weights[:, :, None] * values[None], axis=1)
            return new_top, total * fade + kd.sum(weights, axis=1, keepdims=True), acc

        blocks: Any = kd.cdiv(p.keys, KEYS)
        if p.causal:
            blocks = kd.minimum(kd.cdiv(first + ROWS, KEYS), blocks)
        start = (kd.full((ROWS, 1), LOWEST, wide), kd.zeros((ROWS, 1), wide), kd.zeros((ROWS, p.dim), wide))
        top, total, acc = kd.fori_loop(0, blocks, step, start)
        out[batch, head, rows] = (acc / total).astype(p.dtype)
        if p.lse:
            rest[0][batch, head, rows] = (top + kd.log(total)).astype(kd.float32)[:, 0]

    out_type: Any = kd.ShapeDtypeStruct((p.batch, p.heads, p.queries, p.dim), p.dtype)
    if p.lse:
        out_type = (out_type, kd.ShapeDtypeStruct((p.batch, p.heads, p.queries), kd.float32))
    grid = (p.batch * p.heads, kd.cdiv(p.queries, ROWS))
    made = kd.kernel(body, out_type=out_type, grid=grid, name="attention_general")
    return identified(made, problem)
