"""Small problems of attention: smaller tiles, and of few queries over many keys several tiles that share the keys of a head.

A second kernel combines the results of those.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .attention_kernel import (
    LOG2E,
    ROWS,
    AttentionConfig,
    AttentionProblem,
    attention_kernel,
    blocks_together,
    default_config,
)
from .attention_opened import plain_plan
from .latest import UNSEEN

FEW = 8  # tiles a multiprocessor, below which other tiles than `default_config`'s are considered
# configurations with what a step and a tile take, in microseconds of one NVIDIA H200, up to a head dimension of 64 and of 128
SMALL = {
    64: (
        (AttentionConfig(3, 128, 3, turns=True), 1.36, 1.36),
        (AttentionConfig(4, 64, 3, turns=True), 0.99, 0.63),
        (AttentionConfig(2, 128, 3, turns=True), 1.14, 0.69),
        (AttentionConfig(1, 128, 2), 1.10, 0.70),
    ),
    128: (
        (AttentionConfig(3, 80, 3), 1.08, 3.20),
        (AttentionConfig(2, 128, 2), 1.18, 2.60),
        (AttentionConfig(1, 64, 2), 0.76, 2.00),
    ),
}
LEAST = 8  # blocks of keys of a part: what combining costs is little beside them
LINES = 16  # queries that a block combines


def splits_of(p: AttentionProblem, t: AttentionConfig, multiprocessors: int) -> int:
    """How many tiles share a head's keys: as many as there are multiprocessors for, where each has enough of them."""
    tiles = p.batch * p.heads * kd.cdiv(p.queries, ROWS * t.consumers)
    if p.causal or not tiles:
        return 1
    return max(min(multiprocessors // tiles, kd.cdiv(p.keys, t.block_kv) // LEAST), 1)


def small_config(p: AttentionProblem, multiprocessors: int) -> AttentionConfig:
    """`default_config`'s where tiles are many; else the one whose rounds of tiles are estimated to end first."""
    default = default_config(p)
    choices = SMALL.get(p.dim)
    if choices is None or p.batch * p.heads * kd.cdiv(p.queries, ROWS * default.consumers) >= FEW * multiprocessors:
        return default

    def time(t: AttentionConfig, step: float, tile: float) -> float:
        splits = splits_of(p, t, multiprocessors)
        tiles = p.batch * p.heads * kd.cdiv(p.queries, ROWS * t.consumers) * splits
        steps = kd.cdiv(kd.cdiv(p.keys, t.block_kv), splits)
        rounds = kd.cdiv(tiles, multiprocessors * blocks_together(p.dim, t))
        return rounds * (tile + step * (steps + 1) / 2 if p.causal else tile + step * steps)

    return min(choices, key=lambda choice: time(*choice))[0]


@cache
def combine_kernel(splits: int, heads: int, dim: int, dtype: Any, with_lse: bool) -> Any:
    """The kernel `(parts, logs) -> out` or `-> (out, lse)`, of any batch and number of queries.

    parts (batch, heads * splits, queries, dim), logs float32 (batch, heads * splits, queries).
    """

    def body(parts: Any, logs: Any, out: Any, *lse: Any) -> None:
        unit, rows = kd.program_id(0), kd.ds(kd.program_id(1) * LINES, LINES)
        batch, head = kd.div(unit, heads), kd.rem(unit, heads)
        each = [kd.load(logs, (batch, head * splits + n, rows), fill=0.0) for n in range(splits)]
        top = each[0]
        for log in each[1:]:
            top = kd.maximum(top, log)
        weights = [kd.exp2((log - top) * LOG2E) for log in each]
        total = sum(weights[1:], weights[0])
        value = kd.zeros((LINES, dim), kd.float32)
        for n, weight in enumerate(weights):
            part = parts[batch, head * splits + n, rows].astype(kd.float32)
            value = kd.fma(part, (weight / total)[:, None], value)
        out[batch, head, rows] = value.astype(dtype)
        if with_lse:
            lse[0][batch, head, rows] = top + kd.log2(total) * (1.0 / LOG2E)

    def out_type(parts: Any, logs: Any) -> Any:
        batch, _, queries, _ = parts.shape
        made = kd.ShapeDtypeStruct((batch, heads, queries, dim), dtype)
        return (made, kd.ShapeDtypeStruct((batch, heads, queries), kd.float32)) if with_lse else made

    def grid(parts: Any, *_: Any) -> tuple[int, int]:
        return parts.shape[0] * heads, kd.cdiv(parts.shape[2], LINES)

    made = kd.kernel(body, out_type=out_type, grid=grid, name="attention_combine")
    return identified(made, splits, heads, dim, dtype, with_lse)


@dataclass(frozen=True)
class SplitPlan:
    """The kernels of a problem whose keys are shared."""

    parts: Any
    combine: Any

    def __call__(self, q: Any, k: Any, v: Any, *, out: Any = None, **how: Any) -> Any:
        return self.combine(*self.parts(q, k, v, **how), out=out, **how)

    def lower(self, q: Any, k: Any, v: Any, target: str | None = None) -> Any:
        """The stages of the kernel that computes parts."""
        return self.parts.lower(q, k, v, target=target)

    def seen(self, args: Any, out: Any, stream: Any) -> Any:
        """Nothing: two kernels are launched as they are the first time."""
        return UNSEEN


def split_plan(p: AttentionProblem, config: AttentionConfig, multiprocessors: int, closed: bool) -> Any:
    """The plan of a problem without options, whose keys are shared where that makes work for all multiprocessors.

    `closed`: of these sizes alone.
    """
    splits = splits_of(p, config, multiprocessors)
    inner = p if splits == 1 else replace(p, splits=splits, lse=True)
    plan = (attention_kernel if closed else plain_plan)(inner, config, multiprocessors)
    return plan if splits == 1 else SplitPlan(plan, combine_kernel(splits, p.heads, p.dim, p.dtype, p.lse))
