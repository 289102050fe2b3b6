"""Combines the results of parts of the keys, always in the same order."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .attention_kernel import LOG2E
from .decode_problem import DecodeProblem, MlaProblem

TOGETHER = 64  # parts that are loaded at once, at most: each round waits twice for memory


@cache
def decode_combine(problem: DecodeProblem | MlaProblem, splits: int, columns: int) -> Any:
    """The kernel `(parts,) -> results`: float32 (key heads, splits, rows, columns + `SUMS`), as `parts_type` says.

    A part with a logarithm of -inf has no keys and is not read. The launch overlaps with the end of the kernel before it.
    """
    p = problem
    together = min(1 << (splits - 1).bit_length(), TOGETHER)

    def body(parts: Any, *results: Any) -> None:
        unit, row = kd.program_id(0), kd.program_id(1)
        place, lse_place = p.places(unit, row)
        kd.griddepcontrol_wait()
        logs = parts[unit, :, row, columns]
        top = kd.max(logs)
        some = top > -math.inf
        total = kd.where(some, kd.log2(kd.sum(kd.exp2(logs - kd.where(some, top, 0.0)))) + top, -math.inf)
        base = kd.where(some, total, 0.0)

        def add(number: Any, acc: Any) -> Any:
            here = kd.ds(number * together, together)
            log = kd.load(parts.at[unit, :, row, columns], (here,), fill=-math.inf)
            weights = kd.exp2(log - base)[:, None]
            x = kd.load(parts.at[unit, :, row], (here, kd.ds(0, columns)), mask=weights > 0)
            return acc + kd.sum(x * weights, axis=0)

        value = kd.fori_loop(0, kd.cdiv(splits, together), add, kd.zeros((columns,), kd.float32))
        results[0][place] = value.astype(p.dtype)
        if p.lse:
            results[1][lse_place] = total * (1.0 / LOG2E)

    made = kd.kernel(body, out_type=p.out_type, grid=(p.units, p.rows), name="decode_combine")
    return identified(made, problem, splits, columns)
