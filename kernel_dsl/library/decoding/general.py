"""Decoding for every stride, page size and target. Lanes multiply and add; a block has one head of one sequence."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified
from kernel_dsl.layout import pow2_ceil

from ..attention_forward.sizes import LOG2E, LOWEST
from .problem import DIM, V_DIM, DecodeProblem, MlaProblem

KEYS = 16
MOST = 2**14  # elements of the products of all queries with a step's keys: 128 registers of a lane
LN2 = math.log(2.0)


@cache
def decode_general(problem: DecodeProblem, promise: bool) -> Any:
    """The kernel `(q, k, v, lengths, *extras) -> results`; `promise`: as for `decode_kernel`."""
    p, names = problem, problem.extras
    keys = min(KEYS, MOST // (pow2_ceil(p.dim) * pow2_ceil(p.queries)))

    def body(q: Any, k: Any, v: Any, lengths: Any, *rest: Any) -> None:
        s, results = dict(zip(names, rest, strict=False)), rest[len(names) :]
        batch, head = kd.program_id(0), kd.program_id(1)
        kv_head = kd.div(head, p.group)
        length = p.length(lengths, batch, promise)
        x = q[batch, head].astype(kd.float32)
        query = kd.broadcasted_iota(kd.int32, (p.queries, keys), 0)
        k_scale = p.scale(s, "k", batch, kv_head)
        _, unit = p.scored(kd.float32(0.0), k_scale)

        def taken(source: Any, first: Any) -> Any:
            """Keys or values as float32, zeros beyond the length."""
            key = first + kd.arange(keys)
            there = key < length
            if not p.page:
                found = kd.load(source.at[batch, kv_head], (kd.ds(first, keys), slice(None)), mask=there[:, None])
                return found.astype(kd.float32)
            pages = kd.load(s["page_table"].at[batch], (kd.div(key, p.page),), mask=there)
            bounds = "promise" if promise else None
            index = pages, kd.rem(key, p.page)
            return kd.load(source.at[:, kv_head], index, mask=there[:, None], bounds=bounds).astype(kd.float32)

        def step(block: Any, carry: Any) -> Any:
            top, total, acc = carry
            first = block * keys
            key = first + kd.broadcasted_iota(kd.int32, (p.queries, keys), 1)
            scores, _ = p.scored(kd.sum(x[:, None, :] * taken(k, first)[None], axis=2), k_scale)
            scores = kd.where(p.seen(query, key, length), scores * unit, -math.inf)
            new_top = kd.maximum(top, kd.max(scores, axis=1, keepdims=True))
            weights, fade = kd.exp2(scores - new_top), kd.exp2(top - new_top)
            acc = acc * fade + kd.sum(weights[:, :, None] * taken(v, first)[None], axis=1)
            return new_top, total * fade + kd.sum(weights, axis=1, keepdims=True), acc

        one = (p.queries, 1)
        start = (kd.full(one, LOWEST, kd.float32), kd.zeros(one, kd.float32), kd.zeros((p.queries, p.dim), kd.float32))
        blocks = kd.div(p.first_key(length), keys), kd.cdiv(length, keys)
        top, total, acc = kd.fori_loop(*blocks, step, start)
        value = kd.where(total == 0, 0.0, acc / total) * p.scale(s, "v", batch, kv_head)
        results[0][batch, head] = value.astype(p.dtype)
        if p.lse:
            results[1][batch, head] = kd.where(total == 0, -math.inf, (top + kd.log2(total)) * LN2)[:, 0]

    how = kd.CompilerParams(max_registers=255)  # as for `attention_general`
    made = kd.kernel(body, out_type=p.out_type, grid=(p.batch, p.heads), compiler_params=how, name="decode_general")
    return identified(made, problem, promise)


@cache
def mla_general(problem: MlaProblem, promise: bool) -> Any:
    """The kernel `(q, cache, lengths, page_table) -> results`; a block has one head of one query."""
    p = problem

    def body(q: Any, cache: Any, lengths: Any, page_table: Any, *results: Any) -> None:
        unit, head = kd.program_id(0), kd.program_id(1)
        batch, query = kd.div(unit, p.queries), kd.rem(unit, p.queries)
        keys = p.keys(lengths, unit, promise)
        x = q[batch, query, head].astype(kd.float32)
        place, lse_place = p.places(unit, head)

        def taken(first: Any, width: int) -> Any:
            """Keys, or the values in them, as float32; zeros beyond the last one."""
            key = first + kd.arange(KEYS)
            pages = kd.load(page_table.at[batch], (kd.div(key, p.page),), mask=key < keys)
            index, bounds = (pages, kd.rem(key, p.page), slice(0, width)), "promise" if promise else None
            return kd.load(cache, index, mask=(key < keys)[:, None], bounds=bounds).astype(kd.float32)

        def step(block: Any, carry: Any) -> Any:
            top, total, acc = carry
            first = block * KEYS
            scores = kd.sum(x[None] * taken(first, DIM), axis=1) * (p.scale * LOG2E)
            scores = kd.where(first + kd.arange(KEYS) < keys, scores, -math.inf)
            new_top = kd.maximum(top, kd.max(scores))
            weights, fade = kd.exp2(scores - new_top), kd.exp2(top - new_top)
            acc = acc * fade + kd.sum(weights[:, None] * taken(first, V_DIM), axis=0)
            return new_top, total * fade + kd.sum(weights), acc

        start = (kd.float32(LOWEST), kd.float32(0.0), kd.zeros((V_DIM,), kd.float32))
        top, total, acc = kd.fori_loop(0, kd.cdiv(keys, KEYS), step, start)
        results[0][place] = kd.where(total == 0, 0.0, acc / total).astype(p.dtype)
        if p.lse:
            results[1][lse_place] = kd.where(total == 0, -math.inf, (top + kd.log2(total)) * LN2)

    made = kd.kernel(body, out_type=p.out_type, grid=(p.units, p.heads), name="mla_general")
    return identified(made, problem, promise)
