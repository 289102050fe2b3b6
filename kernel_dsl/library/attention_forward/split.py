"""Small problems of attention: smaller tiles, and for few queries over many keys several tiles that share the keys of a
head.

A second kernel combines the results of tiles that share keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import Kernel, identified

from ..first_sizes import KeptConfigs, dim_of
from ..latest import UNSEEN
from .kernel import attention_kernel
from .opened import LENGTHS, TILES, plain_plan
from .sizes import (
    HALF,
    LOG2E,
    LOWEST,
    ROWS,
    AttentionConfig,
    AttentionProblem,
    blocks_together,
    default_config,
)

_kept = KeptConfigs()

FEW = 8  # with fewer tiles a multiprocessor, other tiles than `default_config`'s are considered
# with as many queries or fewer, too, at these dimensions: of 1024 queries, an eighth of tiles of 192 is empty
SHORT = {64: 2048, 128: 1024, 256: 512}
# (configuration, time of a step, time of a tile), in microseconds of one NVIDIA H200, for head dimensions of 64, 128
# and 256
SMALL: dict[int, tuple[tuple[AttentionConfig, float, float], ...]] = {
    64: (
        (AttentionConfig(3, 128, 3, turns=True), 1.44, 1.41),
        (AttentionConfig(4, 64, 3, turns=True), 0.99, 2.40),
        (AttentionConfig(2, 128, 3, turns=True), 1.15, 1.26),
        (AttentionConfig(1, 128, 2), 1.15, 1.24),
    ),
    128: (
        (AttentionConfig(3, 80, 3), 1.08, 3.20),
        # without turns, both may wait for the same keys and then compute softmax at the same time, for all steps
        (AttentionConfig(2, 128, 2, turns=True), 1.18, 2.60),
        (AttentionConfig(1, 64, 2), 0.76, 2.00),
    ),
    256: (
        (AttentionConfig(2, 80, 2), 1.58, 5.77),
        (AttentionConfig(2, 64, 2), 1.28, 6.16),
        (AttentionConfig(1, 64, 2), 0.92, 2.50),
    ),
}
PAIRED = {64: (0.17, -0.22)}  # how much longer a step, and a tile, takes where two blocks share a multiprocessor
LEAST = 2  # the fewest blocks of keys of a part
SAVED = 8  # steps that a tile must save where keys are shared: combining the parts takes as long as two to four
COMBINED = 2.0  # microseconds that this takes
LINES = 4  # queries that a block combines
AT_ONCE = (2, 4, 8, 16)  # parts that are loaded together: as few as hold all, at most the last number
FEWER_AT_ONCE = (2, 4, 6)  # of wide rows in which lanes have no equal shares, or shares of five or seven elements
# Of a lane that combines: more than it needs, so that the assembler does not save them by loads after other parts' sums.
REGISTERS = 128


def splits_of(p: AttentionProblem, t: AttentionConfig, multiprocessors: int) -> int:
    """The number of tiles that share a head's keys."""
    tiles = p.batch * p.heads * kd.cdiv(p.queries, ROWS * t.consumers)
    return 1 if p.causal else splits_for(tiles, kd.cdiv(p.keys, t.block_kv), multiprocessors)


def splits_for(tiles: int, blocks: int, multiprocessors: int) -> int:
    """The number of tiles that share the `blocks` of keys of each of `tiles`: enough for all multiprocessors, if each has
    enough keys. With fewer parts the longest one would be longer.
    """
    if not tiles:
        return 1
    steps = kd.cdiv(blocks, max(min(multiprocessors // tiles, blocks // LEAST), 1))
    return kd.cdiv(blocks, steps) if blocks - steps >= SAVED else 1


def time_of(p: AttentionProblem, t: AttentionConfig, multiprocessors: int) -> float:
    """The estimated time of a configuration of `SMALL`, in microseconds."""
    step, tile = next((step, tile) for choice, step, tile in SMALL[p.dim] if choice == t)
    splits = splits_of(p, t, multiprocessors)
    # of ints, and once for each choice of a first call: without the checks of the public `cdiv`
    tiles = p.batch * p.heads * -(-p.queries // (ROWS * t.consumers)) * splits
    steps: float = -(-p.keys // (t.block_kv * splits))
    if p.causal:  # the mean: a tile has the steps up to its last query
        rows = range(ROWS * t.consumers, p.queries + ROWS * t.consumers, ROWS * t.consumers)
        steps = sum(min(-(-row // t.block_kv), steps) for row in rows) / max(len(rows), 1)
    together = blocks_together(p.dim, t)
    if together > 1 and tiles > multiprocessors * together:  # in one round, long causal tiles are soon alone
        more = PAIRED.get(p.dim, (0.0, 0.0))
        step, tile = step + more[0], tile + more[1]
    rounds = -(-tiles // (multiprocessors * together))
    return rounds * (tile + step * steps) + (COMBINED if splits > 1 else 0)


def small_config(p: AttentionProblem, multiprocessors: int, closed: bool = True) -> AttentionConfig:
    """The configuration of `default_config` if there are many tiles of many queries; otherwise the one with the least
    estimated time.

    Unless `closed`, it may be one that calls of other sizes had before, if that is about as fast and has the kernel for it.
    """
    default = default_config(p)
    choices = SMALL.get(p.dim)
    if choices is None and p.queries <= ROWS:  # a consumer without queries takes the room of the next tile's
        return AttentionConfig(1, 80 if p.keys > ROWS and p.dim <= HALF else 64, 2)
    many = p.batch * p.heads * kd.cdiv(p.queries, ROWS * default.consumers) >= FEW * multiprocessors
    if choices is None or (many and p.queries > SHORT.get(p.dim, 0)):
        return default

    def shares(t: AttentionConfig) -> bool:
        return splits_of(p, t, multiprocessors) > 1

    def time(t: AttentionConfig) -> float:
        return time_of(p, t, multiprocessors)

    # a consumer without queries only takes room
    best = min((choice for choice, *_ in choices if (choice.consumers - 1) * ROWS < max(p.queries, 1)), key=time)
    if closed:
        return best
    # tiles that share keys have a kernel of their own, which may not be there yet
    kind = replace(p, batch=0, queries=0, keys=0), multiprocessors
    chosen, _ = _kept.choose(
        kind, (best, shares(best)), lambda made: time(made[0]) if shares(made[0]) == made[1] else math.inf
    )
    return chosen


@cache
def combine_kernel(
    splits: int | None, heads: int, dim: int, dtype: Any, with_lse: bool, layout: str = "bhsd", gaps: bool = False
) -> Any:
    """The kernel `(parts, logs) -> out` or `-> (out, lse)`, of any batch and number of queries, with `out` by `layout`.

    parts (batch, heads * splits, queries, dim), logs float32 (batch, heads * splits, queries). Without `splits`, the
    arrays of each call show their number. With `gaps`, queries may see no key of some or all parts.
    """
    at_once = AT_ONCE if dim <= 96 or dim % 64 == 0 else FEWER_AT_ONCE
    if splits is not None and splits > at_once[-1]:
        return combine_kernel(None, heads, dim, dtype, with_lse, layout, gaps)  # it has a loop

    lanes = kd.Layout.WG_STRIDED((LINES, dim), max(min(LINES * dim // 128, 8), 1))
    lines = lanes.reduce(1, keepdims=False)

    def body(parts: Any, logs: Any, out: Any, *lse: Any) -> None:
        kd.griddepcontrol_wait()  # it starts while the kernel before it ends
        unit, first = kd.program_id(0), kd.program_id(1) * LINES
        batch, head, rows = kd.div(unit, heads), kd.rem(unit, heads), kd.ds(first, LINES)
        count = splits or kd.div(parts.shape[1], heads)
        # the parts of all batches lie one after another; with 64 bits the addresses of parts follow by additions
        begin = kd.astype(unit, kd.int64) * count
        inside = kd.arange(LINES) < parts.shape[2] - first  # one mask for all loads, in place of their own

        def some(turn: Any, carry: Any, together: int) -> Any:
            """Combine several parts, whose loads are in flight together; there are none after the last one."""
            top, total, value = carry
            logs_of, values = list[Any](), list[Any]()
            for n in (turn * together + i for i in range(together)):
                place = 0, begin + n, rows
                even = splits is not None or together == 2  # there are two parts or more
                there = inside if even else inside & (n < count)
                logs_of.append(kd.load(logs, place, layout=lines, mask=there, fill=-math.inf, bounds="promise"))
                values.append(kd.load(parts, place, layout=lanes, mask=there[:, None], bounds="promise"))
            new_top = top
            for log in logs_of:
                new_top = kd.maximum(new_top, log)
            fade, *weights = (kd.exp2((log - new_top) * LOG2E) for log in (top, *logs_of))
            total, value = kd.fma(total, fade, sum(weights[1:], weights[0])), value * fade[:, None]
            for part, weight in zip(values, weights, strict=True):
                value = kd.fma(part.astype(kd.float32), weight[:, None], value)
            return new_top, total, value

        none = (
            kd.layout_cast(kd.full((LINES,), LOWEST, kd.float32), lines),
            kd.layout_cast(kd.zeros((LINES,), kd.float32), lines),
            kd.layout_cast(kd.zeros((LINES, dim), kd.float32), lanes),
        )

        def all_of(together: int) -> Any:
            return kd.fori_loop(0, kd.cdiv(count, together), lambda turn, carry: some(turn, carry, together), none)

        if splits is None:
            made = partial(some, 0, none, at_once[0])
            for fewer, together in pairwise(at_once):
                more = partial(all_of, together) if together == at_once[-1] else partial(some, 0, none, together)
                made = partial(kd.cond, count > fewer, more, made)
            top, total, value = made()
        else:
            top, total, value = some(0, none, splits)
        value = value * (1.0 / total)[:, None]
        if gaps:
            value = kd.where(total[:, None] == 0, 0.0, value)
        out[(batch, rows, head) if layout == "bshd" else (batch, head, rows)] = value.astype(dtype)
        if with_lse:
            lse[0][batch, head, rows] = top + kd.log2(total) * (1.0 / LOG2E)

    def out_type(parts: Any, logs: Any) -> Any:
        batch, _, queries, _ = parts.shape
        outer = (queries, heads) if layout == "bshd" else (heads, queries)
        made = kd.ShapeDtypeStruct((batch, *outer, dim), dtype)
        return (made, kd.ShapeDtypeStruct((batch, heads, queries), kd.float32)) if with_lse else made

    def grid(parts: Any, *_: Any) -> tuple[int, int]:
        return parts.shape[0] * heads, kd.cdiv(parts.shape[2], LINES)

    sizes = dim_of("batch", TILES), dim_of("parts", TILES), dim_of("queries", LENGTHS[-1])
    shapes = {0: (*sizes, dim), 1: sizes} if splits is None else None
    how = kd.CompilerParams(approx_math=True, max_registers=REGISTERS)
    made = kd.kernel(body, out_type=out_type, shapes=shapes, grid=grid, compiler_params=how, name="attention_combine")
    return identified(made, splits, heads, dim, dtype, with_lse, layout, gaps)


@dataclass(frozen=True)
class SplitPlan:
    """The kernels of a problem whose keys are shared."""

    parts: Any
    combine: Any

    def __call__(self, q: Any, k: Any, v: Any, *, out: Any = None, **how: Any) -> Any:
        return self.combine(*self.parts(q, k, v, **how), out=out, **how)

    def lower(self, q: Any, k: Any, v: Any, target: str | None = None) -> Any:
        """The stages of the kernel that computes the parts."""
        return self.parts.lower(q, k, v, target=target)

    def seen(self, args: Any, out: Any, stream: Any) -> Any:
        """Return `UNSEEN`: calls with two kernels have no fast path."""
        return UNSEEN


def split_plan(p: AttentionProblem, config: AttentionConfig, multiprocessors: int, closed: bool) -> Any:
    """The plan of a problem without options. Tiles share keys if that gives work to more multiprocessors.

    `closed`: the plan takes these sizes alone.
    """
    splits = splits_of(p, config, multiprocessors)
    inner = p if splits == 1 else replace(p, splits=splits, lse=True)
    plan = (attention_kernel if closed else plain_plan)(inner, config, multiprocessors)
    if splits == 1:
        return plan
    own = splits if isinstance(plan, Kernel) else None  # a plan for any sizes takes the number at each call
    return SplitPlan(plan, combine_kernel(own, p.heads, p.dim, p.dtype, p.lse, p.layout))
