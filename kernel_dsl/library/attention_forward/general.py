"""Attention for every float dtype, head dimension, stride, option and target. Lanes multiply and add."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified
from kernel_dsl.layout import pow2_ceil

from .captured import reading
from .opened import at_launch, declared, lines_of
from .pages import gathered
from .problem import ScoredProblem, ScorePlace, ragged_tiles
from .sizes import LOWEST

ROWS, KEYS = 4, 16
MOST = 200  # registers of a lane for a block's products, queries, keys and sums; a block has fewer keys for that


def general_extras(p: ScoredProblem) -> list[str]:
    """Names of the arrays after q, k and v that the kernel takes."""
    return p.extras + ["table"] * p.ragged


def _keys_at_once(p: ScoredProblem, wide: Any) -> int:
    """The number of keys of a step."""
    keys, row = KEYS, ROWS * pow2_ceil(max(p.dim, p.v_dim)) * wide.itemsize // 512
    while keys > 1 and (keys + 3) * row > MOST:
        keys //= 2
    return keys


@cache
def attention_general(problem: ScoredProblem, promise: bool = False) -> Any:
    """The kernel `(q, k, v, *extras) -> out` or `-> (out, lse)`; `general_extras` names the arrays between.

    `promise`: all page numbers are in the cache; the interpreter checks it.
    """
    p, names = problem, general_extras(problem)
    wide = kd.float64 if p.dtype == kd.float64 else kd.float32
    block_kv = _keys_at_once(p, wide)

    def body(q: Any, k: Any, v: Any, *rest: Any) -> None:
        s, (out, *lse) = dict(zip(names, rest, strict=False)), rest[len(names) :]
        here = at_launch(problem, q, k, s.get("page_table")) if problem.opened else problem
        with reading(s):
            compute(here, q, k, v, out, lse, s)

    def compute(p: ScoredProblem, q: Any, k: Any, v: Any, out: Any, lse: Any, s: dict[str, Any]) -> None:
        place = ScorePlace.of(p, kd.program_id(0), kd.program_id(1), s)
        batch, head, kv_head = place.batch, place.head, kd.div(place.head, p.heads // p.kv_heads)
        first = place.number * ROWS
        rows = kd.ds(place.q_row + first, ROWS)
        scale: Any = p.scale
        for name in p.scales.replace("v", ""):
            scale = scale * p.scale_of(s[f"{name}_scale"], name, batch, kv_head)
        x = q[p.rows(batch, head, rows)].astype(wide) * scale
        query = first + kd.broadcasted_iota(kd.int32, (ROWS, block_kv), 0)

        def step(block: Any, carry: Any) -> Any:
            top, total, acc = carry

            keys = (
                block * block_kv + kd.arange(block_kv) if p.cache else kd.ds(place.k_row + block * block_kv, block_kv)
            )

            def taken(x: Any) -> Any:
                if p.cache:
                    return gathered(p, s, x, (batch, kv_head), keys, place.keys, promise).astype(wide)
                return x[p.key_rows(batch, kv_head, keys)].astype(wide)

            key = block * block_kv + kd.broadcasted_iota(kd.int32, (ROWS, block_kv), 1)
            here = batch, head, query, key
            scores = kd.sum(x[:, None, :] * taken(k)[None], axis=2)
            tile = kd.ds(first, ROWS), kd.ds(block * block_kv, block_kv)
            scores = p.score.scores(scores, 1.0, lambda: p.bias_tile(s["bias"], (batch, head), *tile), here)
            if p.score.softcap is not None and not p.score.natural:
                scores = scores * p.score.softcap
            scores = kd.where(p.score.seen(here, place.queries, place.keys), scores, -math.inf)
            new_top = kd.maximum(top, kd.max(scores, axis=1, keepdims=True))
            weights = kd.exp(scores - new_top)
            fade = kd.exp(top - new_top)
            values = taken(v)
            if p.ragged and not p.cache:  # rows of other sequences may be infinite
                there = block * block_kv + kd.broadcasted_iota(kd.int32, values.shape, 0) < place.keys
                values = kd.where(there, values, 0.0)
            acc = acc * fade + kd.sum(weights[:, :, None] * values[None], axis=1)
            return new_top, total * fade + kd.sum(weights, axis=1, keepdims=True), acc

        start = (kd.full((ROWS, 1), LOWEST, wide), kd.zeros((ROWS, 1), wide), kd.zeros((ROWS, p.v_dim), wide))
        top, total, acc = kd.fori_loop(*place.blocks(p, first, ROWS, block_kv), step, start)
        if p.score.sinks:
            sink = s["sinks"][head].astype(wide)
            highest = kd.maximum(top, sink)
            fade = kd.exp(top - highest)
            top, total, acc = highest, total * fade + kd.exp(sink - highest), acc * fade
        acc = kd.where(total == 0, 0.0, acc / total)
        if "v" in p.scales:
            acc = acc * p.scale_of(s["v_scale"], "v", batch, kv_head)
        there = first + kd.arange(ROWS) < place.queries if p.ragged else None
        kd.store(
            out, p.rows(batch, head, rows), acc.astype(p.out_dtype), mask=None if there is None else there[:, None]
        )
        if p.lse:
            logs = kd.where(total == 0, -math.inf, top + kd.log(total)).astype(kd.float32)[:, 0]
            kd.store(lse[0], p.lse_rows(batch, head, rows), logs, mask=there)

    out_type: Any = kd.ShapeDtypeStruct(p.out_shape, p.out_dtype)
    if p.lse:
        out_type = (out_type, kd.ShapeDtypeStruct(p.lse_shape, kd.float32))
    lines: Any = lines_of(p) if p.opened else ragged_tiles(p, ROWS)
    grid: Any = (p.heads, lines) if p.ragged else (p.batch * p.heads, kd.cdiv(p.queries, ROWS))
    shapes = declared(p, names, first=3) if p.opened else None
    how = kd.CompilerParams(max_registers=255)  # else the assembler spills a few, so that more blocks run at once
    made = kd.kernel(body, out_type=out_type, grid=grid, shapes=shapes, compiler_params=how, name="attention_general")
    return made if p.score.has_functions else identified(made, problem, promise)
