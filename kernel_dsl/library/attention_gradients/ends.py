"""The small kernels before and after attention's backward: one computes its inputs for each query, one rounds the sums."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified
from kernel_dsl.layout import pow2_ceil

from ..attention_forward.sizes import LOG2E, AttentionProblem
from ..part_sums import loads_first, sum_of_parts
from .order import CONSUMERS, EIGHT, AttentionBackwardConfig, of_steps, padded

ELEMENTS = 4096  # of a block
AT_ONCE = 6  # parts that are loaded together at the most: eight and more spilled
SUMMED = 1024  # of a block that sums parts: a lane waits for one part after the other, so small blocks hide more of it


@cache
def stats_kernel(problem: AttentionProblem, config: AttentionBackwardConfig, takes_dlse: bool = False) -> Any:
    """The kernel `(out, dout, lse) -> stats`, or `(out, dout, lse, dlse) -> stats` if it `takes_dlse`: float32 (batch,
    heads, 2, padded queries).

    Row 0 is -lse in powers of 2. It is -inf for queries that see no key or do not exist, so that their weights are 0.
    Row 1 is `centre` of the sum of out * dout.
    """
    p = problem
    length = padded(p.queries, config)
    rows = ELEMENTS // pow2_ceil(p.dim)  # a power of 2, since whole blocks fill the padded queries
    rows = rows if p.opened else math.gcd(rows, length)
    heads = (p.batch, p.heads, p.queries, p.dim)

    def alone(out: Any, dout: Any, lse: Any, stats: Any) -> None:
        body(out, dout, lse, None, stats)

    def body(out: Any, dout: Any, lse: Any, dlse: Any, stats: Any) -> None:
        place, these = (kd.program_id(0), kd.program_id(1)), kd.ds(kd.program_id(2) * rows, rows)
        products = out[(*place, these)].astype(kd.float32) * dout[(*place, these)].astype(kd.float32)
        total = kd.load(lse, (*place, these), fill=-math.inf)
        stats[(*place, 0, these)] = kd.where(total == -math.inf, -math.inf, total * -LOG2E)
        stats[(*place, 1, these)] = centre(kd.sum(products, axis=1), total, dlse, (*place, these))

    shapes = {
        0: heads,
        1: heads,
        **dict.fromkeys(range(2, 3 + takes_dlse), heads[:3]),
        3 + takes_dlse: (*heads[:2], 2, of_steps(config)),
    }
    made = kd.kernel(
        body if takes_dlse else alone,  # results have the names of parameters in reports
        out_type=kd.ShapeDtypeStruct((p.batch, p.heads, 2, length), kd.float32),
        grid=(p.batch, p.heads, kd.cdiv(length, rows)),
        shapes=shapes if p.opened else None,
        compiler_params=loads_first(),
        name="attention_backward_stats",
    )
    return identified(made, problem, config, takes_dlse)


def centre(mean: Any, lse: Any, dlse: Any, here: tuple[Any, ...]) -> Any:
    """What is subtracted from the gradients of a query's weights: their mean, the sum of out * dout, less the gradient
    of lse, since the weights are the derivatives of lse. `dlse`: an array, or None; `here`: the queries' place in it.

    Queries that see no key have an lse of -inf, which nothing moves.
    """
    if dlse is None:
        return mean
    return mean - kd.where(lse > -math.inf, kd.load(dlse, here, fill=0.0).astype(mean.dtype), 0.0)


@cache
def finish_kernel(problem: AttentionProblem, config: AttentionBackwardConfig, wide: bool) -> Any:
    """The kernel `dq_sum -> dq`; dq_sum: float32 tiles, not scaled yet.

    The tiles are (batch x heads x padded queries / 8, dim, 8). The `wide` kernel gives (batch x heads x padded queries
    / 64 x dim / 8, 64, 8), with the last axis along dim. For any sizes the kernel is `(dq_sum, q) -> dq`.
    """
    p = problem
    tiles = p.dim // EIGHT if wide else config.block_q // EIGHT
    all_steps = kd.cdiv(p.queries, config.block_q)
    heads = (p.batch, p.heads, p.queries, p.dim)
    several = next(n for n in (4, 5, 3, 2, 1) if tiles % n == 0)
    pieces = tiles // several
    ordered = config.in_turn

    def any_lengths(dq_sum: Any, q: Any, dq: Any) -> None:
        any_in_order(dq_sum, None, q, dq)

    def any_in_order(dq_sum: Any, turns: Any, q: Any, dq: Any) -> None:
        body(dq_sum, dq, q.shape[0], kd.cdiv(q.shape[2], config.block_q), turns)

    def in_order(dq_sum: Any, turns: Any, dq: Any) -> None:
        body(dq_sum, dq, turns=turns)

    def body(dq_sum: Any, dq: Any, batch: Any = p.batch, steps: Any = all_steps, turns: Any = None) -> None:
        kd.griddepcontrol_wait()  # it starts while the kernel before it ends
        # the last sums first: they were added to last, and may still be in L2
        extents = batch, p.heads, steps * pieces
        numbers = (extent - 1 - kd.program_id(axis) for axis, extent in enumerate(extents))
        batch, head, number = (kd.maximum(number, 0) for number in numbers)  # known of them, it saves masks
        step, tile = kd.div(number, pieces), kd.rem(number, pieces) * several
        first = step * config.block_q
        row = batch * p.heads + head
        line = (row * steps + step) * tiles + tile
        value = kd.load(dq_sum, kd.ds(line, several), bounds="promise")
        if turns is not None:
            lines = extents[0] * p.heads
            value = with_second(value, dq_sum, turns, row + lines, step, line + lines * steps * tiles)
        value = (value * p.scale).astype(p.dtype)
        if wide:
            here = kd.ds(first, config.block_q), kd.ds(tile * EIGHT, several * EIGHT)
            value = value.transpose(1, 0, 2).reshape(config.block_q, several * EIGHT)
        else:
            here = kd.ds(first + tile * EIGHT, several * EIGHT), slice(None)
            value = value.transpose(0, 2, 1).reshape(several * EIGHT, p.dim)
        dq[(batch, head, *here)] = value

    inputs: list[tuple[Any, ...]] = [(kd.Dim("tiles"), config.block_q if wide else p.dim, EIGHT)]
    inputs += [(CONSUMERS, kd.Dim("lines"), kd.Dim("steps"))] * ordered
    found = (any_in_order if ordered else any_lengths) if p.opened else in_order if ordered else body
    made = kd.kernel(
        found,  # results have the names of parameters in reports
        out_type=kd.ShapeDtypeStruct(heads, p.dtype),
        grid=(p.batch, p.heads, all_steps * pieces),
        shapes=dict(enumerate([*inputs, heads])) if p.opened else None,
        compiler_params=loads_first(),
        name="attention_backward_finish",
    )
    return identified(made, problem, config, wide)


def with_second(value: Any, dq_sum: Any, turns: Any, row: Any, step: Any, line: Any) -> Any:
    """Tiles of a sum, plus those from `line` on, where blocks that began with this step added, which `turns` tells."""
    return kd.cond(
        turns[0, row, step] > 0,
        lambda x: x + kd.load(dq_sum, kd.ds(line, x.shape[0]), bounds="promise"),
        lambda x: x,
        value,
    )


@cache
def sum_kernel(problem: AttentionProblem, splits: int) -> Any:
    """The kernel `(dk_parts, dv_parts) -> (dk, dv)`; the parts are float32 (splits, batch, kv_heads, keys, dim).

    Kernels for any sizes are for a number of splits, too: one for any number masked its loads, and took up to a tenth of a call.
    """
    p = problem
    rows = SUMMED // p.dim

    def body(dk_parts: Any, dv_parts: Any, dk: Any, dv: Any) -> None:
        kd.griddepcontrol_wait()  # it starts while the kernel before it ends
        kd.griddepcontrol_launch_dependents()
        number = kd.program_id(2)
        here = kd.program_id(0), kd.program_id(1), kd.ds(kd.div(number, 2) * rows, rows)

        def add_up(parts: Any, out: Any) -> None:
            out[here] = sum_of_splits(parts, here, splits).astype(p.dtype)

        # a block for each sum, so that the loads of one don't wait for those of the other
        kd.cond(kd.rem(number, 2) == 0, partial(add_up, dk_parts, dk), partial(add_up, dv_parts, dv))

    shape = (p.batch, p.kv_heads, p.keys, p.dim)
    like_k = kd.ShapeDtypeStruct(shape, p.dtype)
    made = kd.kernel(
        body,
        out_type=(like_k, like_k),
        grid=(p.batch, p.kv_heads, kd.cdiv(p.keys, rows) * 2),
        shapes=dict.fromkeys((0, 1), (splits, *shape)) if p.opened else None,
        compiler_params=loads_first(),
        name="attention_backward_sum",
    )
    return identified(made, problem, splits)


def sum_of_splits(parts: Any, here: tuple[Any, ...], splits: int) -> Any:
    """The sum over splits at one place, in order."""
    return sum_of_parts(lambda number: parts[(number, *here)], splits, min(splits, AT_ONCE))
