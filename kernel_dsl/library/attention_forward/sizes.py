"""Sizes of the attention kernel: of a problem and of its tiles, and the order in which blocks take tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import kernel_dsl as kd

from ..first_sizes import is_open

ROWS = 64  # queries of a consumer
LOG2E = math.log2(math.e)
LOWEST = -1e30  # finite, so that a row without keys has no NaN
SLACK = 8.0  # weights may grow to 2 ** SLACK before all of a row are scaled down
REGISTERS = {1: (216, 40), 2: (232, 40), 3: (160, 32), 4: (112, 24)}  # by consumers: a lane of one, of the producer
HALF = 192  # the greatest dimension whose output leaves room for two blocks of one consumer
SMEM_BYTES = 226 * 1024  # of a block's 227 KB; the rest is for barriers


@dataclass(frozen=True)
class AttentionConfig:
    """Sizes of attention's kernel.

    A block has `consumers` warpgroups of 64 queries each, `block_kv` keys a step, and `stages` of keys and of values in
    SMEM. With `turns`, consumers issue their products in turn, so that one works on its softmax beside the others'
    products. `polynomial`: one of every `polynomial` groups of 8 keys computes its exponentials by multiply-adds (None:
    no group does). Only the kernel with options uses it.
    """

    consumers: int = 2
    block_kv: int = 128
    stages: int = 2
    turns: bool = False
    polynomial: int | None = None

    @property
    def registers(self) -> tuple[int, int]:
        """(registers a lane of a consumer, of the producer)."""
        return REGISTERS[self.consumers]


@dataclass(frozen=True)
class AttentionProblem:
    """q is (batch, heads, queries, dim), k and v are (batch, kv_heads, keys, dim) by `layout` "bhsd"; (batch, queries,
    heads, dim) and so on by "bshd".

    With `splits`, two or more, that many tiles share each head's keys. Results are then those of parts, (batch, heads *
    splits, queries, dim) in both layouts, and `lse` is always one of them. There are at least as many blocks of keys as
    splits. With `alone`, which needs Dims, each call has as many blocks as tiles.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    dtype: Any
    causal: bool
    scale: float
    lse: bool
    splits: Any = 1
    alone: bool = False
    layout: str = "bhsd"

    @property
    def length_axis(self) -> int:
        """The axis of queries in q, and of keys in k and v."""
        return 1 if self.layout == "bshd" else 2

    def shape(self, heads: Any, length: Any) -> tuple[Any, ...]:
        """The shape of an array."""
        outer = (length, heads) if self.layout == "bshd" else (heads, length)
        return (self.batch, *outer, self.dim)

    def rows(self, batch: Any, head: Any, rows: Any) -> tuple[Any, ...]:
        """The index of some rows of a head."""
        return (batch, rows, head) if self.layout == "bshd" else (batch, head, rows)

    @property
    def shared(self) -> bool:
        """Whether several tiles share the keys of a head."""
        return is_open(self.splits) or self.splits > 1

    @property
    def opened(self) -> bool:
        """Whether sizes are Dims, whose values each call gives."""
        return is_open(self.batch, self.queries, self.keys)


def default_config(problem: AttentionProblem) -> AttentionConfig:
    """Three consumers if their registers hold the output, else two; as many keys a step as fit beside it.

    At a dimension of 64 exponentials take as long as products, and consumers take turns.
    """
    if problem.dim <= 64:
        return AttentionConfig(3, 128, 3, turns=True)
    return AttentionConfig(3, 80, 3) if problem.dim <= 128 else AttentionConfig(2, 80, 2)


def dealt(lengths: list[int], heads: int, together: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The steps of all tiles, in the order in which blocks take the tiles; `lengths`: the steps of one head's tiles,
    rising.

    `together` heads form a group, so that they share keys in L2. Groups start with long and with short tiles in turn,
    and the last group starts with its long tiles. So lengths change slowly along the list, and blocks get about equal
    work.
    """
    rising, falling = np.repeat(lengths, together), np.repeat(lengths[::-1], together)
    return np.concatenate([rising if after % 2 else falling for after in reversed(range(heads // together))])


def heads_together(lengths: list[int], heads: int, blocks: int) -> int:
    """The number of heads in a group: the smallest with about the least work for the busiest block."""
    most = max(1, 8 * blocks // len(lengths))  # groups of more than eight tiles a block gain nothing
    choices = [n for n in range(1, min(heads, most) + 1) if heads % n == 0]
    busiest: list[int] = []
    for together in choices:
        order = dealt(lengths, heads, together)
        rounds = np.zeros(-(-len(order) // blocks) * blocks, np.int64)
        rounds[: len(order)] = order
        busiest.append(int(rounds.reshape(-1, blocks).sum(axis=0).max()))
    return next(n for n, steps in zip(choices, busiest, strict=True) if steps <= 1.01 * min(busiest))


def one_wave(p: AttentionProblem, t: AttentionConfig, multiprocessors: int) -> bool:
    """Whether there are no more tiles than blocks that run at once. The problem has no Dims."""
    tiles = p.batch * p.heads * p.splits * -(-p.queries // (ROWS * t.consumers))
    return tiles <= multiprocessors * blocks_together(p.dim, t)


def together_of(p: AttentionProblem, t: AttentionConfig, multiprocessors: int) -> int:
    """The number of heads in a group of a causal kernel whose blocks have several tiles; 1 if they have one."""
    if one_wave(p, t, multiprocessors):
        return 1
    tile = ROWS * t.consumers
    tiles, blocks, groups = kd.cdiv(p.queries, tile), kd.cdiv(p.keys, t.block_kv), p.batch * p.heads
    multiprocessors *= blocks_together(p.dim, t)
    # one more step stands for a tile's fixed cost
    lengths = [min(kd.cdiv((i + 1) * tile, t.block_kv), blocks) + 1 for i in range(tiles)]
    return heads_together(lengths, groups, multiprocessors)


def parts_of(p: AttentionProblem, t: AttentionConfig) -> tuple[np.int32, np.int32]:
    """The number of splits, and the fewest blocks of keys of a part. The problem has no Dims."""
    return np.int32(p.splits), np.int32(-(-p.keys // t.block_kv) // p.splits)


def blocks_together(dim: int, t: AttentionConfig, used: int | None = None) -> int:
    """Blocks that share a multiprocessor: two with one consumer each, where SMEM and registers hold them. `used`: bytes of
    SMEM of a block, by default of a problem without options.
    """
    if used is None:
        used = (2 * ROWS * t.consumers + 2 * t.stages * t.block_kv) * dim * 2
    return 2 if t.consumers == 1 and dim <= HALF and used <= SMEM_BYTES // 2 - 1024 else 1


def launch_registers(dim: int, t: AttentionConfig) -> int | None:
    """The most registers of a lane at the start of a kernel; None for as many as a block of its warpgroups can have.

    Two blocks of one consumer have half of a multiprocessor's; the assembler refuses that for larger outputs.
    """
    if t.consumers > 1:
        return None
    return 128 if dim <= HALF else 168
