"""The matrix product that takes everything: any dtype, shape, stride and target. Lanes multiply and add."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import kernel_dsl as kd

from .persistent_matmul import Problem

TILE = 64


def accumulator_dtype(problem: Problem) -> Any:
    """What products are summed in."""
    if not problem.b_dtype.is_float and not problem.dtype.is_float:
        return kd.int64 if problem.dtype.itemsize == 8 else kd.int32
    return kd.float64 if problem.dtype == kd.float64 else kd.float32


@cache
def fallback_kernel(problem: Problem, activation: Callable[[Any], Any] | None, precision: str | None) -> Any:
    """The kernel `(a, b[, bias][, c]) -> out`."""
    p = problem
    wide = accumulator_dtype(p)

    def body(a: Any, b: Any, *refs: Any) -> None:
        *extra, out = refs
        m, n = kd.program_id(0) * TILE, kd.program_id(1) * TILE
        rows, columns = kd.ds(m, TILE), kd.ds(n, TILE)

        @kd.loop(0, p.K, init_carry=kd.zeros((TILE, TILE), wide))
        def total(k: Any, acc: Any) -> Any:
            one = kd.ds(k, 1)
            left = a.at[one, rows].T if p.a_transposed else a.at[rows, one]
            right = b.at[columns, one].T if p.b_transposed else b.at[one, columns]
            x, y = left[...].astype(wide), right[...].astype(wide)
            return kd.fma(x, y, acc) if wide.is_float else x * y + acc

        x = total
        if p.bias:
            x = x + kd.load(extra[0], (None, columns)).astype(wide)
        if p.accumulate:
            x = x + kd.load(extra[-1], (rows, columns)).astype(wide)
        if activation is not None:
            x = activation(x)
        out[rows, columns] = x.astype(p.out_dtype)

    return kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct((p.M, p.N), p.out_dtype),
        grid=(kd.cdiv(p.M, TILE), kd.cdiv(p.N, TILE)),
        name="matmul_general",
    )
