"""Sizes of the walk of attention's backward with options: what it computes of a problem, in which steps, from which arrays."""

from __future__ import annotations

from typing import Any

import kernel_dsl as kd

from ..attention_forward.opened import lines_of
from ..attention_forward.problem import ScoredProblem, ragged_tiles
from ..attention_forward.sizes import ROWS, AttentionProblem
from .order import KEYS, AttentionBackwardConfig, one_block


def padded_dims(p: ScoredProblem) -> tuple[int, int]:
    """The computed head dimensions of keys and of values; elements beyond an array's own are zeros."""
    least = [max(p.dim, p.v_dim)] * 2 if keys_of(p) == KEYS else [max(p.dim, KEYS), p.v_dim]
    dim, v_dim = (next((n for n in (64, 128, 192) if n >= own), 256) for own in least)
    return dim, v_dim


def keys_of(p: ScoredProblem) -> int:
    """Keys of a block: beyond a dimension of 128 their gradients take all registers of both consumers."""
    return KEYS if max(p.dim, p.v_dim) <= KEYS else ROWS


def heavy(p: ScoredProblem) -> bool:
    """Whether scores are more than scaled products, so that their slopes take registers."""
    return p.score.softcap is not None or p.score.natural


def keeps_bias(p: ScoredProblem) -> bool:
    """Whether each element of a bias belongs to one score, so that the walk stores the bias' gradient."""
    full = p.score.bias == (p.batch, p.heads, p.queries, p.keys)
    return full and p.score.softcap is None and keys_of(p) == KEYS


def has_all_steps(p: ScoredProblem) -> bool:
    """Whether all blocks of a head have the same steps, at the most without the first ones: else some may be in no block."""
    score = p.score
    return score.causal != "bottom_right" and score.window is None and score.mask_mod is None and not p.ragged


def stores_queries(p: ScoredProblem) -> bool:
    """Whether each step is in one block alone, which stores the gradient of its queries."""
    return has_all_steps(p) and one_block(p, keys_of(p))


def in_order(p: ScoredProblem, t: AttentionBackwardConfig) -> bool:
    """Whether blocks that add in turn are in no other's way, as `WalkOrder` says.

    Where scores are more than scaled products, or masked in a kernel for any sizes of the widest heads, the places of such
    steps would take registers that are in use.
    """
    tight = heavy(p) or p.score.bias is not None or (p.opened and bool(p.score.causal) and max(padded_dims(p)) > 192)
    return t.in_turn and has_all_steps(p) and not (stores_queries(p) or tight)


def inner_problem(p: ScoredProblem) -> AttentionProblem:
    """The problem without options, for the walk."""
    sizes = p.batch, p.heads, p.kv_heads, p.queries, p.keys, padded_dims(p)[0]
    return AttentionProblem(*sizes, p.dtype, False, p.scale, False, alone=p.alone)


def steps_of(p: ScoredProblem, t: AttentionBackwardConfig) -> Any:
    """The number of steps of queries of a head. With ragged lengths, each sequence begins with a new step."""
    if p.opened and p.ragged:
        return lines_of(p)  # of their table
    return ragged_tiles(p, t.block_q) if p.ragged else kd.cdiv(p.queries, t.block_q)


def query_steps(p: ScoredProblem, rows: int) -> list[int]:
    """The steps of `rows` queries that see some of the keys of each block of a key head, ignoring `mask_mod`."""
    shift = p.keys - p.queries if p.score.causal == "bottom_right" else 0
    window, found = p.score.window, list[int]()
    for first in range(0, p.keys, keys_of(p)):
        last, end = min(first + keys_of(p), p.keys) - 1, p.queries
        begin = max(first - shift, 0) if p.score.causal else 0 if window is None else max(first - window + 1, 0)
        if window is not None:
            end = max(min(last - shift + window, p.queries), 0)
        count = -(-end // rows) - begin // rows if end > begin else 0
        found.append(count * (p.heads // p.kv_heads))
    return found


def first_step(p: ScoredProblem, t: AttentionBackwardConfig, place: Any) -> Any:
    """The number of a sequence's first step among those of all sequences."""
    return kd.div(place.q_row, t.block_q) + place.batch if p.ragged else 0


def whole_units(count: Any, itemsize: int) -> bool:
    """Whether rows of this many elements are whole units of 16 bytes, which TMA asks for: known of a Dim by its divisor."""
    known = count.multiple_of if isinstance(count, kd.Dim) else count
    return known * itemsize % 16 == 0


def walk_extras(p: ScoredProblem, listed: bool) -> list[str]:
    """Names of the arrays after q, k, v, dout and stats; `table` is that of the keys, lists and order are those of the mask."""
    names = ["bias"] * (p.score.bias is not None) + p.score.captured + ["q_seqlens", "kv_seqlens", "table"] * p.ragged
    return names + ["blocks", "counts"] * listed + ["order"] * (listed and not p.ragged)


def list_entry(lists: Any, where: tuple[Any, ...], number: Any) -> tuple[Any, Any]:
    """(the block, whether all of it is seen) of a list."""
    entry = lists[(*where, number)]
    return kd.div(entry, 2), kd.rem(entry, 2) == 1
