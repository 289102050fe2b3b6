"""Combines the results of parts of the keys, in a fixed order."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified
from kernel_dsl.layout import pow2_ceil

from ..attention_forward.sizes import LOG2E
from .problem import SUMS, DecodeProblem, MlaProblem

TOGETHER = 8192  # elements of parts that are loaded together: each round waits twice for memory
LOGS = 1024  # logarithms that are loaded together


@cache
def decode_combine(problem: DecodeProblem | MlaProblem, columns: int) -> Any:
    """The kernel `(parts,) -> results`: float32 (key heads, splits, rows, columns + `SUMS`), as in `parts_type`.

    `problem`: the problem without the sizes that calls change. A part with a logarithm of -inf has no keys and is not
    read. The launch overlaps with the end of the kernel before it.
    """
    p = problem
    together = TOGETHER // pow2_ceil(columns)

    def body(parts: Any, *results: Any) -> None:
        unit, row = kd.program_id(0), kd.program_id(1)
        splits = parts.shape[1]
        place, lse_place = p.places(unit, row)

        def logs(number: Any, count: int) -> Any:
            return kd.load(parts.at[unit, :, row, columns], (kd.ds(number * count, count),), fill=-math.inf)

        def rest(fold: Any, first: Any) -> Any:
            return kd.fori_loop(1, kd.cdiv(splits, LOGS), lambda i, carry: fold(carry, logs(i, LOGS)), first)

        kd.griddepcontrol_wait()
        first = logs(0, LOGS)
        top = rest(lambda most, x: kd.maximum(most, kd.max(x)), kd.max(first))
        some = top > -math.inf
        below = kd.where(some, top, 0.0)
        weight = rest(lambda total, x: total + kd.sum(kd.exp2(x - below)), kd.sum(kd.exp2(first - below)))
        total = kd.where(some, kd.log2(weight) + top, -math.inf)
        base = kd.where(some, total, 0.0)

        def add(number: Any, acc: Any) -> Any:
            weights = kd.exp2(logs(number, together) - base)[:, None]
            here = kd.ds(number * together, together), kd.ds(0, columns)
            x = kd.load(parts.at[unit, :, row], here, mask=weights > 0)
            return acc + kd.sum(x * weights, axis=0)

        value = kd.fori_loop(0, kd.cdiv(splits, together), add, kd.zeros((columns,), kd.float32))
        results[0][place] = value.astype(p.dtype)
        if p.lse:
            results[1][lse_place] = total * (1.0 / LOG2E)

    shapes: dict[int, Any] = {0: (kd.Dim("units"), kd.Dim("splits", max=2**20), p.rows, columns + SUMS)}
    for number, one in enumerate(p.out_type if p.lse else (p.out_type,)):
        shapes[1 + number] = (kd.Dim("batch"), *one.shape[1:])
    made = kd.kernel(
        body,
        out_type=lambda parts: replace(p, batch=parts.shape[0] // p.units).out_type,
        grid=lambda parts: (parts.shape[0], p.rows),
        shapes=shapes,
        name="decode_combine",
    )
    return identified(made, problem, columns)
