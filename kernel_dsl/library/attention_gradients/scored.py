"""The gradients of attention with options on Hopper, and the small kernels before and after.

Functions of scores and masks work on registers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified
from kernel_dsl.layout import pow2_ceil

from ..attention_forward.opened import at_launch, declared
from ..attention_forward.problem import ScoredProblem, ScorePlace
from ..attention_forward.sizes import LOG2E, AttentionProblem
from ..part_sums import loads_first
from .consumers import narrow_consumers, wide_consumers
from .ends import ELEMENTS, SUMMED, centre, sum_of_splits, with_second
from .order import (
    CONSUMERS,
    EIGHT,
    FIXED,
    KEYS,
    AttentionBackwardConfig,
    end_with_tail,
    first_stores,
    has_tail,
    makespan,
    narrow_config,
    of_steps,
    shared_by,
    staying_config,
    summing,
    tail_of,
)
from .scored_sizes import (
    first_step,
    heavy,
    in_order,
    inner_problem,
    keys_of,
    padded_dims,
    query_steps,
    steps_of,
)
from .scored_walk import ScoredWalk

SPLITS = 1, 2, 4, 8, 12, 16
STEP = 64  # queries of a step, for estimates
FREE = 200  # registers for accumulators and left operands


def scored_backward_config(
    p: ScoredProblem, multiprocessors: int, in_turn: bool, linear: bool = False, opened: bool = False
) -> AttentionBackwardConfig:
    """A configuration with as many queries a step as registers allow, and enough splits for blocks on all
    multiprocessors.

    `linear`: `score_mod` adds something linear. `opened`: the kernel takes any sizes, which need registers.
    """
    if as_without_options(p) and not (p.score.causal or in_turn):
        staying = staying_config(p, padded_dims(p), multiprocessors)
        if staying is not None:
            return staying
    keys = keys_of(p)
    blocks = p.batch * p.kv_heads * kd.cdiv(p.keys, keys)
    config = _scored_config(p, blocks, multiprocessors, in_turn, linear, opened)
    steps = kd.cdiv(p.queries, config.block_q) * (p.heads // p.kv_heads)
    rounds = kd.cdiv(blocks, multiprocessors) * (steps + FIXED)
    shares = blocks > 4 * multiprocessors and has_tail(steps)
    if as_without_options(p) and not p.score.causal:  # the last blocks of a causal mask are short
        shares = shares or end_with_tail(blocks, steps, multiprocessors) < rounds
    # the places of parts, beside a bias of the widest heads, spill
    refused = in_turn or config.splits > 1 or (max(padded_dims(p)) > 192 and p.score.bias is not None)
    return replace(config, tail=tail_of(blocks, multiprocessors)) if shares and not refused else config


def _scored_config(
    p: ScoredProblem, blocks: int, multiprocessors: int, in_turn: bool, linear: bool, opened: bool
) -> AttentionBackwardConfig:
    """As `scored_backward_config`, for so many blocks, which share no keys at the end."""
    dim = max(padded_dims(p))
    splits = 1 if p.ragged or blocks >= multiprocessors else _splits(p, blocks, multiprocessors)
    alike = as_without_options(p)
    plain = alike and not in_turn
    if plain:
        splits = max(splits, shared_by(p, dim, bool(p.score.causal)))
    first = plain and first_stores(p, AttentionBackwardConfig(64), bool(p.score.causal), True)  # if `dim` is beyond 128
    if dim > 192:
        tight = opened and splits > 1 and p.score.bias is not None
        parts, slots = (2, 1) if in_turn or p.ragged or tight else (4, 3 if heavy(p) else 2)
        return AttentionBackwardConfig(
            64, dout_stages=1, dq_parts=parts, dq_slots=slots, in_turn=in_turn, splits=splits, stores_first=first
        )
    if dim > KEYS:
        return AttentionBackwardConfig(64, in_turn=in_turn, splits=splits, stores_first=first)
    score = p.score
    if alike and dim == KEYS:
        return replace(narrow_config(like_plain(p)), splits=splits, in_turn=in_turn)
    several = (score.softcap is not None) + (score.score_mod is not None) + (score.bias is not None)
    if several == 1 and score.mask_mod is None and not (in_turn and p.ragged):  # one option leaves enough registers
        if score.bias_tiles is not None and score.bias_tiles.itemsize == 2:  # the bias takes SMEM
            rows = 48 if in_turn and opened else 64
            config = (
                AttentionBackwardConfig(rows, dout_stages=3)
                if dim == KEYS
                else AttentionBackwardConfig(128, apart=True)
            )
            return replace(config, in_turn=in_turn, splits=splits)
        if linear and dim < KEYS:
            return AttentionBackwardConfig(96, in_turn=in_turn, splits=splits)
        if score.softcap is not None and dim == KEYS and changes_heads(p):
            rows = 32 if score.causal and score.window is not None else 64
            return AttentionBackwardConfig(rows, apart=True, in_turn=in_turn, splits=splits)
        if linear or score.softcap is not None:
            tight = p.ragged or (opened and in_turn and score.softcap is not None)
            rows = 48 if dim == KEYS and score.causal and tight else 64
            return AttentionBackwardConfig(rows, stages=3, dout_stages=3, in_turn=in_turn, splits=splits)
    if heavy(p):  # slopes take as many registers as scores: one product at a time
        rows = 64
        if dim == KEYS and in_turn and p.ragged:  # a fourth warpgroup leaves fewer registers
            rows = 32
        elif dim == KEYS and score.bias is not None and changes_heads(p):
            rows = 32  # two steps have the 64 queries
        elif dim == KEYS and score.bias is not None and (opened or score.softcap is not None):
            rows = 48
        return AttentionBackwardConfig(rows, apart=True, in_turn=in_turn, splits=splits)
    if dim == KEYS:
        # queries that are narrower than their tiles, beside a fourth warpgroup, leave fewer registers
        tight = in_turn and p.ragged and p.dim < KEYS
        ends = score.window is not None and score.causal == "bottom_right" and changes_heads(p)
        rows = 48 if (tight and p.dim <= 64) or ends else 64
        apart = tight and rows == 64  # as fast as together
        return AttentionBackwardConfig(rows, stages=3, dout_stages=3, apart=apart, in_turn=in_turn, splits=splits)
    masked = bool(score.causal) or score.window is not None or score.mask_mod is not None
    rows = 64 if p.queries <= 64 else 96 if in_turn and p.ragged and masked else 128
    return AttentionBackwardConfig(rows, in_turn=in_turn, splits=splits)


def as_without_options(p: ScoredProblem) -> bool:
    """Whether scores are only scaled, and masks are those that kernels without options have."""
    score = p.score
    return not (heavy(p) or p.ragged or p.opened or score.mask_mod or score.window) and score.causal != "bottom_right"


def changes_heads(p: ScoredProblem) -> bool:
    """Whether each step of 64 queries is of another head, whose place takes registers."""
    return p.queries <= 64 and p.heads > p.kv_heads and not p.ragged


def like_plain(p: ScoredProblem) -> AttentionProblem:
    """The problem without options that takes as many steps."""
    return replace(inner_problem(p), causal=bool(p.score.causal))


def _splits(p: ScoredProblem, blocks: int, multiprocessors: int) -> int:
    """How many blocks share the steps of the same keys, where these are fewer `blocks` than multiprocessors.

    With few steps of many keys, the sums of parts take longer than idle multiprocessors do.
    """
    counts = query_steps(p, STEP)
    most = next((n for n in SPLITS if blocks * n >= multiprocessors), SPLITS[-1])

    def end_of(splits: int) -> float:
        """The end of the last block, in steps, plus the cost of summing several parts."""
        lengths = [-(-n // splits) + FIXED for n in counts for _ in range(splits)]
        heads = p.batch * p.kv_heads
        return makespan(lengths, heads, heads, multiprocessors) + summing(splits, p, p.v_dim)

    return min((n for n in SPLITS if n <= most), key=end_of)


@cache
def scored_backward_kernel(
    problem: ScoredProblem,
    config: AttentionBackwardConfig,
    multiprocessors: int,
    listed: bool,
    bias_dtype: Any = None,
) -> Any:
    """The kernel `(q, k, v, dout, stats, *extras) -> (dk, dv, dq_sum)`; `walk_extras` names the arrays between.

    With a `bias_dtype` the gradient of the bias in that dtype follows.
    """
    walk, dim = ScoredWalk(problem, config, multiprocessors, listed, bias_dtype), padded_dims(problem)[0]
    if keys_of(problem) == KEYS:
        made = walk.kernel(partial(narrow_consumers, dim=dim, free=FREE), name="attention_backward_scored")
    else:
        tight = dim > 192 and heavy(problem)  # functions of scores need the registers
        made = walk.kernel(partial(wide_consumers, dim=dim, tight=tight), name="attention_backward_scored_wide")
    return (
        made if problem.score.has_functions else identified(made, problem, config, multiprocessors, listed, bias_dtype)
    )


def _step_grid(p: ScoredProblem, t: AttentionBackwardConfig) -> tuple[int, int]:
    return p.heads * (1 if p.ragged else p.batch), steps_of(p, t)


def _row_shapes(
    p: ScoredProblem, names: list[str], first: int, more: dict[int, tuple[Any, ...]]
) -> dict[int, tuple[Any, ...]] | None:
    """`shapes=` of a kernel for any sizes. Its parameters from number `first` on are the arrays with these names."""
    if not p.opened:
        return None
    # k and v are not among the arrays
    found = {n - 3 + first: shape for n, shape in declared(p, names, first=3).items() if n > 2}
    if first == 3:  # out, dout and lse come before
        rows = p.shape(p.heads, p.queries, p.v_dim)
        found |= {0: rows, 1: rows, 2: p.lse_shape}
    elif names[0] == "q":
        found[first] = p.shape(p.heads, p.queries, p.dim)
    return found | more


@cache
def scored_stats_kernel(problem: ScoredProblem, config: AttentionBackwardConfig, takes_dlse: bool) -> Any:
    """The kernel `(out, dout, lse, *lengths) -> stats`: as `stats_kernel`, for whole steps; with ragged lengths, stats
    have a batch of 1. If the kernel `takes_dlse`, dlse is before the lengths.
    """
    m, names = config.block_q, ["dlse"] * takes_dlse + ["q_seqlens", "kv_seqlens", "table"] * problem.ragged
    heads, steps = _step_grid(problem, config)
    height = math.gcd(m, ELEMENTS // pow2_ceil(problem.v_dim))  # few rows a block: short problems have few steps
    pieces = m // height

    def body(out: Any, dout: Any, lse: Any, *rest: Any) -> None:
        p = at_launch(problem, dout, dout, None) if problem.opened else problem
        s, stats = dict(zip(names, rest, strict=False)), rest[-1]
        number = kd.program_id(1)
        place = ScorePlace.of(p, kd.program_id(0), kd.div(number, pieces), s)
        row = kd.rem(number, pieces) * height
        first = place.number * m + row
        rows = kd.ds(place.q_row + first, height)
        here = p.rows(place.batch, place.head, rows)
        products = out[here].astype(kd.float32) * dout[here].astype(kd.float32)
        logs = p.lse_rows(place.batch, place.head, rows)
        total = kd.load(lse, logs, fill=-math.inf)
        there = first + kd.arange(height) < place.queries
        these = kd.ds((first_step(p, config, place) + place.number) * m + row, height)
        where = 0 if p.ragged else place.batch
        used = place.queries > 0 if p.ragged else None  # extra lines of the table have no steps
        negative = kd.where(there & (total != -math.inf), total * -LOG2E, -math.inf)
        kd.store(stats, (where, place.head, 0, these), negative, mask=used)
        delta = centre(kd.sum(products, axis=1), total, s.get("dlse"), logs)
        kd.store(stats, (where, place.head, 1, these), kd.where(there, delta, 0.0), mask=used)

    p = problem
    shape = (1 if p.ragged else p.batch, p.heads, 2, steps * m)
    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(shape, kd.float32),
        grid=(heads, steps * pieces),
        shapes=_row_shapes(p, names, 3, {3 + len(names): (*shape[:3], of_steps(config))}),
        compiler_params=loads_first(),
        name="attention_backward_scored_stats",
    )
    return made if p.score.has_functions else identified(made, problem, config, takes_dlse)


@cache
def scored_finish_kernel(problem: ScoredProblem, config: AttentionBackwardConfig) -> Any:
    """The kernel `(dq_sum, *lengths) -> dq`: as `finish_kernel`. For any sizes it takes q before the lengths.

    dq_sum is (tiles, padded dimension, 8), beyond a dimension of 128 (tiles, queries of a step, 8).
    """
    p, m = problem, config.block_q
    ordered = in_order(p, config)
    names = ["q"] * p.opened + ["q_seqlens", "kv_seqlens", "table"] * p.ragged
    dim, narrow = padded_dims(p)[0], keys_of(p) == KEYS
    tiles = m // EIGHT if narrow else dim // EIGHT
    heads, all_steps = _step_grid(p, config)
    several = next(n for n in (4, 5, 3, 2, 1) if tiles % n == 0)
    pieces = tiles // several

    def body(dq_sum: Any, *rest: Any) -> None:
        kd.griddepcontrol_wait()  # it starts while the kernel before it ends
        turns, rest = (rest[0], rest[1:]) if ordered else (None, rest)
        s, dq = dict(zip(names, rest, strict=False)), rest[-1]
        p, steps = problem, all_steps
        if p.opened:
            p = at_launch(p, s["q"], s["q"], None)
            steps = s["table"].shape[0] if p.ragged else kd.cdiv(p.queries, m)
        # the last heads first: their sums were added to last, and may still be in L2
        head, number = (
            p.heads * (1 if p.ragged else p.batch) - 1 - kd.program_id(0),
            steps * pieces - 1 - kd.program_id(1),
        )
        head, number = kd.maximum(head, 0), kd.maximum(number, 0)  # known of them, it saves masks
        tile = kd.rem(number, pieces) * several
        place = ScorePlace.of(p, head, kd.div(number, pieces), s)
        step = head * steps + first_step(p, config, place) + place.number
        line = step * tiles + tile
        value = kd.load(dq_sum, kd.ds(line, several), bounds="promise")
        if turns is not None:
            lines = p.heads * p.batch
            value = with_second(value, dq_sum, turns, head + lines, place.number, line + lines * steps * tiles)
        value = (value * p.scale).astype(p.dtype)
        if narrow:
            value = value.transpose(0, 2, 1).reshape(several * EIGHT, dim)
            row, count, columns = tile * EIGHT, several * EIGHT, kd.ds(0, dim)
        else:
            value = value.transpose(1, 0, 2).reshape(m, several * EIGHT)
            row, count, columns = 0, m, kd.ds(tile * EIGHT, several * EIGHT)
        first = place.number * m + row
        there = (first + kd.arange(count) < place.queries)[:, None]
        here = p.rows(place.batch, place.head, kd.ds(place.q_row + first, count), columns)
        kd.store(dq, here, value, mask=there)

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(p.shape(p.heads, p.queries, p.dim), p.dtype),
        grid=(heads, all_steps * pieces),
        shapes=_row_shapes(
            p,
            names,
            1 + ordered,
            {0: (kd.Dim("sums"), dim if narrow else m, EIGHT)}
            | ({1: (CONSUMERS, kd.Dim("lines"), kd.Dim("steps"))} if ordered else {}),
        ),
        compiler_params=loads_first(),
        name="attention_backward_scored_finish",
    )
    return made if p.score.has_functions else identified(made, problem, config)


@cache
def scored_sum_kernel(problem: ScoredProblem, splits: int, dim: int) -> Any:
    """The kernel `parts -> gradient`; the parts are float32 (splits, batch, kv_heads, keys, dim).

    Kernels for any sizes are for a number of splits, as `sum_kernel`'s.
    """
    p = problem
    rows = SUMMED // dim

    def body(parts: Any, out: Any) -> None:
        kd.griddepcontrol_wait()  # it starts while the kernel before it ends
        kd.griddepcontrol_launch_dependents()
        head = kd.program_id(0)
        batch, kv_head = kd.div(head, p.kv_heads), kd.rem(head, p.kv_heads)
        here = kd.ds(kd.program_id(1) * rows, rows)
        total = sum_of_splits(parts, (batch, kv_head, here), splits)
        out[p.rows(batch, kv_head, here)] = total.astype(p.dtype)

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(p.shape(p.kv_heads, p.keys, dim), p.dtype),
        grid=(p.batch * p.kv_heads, kd.cdiv(p.keys, rows)),
        shapes={0: (splits, p.batch, p.kv_heads, p.keys, dim)} if p.opened else None,
        compiler_params=loads_first(),
        name="attention_backward_scored_sum",
    )
    return made if p.score.has_functions else identified(made, problem, splits, dim)
