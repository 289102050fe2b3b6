"""The matrix product that takes everything: any dtype, shape, stride and target.

Tensor cores multiply what they have an exact instruction for (mma.sync); lanes multiply and add the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .persistent_matmul import Problem, activated, plus

TILE, DEPTH = 64, 32


def accumulator_dtype(problem: Problem) -> Any:
    """What products are summed in."""
    both = (problem.dtype, problem.b_dtype)
    if not any(dtype.is_float for dtype in both):
        return kd.int64 if max(dtype.itemsize for dtype in both) == 8 else kd.int32
    return kd.float64 if kd.float64 in both else kd.float32


def _on_tensor_cores(p: Problem) -> bool:
    """Whether products of these dtypes, summed in float32 or int32, are exact on tensor cores."""
    sixteen = (kd.float16, kd.bfloat16)
    eight = (kd.float8_e4m3fn, kd.float8_e5m2)
    if p.dtype == p.b_dtype:
        return p.dtype in (*sixteen, *eight, kd.int8, kd.uint8)
    both = {p.dtype, p.b_dtype}
    return both <= {*eight} or (kd.int8 in both and any(dtype in both for dtype in sixteen))


@cache
def fallback_kernel(problem: Problem, activation: Callable[[Any], Any] | None, precision: str | None) -> Any:
    """The kernel `(a, b[, bias][, c]) -> out`."""
    p = problem
    wide = accumulator_dtype(p)

    def body(a: Any, b: Any, *refs: Any) -> None:
        *extra, out = refs
        m, n = kd.program_id(0) * TILE, kd.program_id(1) * TILE
        rows, columns = kd.ds(m, TILE), kd.ds(n, TILE)

        def block(k: Any, depth: int) -> tuple[Any, Any]:
            part = kd.ds(k, depth)
            left = a.at[part, rows].T if p.a_transposed else a.at[rows, part]
            right = b.at[columns, part].T if p.b_transposed else b.at[part, columns]
            return left[...], right[...]  # zeros past the edges

        def by_tensor_cores(step: Any, acc: Any) -> Any:
            return kd.dot(*block(step * DEPTH, DEPTH), acc=acc)

        def by_lanes(k: Any, acc: Any) -> Any:
            left, right = block(k, 1)
            left, right = left.astype(wide), right.astype(wide)
            return kd.fma(left, right, acc) if wide.is_float else left * right + acc

        start = kd.zeros((TILE, TILE), wide)
        if _on_tensor_cores(p):
            total = kd.fori_loop(0, kd.cdiv(p.K, DEPTH), by_tensor_cores, start)
        else:
            total = kd.fori_loop(0, p.K, by_lanes, start)
        x = total
        if p.bias:
            x = plus(x, kd.load(extra[0], (None, columns)))
        if p.accumulate:
            x = plus(x, kd.load(extra[-1], (rows, columns)))
        if activation is not None:
            x = activated(activation, x)
        out[rows, columns] = x.astype(p.out_dtype)

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct((p.M, p.N), p.out_dtype),
        grid=(kd.cdiv(p.M, TILE), kd.cdiv(p.N, TILE)),
        name="matmul_general",
    )
    return made if activation is not None else identified(made, problem)
