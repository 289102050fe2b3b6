"""Causal attention in Triton, a tile of queries a program: a peer of the compile times."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def attention(
    q, k, v, out, scale, length, DIM: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr
):
    tile, head = tl.program_id(0), tl.program_id(1)
    row, column, one = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, DIM)
    base = head.to(tl.int64) * length * DIM
    queries = tl.load(q + base + row[:, None] * DIM + one[None, :], mask=row[:, None] < length, other=0.0)
    top = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    value = tl.zeros((ROWS, DIM), tl.float32)
    end = tl.minimum((tile + 1) * ROWS, length) if CAUSAL else length
    for first in tl.range(0, end, KEYS):
        key = first + column
        there = key[:, None] < length
        keys = tl.load(k + base + key[:, None] * DIM + one[None, :], mask=there, other=0.0)
        score = tl.dot(queries, keys.T) * scale
        seen = key[None, :] < length
        if CAUSAL:
            seen = seen & (key[None, :] <= row[:, None])
        score = tl.where(seen, score, -float("inf"))
        above = tl.maximum(top, tl.max(score, axis=1))
        weights = tl.exp2(score - above[:, None])
        fade = tl.exp2(top - above)
        total = total * fade + tl.sum(weights, axis=1)
        values = tl.load(v + base + key[:, None] * DIM + one[None, :], mask=there, other=0.0)
        value = tl.dot(weights.to(values.dtype), values, value * fade[:, None])
        top = above
    made = value / total[:, None]
    tl.store(out + base + row[:, None] * DIM + one[None, :], made.to(out.dtype.element_ty), mask=row[:, None] < length)


def run(q: Any, k: Any, v: Any, out: Any, causal: bool) -> None:
    """Attention of bfloat16 arrays (batch, heads, length, dim)."""
    batch, heads, length, dim = q.shape
    grid = (triton.cdiv(length, 128), batch * heads)
    attention[grid](
        q, k, v, out, dim**-0.5 * 1.4426950408889634, length, dim, 128, 64, causal, num_warps=8, num_stages=3
    )
