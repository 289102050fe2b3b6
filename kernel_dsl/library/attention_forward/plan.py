"""Which tiles of queries flash attention's forward kernel has, which of them a block computes, and what SMEM it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import kernel_dsl as kd

from .sizes import ROWS, SMEM_BYTES, AttentionConfig, AttentionProblem, blocks_together, together_of


@dataclass(frozen=True)
class ForwardPlan:
    """The tiles of a problem by the configuration `t`: `tile` queries of one head each.

    `problem`: as it was asked for; in a body `p` and the numbers have the sizes of the launch. `tiles`: of a head; `blocks`: of
    keys; `groups`: of `together` heads whose tiles are dealt together; `work`: all tiles; `least`: the least blocks of keys of a
    part. `opened`, `shared`, `alone`: as the problem's. `ragged`: whether keys may end within a block; `several`: whether a
    block has several tiles; `apart`: whether the output of a tile has SMEM of its own.
    """

    problem: AttentionProblem
    p: AttentionProblem
    t: AttentionConfig
    multiprocessors: int
    tile: int
    tiles: Any
    blocks: Any
    groups: Any
    work: Any
    together: Any
    least: Any
    grid: Any
    opened: bool
    shared: bool
    alone: bool
    ragged: bool
    several: bool
    apart: bool

    @property
    def numbers(self) -> int:
        """How many numbers the kernel takes after v."""
        return 2 if self.opened and self.shared else int(self.opened and self.p.causal and not self.alone)

    def grid_of(self, q: Any, k: Any, v: Any, *number: Any) -> tuple[int, ...]:
        """The grid of a launch."""
        p, splits = self.problem, number[0] if self.shared else 1
        columns = kd.cdiv(q.shape[p.length_axis], self.tile)
        if self.alone:
            return (q.shape[0] * p.heads, *((splits,) if self.shared else ()), columns)
        rows = q.shape[0] * p.heads * splits
        return (columns, rows) if columns * rows <= self.multiprocessors else (self.multiprocessors, 1)

    def scratch(self) -> dict[str, Any]:
        """SMEM and barriers of a block."""
        p, t = self.p, self.t
        transforms = (kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))
        ring = (t.stages, t.block_kv, p.dim)
        made = {
            "q_smem": kd.SMEM((t.consumers, ROWS, p.dim), p.dtype, transforms=transforms),
            "k_smem": kd.SMEM(ring, p.dtype, transforms=transforms),
            "v_smem": kd.SMEM(ring, p.dtype, transforms=transforms),
            "q_loaded": kd.Barrier(num_barriers=t.consumers),
        }
        for name in "kv":
            made[f"{name}_loaded"] = kd.Barrier(num_barriers=t.stages)
            made[f"{name}_consumed"] = kd.Barrier(num_arrivals=t.consumers, num_barriers=t.stages)
        if self.several:
            made["q_consumed"] = kd.Barrier(num_barriers=t.consumers)
        if self.apart:
            made["out_smem"] = kd.SMEM((t.consumers, ROWS, p.dim), p.dtype, transforms=transforms)
        if t.turns:
            made["turn"] = kd.Barrier(num_barriers=t.consumers)
        return made

    # --- in a body --------------------------------------------------------------------------------

    def at_launch(self, q: Any, k: Any, number: Any, *more: Any) -> ForwardPlan:
        """The plan with the sizes of the launch; `number`, `more`: the numbers that the kernel takes."""
        axis, tile = self.p.length_axis, self.tile
        sizes = {"batch": q.shape[0], "queries": q.shape[axis], "keys": k.shape[axis]}
        p = replace(self.problem, **sizes, splits=number if self.shared else 1)
        # the range of a quotient is lost where a sum could overflow; without a sign, divisions are shorter
        tiles, blocks = kd.maximum(kd.cdiv(p.queries, tile), 1), kd.cdiv(p.keys, self.t.block_kv)
        groups = p.batch * p.heads * p.splits
        made: dict[str, Any] = {"p": p, "tiles": tiles, "blocks": blocks, "groups": groups, "work": groups * tiles}
        if self.shared:
            (made["least"],) = more
        if p.causal and self.several:
            made["together"] = number
            fits = made["work"] <= self.multiprocessors
            made["groups"] = kd.cond(fits, lambda: groups, lambda: kd.div(groups, number))
        return replace(self, **made)

    def each_tile(self, carry: Any, body: Callable[[Any, Any], Any]) -> None:
        """`body(tile number, carry) -> carry` for the tiles of this block."""
        block = kd.axis_index("block")
        if not self.several:
            body(block, carry)
            return
        if self.opened:
            block += kd.axis_index("group") * self.tiles
            loop = kd.loop(block, self.work, step=self.multiprocessors, init_carry=carry)
            loop(lambda number, carry: body(kd.maximum(number, 0), carry))
            return
        rounds = self.work // self.grid + kd.where(block < self.work % self.grid, 1, 0)
        kd.loop(0, rounds, init_carry=carry)(lambda turn, carry: body(turn * self.grid + block, carry))

    def place(self, number: Any) -> tuple[Any, Any, Any, Any]:
        """(batch, head, first query, blocks of keys) of a tile, in the order of `dealt`.

        With splits the head is the results' head, and the blocks are those from `begin_of` on.
        """
        p = self.p
        divided = partial(self._divided, number)
        # divisions by a launch's sizes take longer than small problems can spare, so the grid has their quotient and rest
        if self.alone:
            head, row = self._by_grid()
        else:
            head, row = kd.cond(self.work <= self.multiprocessors, self._by_grid, divided) if self.opened else divided()
        if self.opened:
            most = cast("Any", self.problem.queries).max
            head, row = kd.maximum(head, 0), kd.clip(row, 0, most // self.tile)
        count: Any = self.blocks
        if p.causal:
            count = kd.minimum(kd.cdiv((row + 1) * self.tile, self.t.block_kv), self.blocks)
        heads = p.heads * p.splits
        if self.alone and self.shared:
            batch = kd.div(kd.axis_index("group"), p.heads)
            head = head - batch * heads
        else:
            batch, head = kd.div(head, heads), kd.rem(head, heads)
        if self.shared:
            longer = self.part_of(head) < self.blocks - self.least * p.splits
            count = self.least + kd.where(longer, 1, 0)
        return batch, head, row * self.tile, count

    def _turned(self, group: Any, row: Any) -> Any:
        """The tile of a head; causal heads begin with the longest and the shortest tile in turn."""
        return kd.where(kd.rem(self.groups - 1 - group, 2) == 0, self.tiles - 1 - row, row) if self.p.causal else row

    def _divided(self, number: Any) -> tuple[Any, Any]:
        """(head, tile) of a tile's number."""
        group, rest = kd.div(number, self.together * self.tiles), kd.rem(number, self.together * self.tiles)
        head = group * self.together + kd.rem(rest, self.together)
        return head, self._turned(group, kd.div(rest, self.together))

    def _by_grid(self) -> tuple[Any, Any]:
        """(head, tile) of this block, where the grid has as many blocks as tiles."""
        group = kd.axis_index("group")
        if self.alone and self.shared:
            group = group * self.p.splits + kd.axis_index("part")
        return group, self._turned(group, kd.axis_index("block"))

    def part_of(self, head: Any) -> Any:
        """The part of the keys of a results' head."""
        return kd.axis_index("part") if self.alone else kd.rem(head, self.p.splits)

    def begin_of(self, head: Any) -> Any:
        """The first block of keys of a head's part, where the first parts have one more than the others; 0 without splits."""
        if not self.shared:
            return 0
        return self.least * self.part_of(head) + kd.minimum(
            self.part_of(head), self.blocks - self.least * self.p.splits
        )

    def q_head(self, head: Any) -> Any:
        """The queries' head of a results' head."""
        if self.alone and self.shared:
            return kd.rem(kd.axis_index("group"), self.p.heads)
        return kd.div(head, self.p.splits) if self.shared else head


def forward_plan(problem: AttentionProblem, config: AttentionConfig, multiprocessors: int) -> ForwardPlan:
    """The plan of a problem on so many multiprocessors."""
    p, t, opened, shared = problem, config, problem.opened, problem.shared
    alone = opened and p.alone
    multiprocessors *= blocks_together(p.dim, t)
    tile = ROWS * t.consumers
    tiles, blocks = kd.cdiv(p.queries, tile), kd.cdiv(p.keys, t.block_kv)
    groups = p.batch * p.heads * p.splits
    work = groups * tiles
    grid = multiprocessors if opened else min(work, multiprocessors)
    several = not alone if opened else grid < work
    together = together_of(p, t, multiprocessors) if p.causal and several and not opened else 1
    # the output of a tile has its own SMEM if there is room, so that the next tile's queries can be loaded
    operands = (tile + 2 * t.stages * t.block_kv) * p.dim * 2
    return ForwardPlan(
        problem,
        p,
        t,
        multiprocessors,
        tile,
        tiles,
        blocks,
        groups // together,
        work,
        together,
        least=blocks // p.splits if shared and not opened else blocks,
        grid=grid,
        opened=opened,
        shared=shared,
        alone=alone,
        ragged=opened or p.keys % t.block_kv != 0,
        several=several,
        apart=several and operands + tile * p.dim * 2 <= SMEM_BYTES,
    )
