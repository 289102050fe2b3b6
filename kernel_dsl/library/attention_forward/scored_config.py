"""The configurations of attention with every option: what SMEM and registers hold, and the order of tiles."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import kernel_dsl as kd

from ..attention_gradients.order import heads_at_once
from ..first_sizes import KeptConfigs
from .pages import loaded_together
from .problem import ScoredProblem, ragged_tiles
from .score import Score
from .sizes import HALF, LOG2E, ROWS, SMEM_BYTES, AttentionConfig, blocks_together

_kept = KeptConfigs()

MOST_TILES = 4096  # the order of more tiles is not computed
MOST_LOG = 80.0  # weights from 2 ** -80 to 2 ** 80 need no maximum: sums of products stay far from the ends of float32
WIDE = 112  # a head dimension from which on zeros up to a multiple of 64 bytes are at most a seventh
FEW = 3  # with fewer tiles a multiprocessor, each tile has its own block
SHORT = 2048  # up to as many queries, tiles are those that end first
# (configuration, time of a call, of a tile and of a step) in microseconds of one NVIDIA H200, for values of up to 64
# and 128 dimensions
CHOICES: dict[int, tuple[tuple[AttentionConfig, float, float, float], ...]] = {
    64: (
        (AttentionConfig(3, 128, 3, turns=True), 11.1, 0.62, 1.19),
        (AttentionConfig(4, 64, 3, turns=True), 7.6, 1.38, 0.91),
        (AttentionConfig(2, 128, 3), 6.8, 1.35, 1.11),
    ),
    128: ((AttentionConfig(3, 80, 3), 11.4, 1.63, 1.03), (AttentionConfig(2, 128, 2), 9.3, 1.77, 1.43)),
}


def lanes_of(dim: int, dtype: Any = None) -> int:
    """A head dimension rounded up to multiples of 32 bytes, as wgmma takes it."""
    unit = 16 if dtype is None else 32 // dtype.itemsize
    return kd.cdiv(dim, unit) * unit


def computed(dim: int, dtype: Any = None) -> int:
    """The head dimension that attention computes: `lanes_of`, and in 16 bits from 112 on a multiple of 64 bytes. Rows of
    an odd number of 32 bytes have such a narrow swizzle that more zeros cost less; so have 208 elements up to 256.
    """
    lanes = lanes_of(dim, dtype)
    narrow = dtype is not None and dtype.itemsize == 1
    if narrow or lanes < WIDE:
        return lanes
    return 256 if lanes == 208 else kd.cdiv(lanes, 32) * 32


def swizzled(dtype: Any, *shape: int, row: int = 0) -> Any:
    """A buffer with the widest swizzle that divides a row of `row` elements."""
    span = math.gcd((row or shape[-1]) * dtype.itemsize, 128)
    return kd.SMEM(
        shape, dtype, transforms=(kd.TilingTransform((8, span // dtype.itemsize)), kd.SwizzleTransform(span))
    )


def bytes_of(p: ScoredProblem, t: AttentionConfig) -> int:
    """SMEM that a configuration takes."""
    d, dv, item = computed(p.dim, p.scored_dtype), computed(p.v_dim), p.scored_dtype.itemsize
    # the output can't use the SMEM of queries of another dtype
    tile = max(d, dv) * 2 if p.narrow is None else d * item + dv * 2
    bias = 0 if p.score.bias_tiles is None else ROWS * t.consumers * p.score.bias_tiles.itemsize
    return ROWS * t.consumers * tile + t.stages * t.block_kv * (d * item + dv * 2 + bias)


def bounded(p: ScoredProblem) -> bool:
    """Whether softcap keeps scores so small that weights are their exponentials, without subtracting a maximum."""
    if p.score.softcap is None or p.score.natural or p.dtype != kd.bfloat16:
        return False
    return p.score.softcap * LOG2E <= MOST_LOG


def bias_by_key(p: ScoredProblem) -> bool:
    """Whether all queries of a head have the same bias, which differs from key to key."""
    shape: tuple[Any, ...] = (1, 1, *(p.score.bias or ()))
    rows, keys = shape[-2:]
    return isinstance(rows, int) and rows == 1 and not (isinstance(keys, int) and keys == 1)


def light_bias(p: ScoredProblem) -> bool:
    """Whether scores have a bias that takes few registers, and neither softcap nor functions."""
    score, tiles = p.score, p.score.bias_tiles
    light = bias_by_key(p) if tiles is None else tiles.itemsize == 2
    return light and score.softcap is None and not score.has_functions


def few_config(p: ScoredProblem, multiprocessors: int) -> AttentionConfig | None:
    """The configuration for queries of one consumer; None for more queries.

    Other consumers would be idle, and take the room of a second block, or of more keys.
    """
    if p.ragged or p.opened or p.narrow is not None or p.queries > ROWS:
        return None
    choices = [AttentionConfig(1, 64, 3)]
    if p.keys > ROWS and not (p.score.natural or p.score.softcap is not None or listed(p)):
        choices.insert(0, AttentionConfig(1, 128, 2))  # long steps have fewer waits
    few, wide = p.batch * p.heads < 2 * multiprocessors, max(computed(p.dim), computed(p.v_dim))
    if p.keys > ROWS and few and wide <= 64 and light_bias(p):
        return AttentionConfig(1, 128, 2 if p.score.bias_tiles is None else 3)  # tiles of a bias arrive late
    if not few:  # enough for two blocks each without shared keys
        choices.append(AttentionConfig(1, 48, 2))
    twice = [t for t in choices if blocks_together_of(p, t) > 1]
    return twice[0] if twice else AttentionConfig(1, 80 if len(choices) > 1 and wide <= HALF else 64, 2)


def blocks_together_of(p: ScoredProblem, t: AttentionConfig) -> int:
    """Blocks that share a multiprocessor."""
    return blocks_together(computed(p.v_dim), t, bytes_of(p, t))


def time_of(p: ScoredProblem, t: AttentionConfig, costs: tuple[float, float, float], multiprocessors: int) -> float:
    """The estimated time of a configuration, in microseconds, by the costs of a call, a tile and a step."""
    steps, rows = step_counts(p, t), ROWS * t.consumers
    tiles = p.batch * p.heads * -(-p.queries // rows)
    call, tile, step = costs
    return call + -(-tiles // multiprocessors) * (tile + step * sum(steps) / len(steps))


def step_counts(p: ScoredProblem, t: AttentionConfig) -> list[int]:
    """The steps of each tile of a head, without those that a mask hides whole."""
    rows, score, found = ROWS * t.consumers, p.score, list[int]()
    shift = p.keys - p.queries if score.causal == "bottom_right" else 0
    for first in range(0, p.queries, rows):
        last = min(first + rows, p.queries) + shift
        end = min(max(last, 0), p.keys) if score.causal else p.keys
        begin = 0
        if score.window is not None:
            begin = min(max(first + shift - score.window + 1, 0), p.keys)
            end = min(end, max(last + score.window - 1, 0))
        found.append(-(-end // t.block_kv) - begin // t.block_kv if end > begin else 0)
    return found


def short_config(p: ScoredProblem, multiprocessors: int, closed: bool = True) -> AttentionConfig | None:
    """The configuration that ends first for few queries, by the estimates of `CHOICES`; None for that of
    `scored_config`.

    With few queries, much of the tiles of three consumers lies beyond the last query. Unless `closed`, it may be one
    that calls of other sizes had before, if that is about as fast.
    """
    dv, score = computed(p.v_dim), p.score
    without = not (p.ragged or (p.cache and not p.page) or score.natural or listed(p)) and (
        score.softcap is None or bounded(p)
    )
    if p.narrow is not None or not without or p.opened or p.queries > SHORT or dv > 128:
        return None
    if computed(p.dim) > 128:  # three consumers are faster unless more of their tiles is empty
        rows = [-(-p.queries // (ROWS * n)) * ROWS * n for n in (2, 3)]
        return AttentionConfig(2, 80, 2) if 1.15 * rows[0] <= rows[1] else None
    choices = CHOICES[64 if dv <= 64 else 128]
    if p.page:  # a producer beside four consumers lacks the registers
        choices = tuple(choice for choice in choices if choice[0].consumers < 4)
    times = {t: time_of(p, t, (call, tile, step), multiprocessors) for t, call, tile, step in choices}
    best = min(times, key=times.__getitem__)
    if not closed:
        kind = replace(p, batch=0, queries=0, keys=0), multiprocessors
        best = _kept.choose(kind, best, times.__getitem__)
    if best == choices[0][0]:
        return None
    # pages of 64 keys had the slow state that turns end: see `attention_split.SMALL`
    return replace(best, turns=True) if p.page and dv > 64 else best


def scored_config(p: ScoredProblem, linear: bool = False) -> AttentionConfig:
    """A configuration with as many keys a step as registers and SMEM hold. `linear`: `score_mod` adds
    something linear.
    """
    dv = computed(p.v_dim)
    without_functions = not p.score.natural and p.score.mask_mod is None
    light = without_functions and p.score.softcap is None
    alone = linear and p.score == Score(p.score.causal, score_mod=p.score.score_mod)  # this needs few registers
    # float8's two loops beside a mask leave no registers for the numbers of 128 keys
    most = 112 if p.narrow is not None and (p.score.causal or p.score.window is not None) else 128
    if dv <= 64 and (light or alone or (bounded(p) and without_functions)):
        # small pages take registers from consumers, and beside float8's two loops so do logarithms, and windows of ragged lengths
        small = 0 < p.page < 128 or (p.narrow is not None and p.ragged and p.score.window is not None)
        rows = 96 if small else 112 if p.narrow is not None and p.lse else 128
        choices = [AttentionConfig(3, rows, 3, turns=True)]
    elif dv <= 64:
        choices = [AttentionConfig(2, most, 3), AttentionConfig(2, most, 2)]
    elif dv <= 128 and (without_functions or alone):
        choices = [AttentionConfig(3, 80, 4)] if p.guarded else []
        # without a maximum nothing keeps consumers from working in step; in turn they never do. The places of ragged
        # sequences, and the ends of a window, take the registers that turns need
        even = bounded(p) and not p.ragged and p.score.window is None
        choices += [AttentionConfig(3, 80, 3, turns=even), AttentionConfig(3, 80, 2, turns=even)]
    elif dv <= 128:  # a user's function takes registers; with a function of scores, turns are faster
        choices = [AttentionConfig(2, most, 2, turns=p.score.score_mod is not None), AttentionConfig(2, 96, 2)]
        if p.score.bias_tiles is not None:  # more stages load more of the bias ahead
            choices = [AttentionConfig(2, 64, 3), *choices]
    else:
        # three stages load keys earlier; rows of whole 32 bytes arrive so fast that longer steps are better
        rows = 80 if dv <= 160 and p.dim % 16 == p.v_dim % 16 == 0 else 64
        choices = [AttentionConfig(2, rows, 3)] if dv <= 192 and light and not p.page else []
        choices += [AttentionConfig(2, 80 if light else 64, 2)]
    choices += [AttentionConfig(2, n, 2) for n in (96, 80, 64, 48)]
    return paged_config(p, next(c for c in choices if bytes_of(p, c) <= SMEM_BYTES))


def paged_config(p: ScoredProblem, config: AttentionConfig) -> AttentionConfig:
    """A configuration with the keys of one or more whole pages a step, or of a part of a page, and at most those of
    `config`.
    """
    found = loaded_together(p, config.block_kv) if p.page else None
    return replace(config, block_kv=found[1]) if found else config


def tiles_of(p: ScoredProblem, t: AttentionConfig) -> int:
    """The number of tiles of a head; with ragged lengths the most that there may be."""
    tile = ROWS * t.consumers
    return ragged_tiles(p, tile) if p.ragged else kd.cdiv(p.queries, tile)


def blocks_of(work: int, multiprocessors: int) -> int:
    """The number of blocks for `work` tiles. It is less if a counter deals out the tiles. The counter needs another
    launch, which does not pay for few tiles.
    """
    return multiprocessors if work >= FEW * multiprocessors else work


def few_tiles(p: ScoredProblem, t: AttentionConfig, multiprocessors: int) -> bool:
    """Whether each tile of a problem without Dims has its own block."""
    return tiles_of(p, t) * p.heads * (1 if p.ragged else p.batch) < FEW * multiprocessors


def listed(p: ScoredProblem) -> bool:
    """Whether a list gives the blocks of keys of each tile."""
    return p.score.mask_mod is not None


def extras(p: ScoredProblem) -> list[str]:
    """Names of the arrays after q, k and v that the kernel takes."""
    return p.extras + ["table"] * p.ragged + ["blocks", "counts"] * listed(p)


def scored_together(p: ScoredProblem, t: AttentionConfig, multiprocessors: int) -> int:
    """The number of heads whose tiles alternate, long tiles first."""
    tiles, tile = tiles_of(p, t), ROWS * t.consumers
    if not p.score.causal or tiles > MOST_TILES:
        return p.heads // p.kv_heads
    shift = p.keys - p.queries if p.score.causal == "bottom_right" else 0
    lengths: list[int] = []
    for n in range(tiles):
        end = min(max((n + 1) * tile + shift, 0), p.keys)
        begin = 0 if p.score.window is None else max(n * tile + shift - p.score.window + 1, 0)
        lengths.append(max(end - begin, 0) // t.block_kv + 2)
    return heads_at_once(lengths[::-1], p.batch * p.heads, multiprocessors)
