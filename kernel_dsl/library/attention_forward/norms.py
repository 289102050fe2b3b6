"""The largest norms of queries and of keys: they bound scores, so that most calls need no maximum of each row."""

from __future__ import annotations

from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from .problem import ScoredProblem

ELEMENTS = 8192  # of a block


@cache
def norms_kernel(layout: str, ragged: bool, heads: int, kv_heads: int, dim: int, dtype: Any) -> Any:
    """The kernel `(q, k) -> norms`: int32 (heads + kv_heads,), the bits of the largest squared norm of each head's vectors.

    As numbers, bits of floats from 0 on have the order of the floats, and NaN is above all of them.
    """
    rows = max(ELEMENTS // dim, 1)
    axis = 0 if ragged else 1 if layout == "bshd" else 2
    q_length, k_length = kd.Dim("queries", min=0, max=2**31 - 1), kd.Dim("keys", min=0, max=2**31 - 1)
    batch = () if ragged else (kd.Dim("batch", min=0, max=2**31 - 1),)

    def shape(count: int, length: Any) -> tuple[Any, ...]:
        return (*batch, *((length, count) if axis < 2 else (count, length)), dim)

    def body(q: Any, k: Any, norms: Any) -> None:
        head, sequence, first = kd.program_id(0), kd.program_id(1), kd.program_id(2) * rows

        def one(x: Any, head: Any, place: Any) -> None:
            outer = () if ragged else (sequence,)
            these = kd.ds(first, rows)
            here = (*outer, *((these, head) if axis < 2 else (head, these)), slice(None))
            value = x[here].astype(kd.float32)
            largest = kd.max(kd.sum(value * value, axis=1))
            kd.atomic_max(norms.at[place], kd.bitcast_convert_type(largest, kd.int32))

        kd.when((head < heads) & (first < q.shape[axis]))(lambda: one(q, head, head))
        kd.when((head >= heads) & (first < k.shape[axis]))(lambda: one(k, head - heads, head))

    def grid(q: Any, k: Any, norms: Any = None) -> tuple[Any, ...]:
        longest = max(q.shape[axis], k.shape[axis])
        return heads + kv_heads, 1 if ragged else q.shape[0], kd.cdiv(longest, rows)

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct((heads + kv_heads,), kd.int32, init=0),
        grid=grid,
        shapes={0: shape(heads, q_length), 1: shape(kv_heads, k_length)},
        name="attention_norms",
    )
    return identified(made, layout, ragged, heads, kv_heads, dim, dtype)


def largest_product(p: ScoredProblem, head: Any, norms: Any) -> Any:
    """A bound of the squared products of a head's queries and keys, inf or NaN where they are not finite."""
    pair = norms[head], norms[p.heads + kd.div(head, p.heads // p.kv_heads)]
    return kd.bitcast_convert_type(pair[0], kd.float32) * kd.bitcast_convert_type(pair[1], kd.float32)
