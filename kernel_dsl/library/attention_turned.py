"""Values of float8 for weights of float8: transposed, because wgmma takes 8-bit operands contiguous along K alone.

A lane holds two neighbours of each 8 columns of its scores, but the left side of an 8-bit product wants four neighbours. A sum
over keys may take them in any order. So each 16 keys lie in the order in which a lane holds them, and weights need no
exchange between lanes: place 4 t + 2 a + i has key 8 a + 2 t + i.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .attention_problem import ScoredProblem
from .attention_scored_config import SUMS, lanes_of
from .first_sizes import dim_of

KEYS = 16  # keys that are put in order together; rows of the result are a multiple of them
BATCH, MOST = 2**24, 2**30  # the most sequences, the most keys


def turned_shape(p: ScoredProblem) -> tuple[Any, ...]:
    """The shape of the transposed values, (batch, kv_heads, dims, keys)."""
    return p.batch, p.kv_heads, lanes_of(p.v_dim) + SUMS, kd.cdiv(p.keys, KEYS) * KEYS


@cache
def turned_kernel(layout: str, kv_heads: int, v_dim: int, dtype: Any) -> Any:
    """The kernel `v -> turned` of `turned_shape`, for any batch and length. Elements beyond both dims are zeros."""
    dims = lanes_of(v_dim)
    # each lane reads 8 neighbouring dims of 16 keys; four lanes read 32 bytes of a row, and eight write 128 bytes of one
    wide = max(n for n in (0, 1, 2) if n == 0 or 32 << n - 1 < dims)
    warps = tuple((1, 32 << n) if n < wide else (0, 128 << n - wide) for n in range(2))
    held = kd.Layout(2, ((0, KEYS, 1), (1, 8, 1)), ((1, 8), (1, 16), (0, 16), (0, 32), (0, 64)), warps)
    height, width = held.padded

    def body(v: Any, turned: Any) -> None:
        number, block, part = (kd.program_id(axis) for axis in range(3))
        batch, head = kd.div(number, kv_heads), kd.rem(number, kv_heads)
        keys, columns = kd.ds(block * height, height), kd.ds(part * width, width)
        x = kd.load(
            v.at[(batch, keys, head, columns) if layout == "bshd" else (batch, head, keys, columns)], layout=held
        )
        x = x.reshape(height // KEYS, 2, 4, 2, width).transpose(4, 0, 2, 1, 3).reshape(width, height)
        turned.at[batch, head, 0:dims][columns, keys] = x

        @kd.when(part == 0)
        def _() -> None:
            ones = kd.broadcasted_iota(kd.int32, (SUMS, height), 0) == 0
            turned[batch, head, dims : dims + SUMS, keys] = kd.where(ones, 1.0, 0.0).astype(dtype)

    batch, length = dim_of("batch", BATCH, least=0), dim_of("keys", MOST, least=0)
    given = (batch, length, kv_heads, v_dim) if layout == "bshd" else (batch, kv_heads, length, v_dim)
    out = kd.ShapeDtypeStruct((batch, kv_heads, dims + SUMS, kd.cdiv(length, KEYS) * KEYS), dtype)
    made = kd.kernel(
        body,
        out_type=out,
        # TMA takes rows of whole multiples of 16 bytes, and stores are that wide
        shapes={0: given, 1: (*out.shape[:3], dim_of("turned", MOST, KEYS, least=0))},
        grid=(batch * kv_heads, kd.cdiv(length, height), kd.cdiv(dims, width)),
        name="attention_turned",
    )
    return identified(made, layout, kv_heads, v_dim, dtype)
