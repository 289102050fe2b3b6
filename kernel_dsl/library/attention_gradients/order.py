"""The distribution of attention's backward over blocks: configurations, the order of blocks, the numbers of
a launch.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

import kernel_dsl as kd

from ..attention_forward.sizes import ROWS, AttentionProblem
from ..first_sizes import is_later, most_of

CONSUMERS = 2
KEYS = CONSUMERS * ROWS  # keys of a block, up to a head dimension of 128
EIGHT = 8  # columns of a tile of wgmma, which are contiguous in the sum of the queries' gradients
TAIL = 3  # blocks that share the steps of the last keys, where many multiprocessors would be idle
# the time of a step of 64 queries as a part of that of 80, at a dimension of 128, and 3 %: the estimate is no better
SHORT_STEP = 0.83 * 1.03
LONG = 16  # steps of a block that are worth sharing
FEW_KEYS = 256  # of a head: two blocks' keys, or four beyond a dimension of 128
STAYS = 4  # the most steps of a block that takes several keys: with more, loads and stores take little of its time
FIXED = 2  # the cost of a block, or of a part of one, in steps
SPREAD = 128  # steps over which blocks that run together begin
MOST_STEPS = (1 << 23) - 1  # a mask: with it places of queries are known to have 32 bits
CROWD = 8  # blocks that may add to the sums of a head of up to `CROWDED` steps at a time
CROWDED = 4
MANY_HEADS = 8  # query heads of a key head whose causal blocks are shared beyond a dimension of 128
SOON = 2048  # keys of a head whose causal blocks begin soon after one another
# what a launch takes longer if twice as many blocks alternate as run at a time: those of a head then share nothing in L2
CROWDING = 0.05
PARTS, PART = 1.0, 0.2  # the time to sum parts, in steps: of their kernel's launch, and of each million bytes
LINE = 128  # elements of the sum's last axis, an arbitrary number


@dataclass(frozen=True)
class AttentionBackwardConfig:
    """Sizes of the kernel of attention's gradients.

    A block has `block_q` queries a step, and `stages` of queries and `dout_stages` of their gradients in SMEM.

    `apart`: scores and the gradients of weights are computed one after the other, so that registers hold one of them at
    a time, and `block_q` can be larger. `turns`: a consumer begins a step after the other's exponentials. `dq_parts`:
    the number of parts of a step's gradient of the queries that go to SMEM, which has room for `dq_slots`. `in_turn`:
    blocks add these parts in the order of their keys, so that the sum has the same bits each time. `splits`: the number
    of blocks that share the steps of the same keys; their sums are added afterwards. `tail`: the number of blocks that
    share the steps of each of the last keys, where whole blocks would leave many multiprocessors idle at the end.
    `stores_first`: the first block that has the gradient of a step's queries stores it and the others add, by warps of their
    own, so that nothing is zeroed before. Kernels with masks other than causal ones, and those that add in turn, ignore it.
    `stays`: each multiprocessor has one block, which takes keys after keys, and loads the next ones beside the steps of these.
    Kernels with ragged lengths, those whose warps add, and those that share keys ignore it.
    """

    block_q: int = 80
    stages: int = 2
    dout_stages: int = 2
    apart: bool = False
    turns: bool = False
    dq_parts: int = 1
    dq_slots: int = 1
    in_turn: bool = False
    splits: int = 1
    tail: int = 1
    stores_first: bool = False
    stays: bool = False


def most_shared(config: AttentionBackwardConfig, multiprocessors: int) -> int:
    """The most blocks at the end of a launch that are shared: their parts take at most two thirds of a block's time."""
    rounds = 2 * config.tail // 3  # of parts; a whole block takes as long as `tail` of these
    return multiprocessors * rounds // config.tail if config.splits == 1 and not config.in_turn else 0


def shared_at_end(units: Any, config: AttentionBackwardConfig, multiprocessors: int) -> Any:
    """How many of `units` blocks, the last ones, are shared: those that are left after whole rounds, if they are few."""
    most = most_shared(config, multiprocessors)
    left = units % multiprocessors if most else 0
    return left * (1 - left // (most + 1)) if most else 0


def padded(queries: int, config: AttentionBackwardConfig) -> int:
    """The number of queries in the workspaces, padded to whole steps."""
    return kd.cdiv(queries, config.block_q) * config.block_q


def one_block(p: Any, keys: int) -> bool:
    """Whether one block of `keys` has all keys: then each step is in this block alone, which stores the queries' gradient."""
    return most_of(p.keys) <= keys


def all_at_once(p: Any, config: AttentionBackwardConfig, keys: int, multiprocessors: int) -> bool:
    """Whether a multiprocessor has one block of `keys` keys at the most. The problem has no Dims; in a `lower` with Dims its
    sizes are typical, and calls may have more blocks.
    """
    return not is_later() and p.batch * p.kv_heads * kd.cdiv(p.keys, keys) * config.splits <= multiprocessors


def has_tail(steps: int) -> bool:
    """Whether blocks of so many steps share the last keys: with few steps, sharing takes longer than it saves."""
    return steps >= LONG


def tail_of(units: int, multiprocessors: int) -> int:
    """How many of `units` blocks share the steps of each of the last keys: two where three would take a round more."""
    left = units % multiprocessors
    return 2 if 2 * left <= multiprocessors < TAIL * left else TAIL


def end_with_tail(units: int, steps: int, multiprocessors: int) -> float:
    """The end of the last of `units` blocks of so many `steps`, in steps, if the last ones are shared after whole rounds;
    infinite where none are, or these would take several rounds.
    """
    tail = tail_of(units, multiprocessors)
    if units <= multiprocessors or not has_tail(steps) or not 0 < units % multiprocessors * tail <= multiprocessors:
        return math.inf
    return units // multiprocessors * (steps + FIXED) + steps / tail + FIXED


def first_stores(p: Any, config: AttentionBackwardConfig, causal: bool, wide: bool = False) -> bool:
    """Whether the first block that has the gradient of a step's queries stores it: where each query head has a key head or
    the mask is causal and keys are not many, and elsewhere, or beyond a head dimension of 128 (`wide`), with few keys, so
    that few blocks add to a sum at a time.

    If all blocks of a head have one step, the same, they would wait for one another.
    """
    few = p.keys <= FEW_KEYS and not causal
    some = few or ((p.heads == p.kv_heads or (causal and p.keys <= SOON)) and not wide)
    return some and (p.queries > config.block_q or (p.keys <= KEYS and not wide))


def step_counts(p: AttentionProblem, config: AttentionBackwardConfig, keys: int, fixed: int = FIXED) -> list[int]:
    """The steps of each block of a head, with `keys` keys a block, plus steps for a block's `fixed` cost."""
    steps, skipped = padded(p.queries, config) // config.block_q, keys if p.causal else 0
    each = [max(steps - n * skipped // config.block_q, 0) for n in range(kd.cdiv(p.keys, keys))]
    return [kd.cdiv(n * (p.heads // p.kv_heads), config.splits) + fixed for n in each]


def narrow_config(p: AttentionProblem) -> AttentionBackwardConfig:
    """A configuration for head dimensions up to 128: of long steps, unless more of them lies beyond the queries, or beside a
    causal mask, than their work is more efficient.
    """
    if p.dim <= 64:
        config = AttentionBackwardConfig(128 if p.queries > 64 else 64)
    else:
        config = AttentionBackwardConfig(80, turns=True)
        short = AttentionBackwardConfig(64)
        times = [sum(step_counts(p, c, KEYS, 0)) for c in (config, short)]
        config = short if times[1] * SHORT_STEP < times[0] else config
    return replace(config, stores_first=first_stores(p, config, p.causal))


def staying_config(p: Any, dims: tuple[int, int], multiprocessors: int) -> AttentionBackwardConfig | None:
    """The configuration of blocks that stay, for few steps of many keys; None where others are faster. Scores are scaled
    only, and not masked.

    `dims`: the computed dimensions of keys and values. SMEM holds the keys and values of two blocks, so steps are short.
    """
    dim = max(dims)
    keys = KEYS if dim <= KEYS else ROWS
    if dim <= 64:
        config = AttentionBackwardConfig(128 if p.queries > ROWS else ROWS, stays=True)
    elif dim <= 192:
        config = AttentionBackwardConfig(ROWS, dq_parts=2 if dim <= KEYS else 3, stays=True)
    else:
        config = AttentionBackwardConfig(ROWS, stages=1, dout_stages=1, dq_parts=4, stays=True)
    units = p.batch * p.kv_heads * kd.cdiv(p.keys, keys)
    steps = kd.cdiv(p.queries, config.block_q) * (p.heads // p.kv_heads)
    # with few keys, longer steps and sums that begin without zeros bring more than that
    longer = dim > 64 and steps > 2 and p.keys <= FEW_KEYS
    # a block that has all keys holds whole gradients of queries in SMEM, which leave no room for the next one's keys
    full = dim > KEYS and p.keys <= keys
    return None if units <= multiprocessors or steps > STAYS or longer or full else config


def makespan(lengths: list[int], heads: int, together: int, machines: int) -> int:
    """The time when the last block ends, if blocks start in order as others end; `lengths`: the times of a head's
    blocks.
    """
    busy = [0] * machines
    for _ in range(heads // together):
        for length in lengths:
            for _ in range(together):
                heapq.heapreplace(busy, busy[0] + length)
    return max(busy)


def alternating(heads: int, blocks: int, steps: int) -> int:
    """The number of `heads` whose blocks alternate if each has as many steps: several if heads have many blocks of few
    steps. Otherwise all that run at a time would add to the few sums of one head.
    """
    if blocks <= CROWD or steps > CROWDED:
        return 1
    return next((n for n in range(2 * CROWD, heads) if heads % n == 0), heads)


def together_of(p: AttentionProblem, config: AttentionBackwardConfig, keys: int, machines: int) -> int:
    """The number of heads whose blocks alternate, for a problem without options. Grouped heads whose sums have an order have
    twice as many.
    """
    if not p.causal:
        return alternating(p.batch * p.kv_heads, kd.cdiv(p.keys, keys), padded(p.queries, config) // config.block_q)
    lengths, heads = [n for n in step_counts(p, config, keys) for _ in range(config.splits)], p.batch * p.kv_heads
    found = heads_at_once(lengths, heads, machines)
    if (
        config.in_turn and p.heads > p.kv_heads
    ):  # a block seldom waits for the one before it in its head: that began earlier
        return next((n for n in range(2 * found, heads) if heads % n == 0), heads)
    return found


def heads_at_once(lengths: list[int], heads: int, machines: int) -> int:
    """The number of heads whose blocks alternate, longest blocks first: the smallest number with about the earliest
    end.
    """
    enough = max(1, 8 * machines // len(lengths))  # larger groups do not shorten the end
    choices = [n for n in range(1, min(heads, enough) + 1) if heads % n == 0]

    def end_of(n: int) -> float:
        crowd = n * len(lengths) / machines - 1
        return makespan(lengths, min(heads, 8 * enough) // n * n, n, machines) * (1 + CROWDING * max(crowd, 0))

    ends = [end_of(n) for n in choices]
    return next(n for n, end in zip(choices, ends, strict=True) if end <= 1.01 * min(ends))


def summing(splits: int, p: Any, v_dim: int) -> float:
    """The time to sum the parts of the gradients of keys and values, in steps, if so many blocks share these."""
    parts = 4 * splits * p.batch * p.kv_heads * p.keys * (p.dim + v_dim)
    return PARTS + PART * parts / 1e6 if splits > 1 else 0.0


def shared_by(p: Any, dim: int, causal: bool) -> int:
    """How many blocks share the steps of the same keys, where a `causal` mask hides some, `dim` is beyond 128, eight query
    heads or more have one key head, and sums have no order.

    Blocks of whole steps take up to 1.7 of the time there, and more than `makespan` tells: B2 H64/4 S1500 of 192 and 128
    dims 1299 us on one NVIDIA H200, 958 by two blocks and 788 by three; with four query heads a key head two are slower.
    """
    group, length = p.heads // max(p.kv_heads, 1), min(p.queries, p.keys)
    if not causal or dim <= KEYS or group < MANY_HEADS or length < 512 or max(p.queries, p.keys) > SOON:
        return 1
    return 3 if group >= 2 * MANY_HEADS else 2


@dataclass(frozen=True)
class WalkNumbers:
    """The numbers that a call passes to a kernel for any sizes: the heads whose blocks alternate, and splits."""

    together: int
    splits: int

    def numbers(self, stats: Any) -> list[Any]:
        """The numbers as arguments of the kernel. The extent of an array gives the splits.

        If a scalar decided the size of results, calls could not take the fast path.
        """
        return [np.int32(self.together), stats[0, 0, 0, : self.splits]]


GIVEN = 5  # arguments before these numbers: q, k, v, dout and stats
NUMBERS = 2  # arguments that `WalkNumbers.numbers` makes
MOST_SPLITS = 16  # `numbers` slices stats, which have 16 queries or more


@cache
def splits_dim() -> Any:
    """The Dim of the number of blocks that share the steps of the same keys."""
    return kd.Dim("splits", max=MOST_SPLITS)


def of_steps(config: AttentionBackwardConfig) -> Any:
    """The extent of whole steps of queries."""
    return kd.Dim("padded", multiple_of=config.block_q)
