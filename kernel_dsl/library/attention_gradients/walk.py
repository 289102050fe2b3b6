"""The common parts of attention's backward kernels: how blocks loop over queries, load them, and add up their gradient.

A block owns some keys of one head. It loops over all queries that see one of them, `block_q` a step, for each query head of the
key head. docs/attention.md explains why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import kernel_dsl as kd

from ..attention_forward.sizes import LOG2E, ROWS
from ..stage_ring import await_release
from .keys import Visit
from .order import (
    CONSUMERS,
    EIGHT,
    LINE,
    MOST_STEPS,
    NUMBERS,
    SPREAD,
    shared_at_end,
)
from .turns import WalkOrder, WalkStep

Consumers = Callable[
    ["Walk"], tuple[Callable[..., None], dict[str, Any]]
]  # makes (the consumers' body, the SMEM that they need) for a walk


@dataclass(frozen=True)
class Tail:
    """The place of a block at the end of a launch: the number of its keys among those that blocks share, and its number
    among the `pieces` blocks that share them. Keys that no blocks share have one piece.
    """

    keys: Any
    piece: Any
    pieces: Any


@dataclass(frozen=True)
class ScoreBlock:
    """The work of a block: a head of a sequence, and its keys from `key` on.

    The queries that see these keys begin at step `first`. The block does `count` steps of all query heads, from `start`
    on; `split` is its number among the blocks that share the steps. `tail` is None if no blocks share the last keys. If
    blocks stay, `visit` says what this one did before.
    """

    batch: Any
    kv_head: Any
    key: Any
    first: Any
    start: Any
    count: Any
    split: Any
    tail: Tail | None
    visit: Visit


class Walk(WalkOrder):
    """The walk of blocks of `keys` keys: what each of them does."""

    def at_launch(self, q: Any, k: Any, sizes: Any) -> Walk:
        """In a body: the walk with the sizes of the launch; `sizes`: the arguments that `WalkNumbers.numbers` makes."""
        made = copy(self)
        made.p = p = replace(self.p, batch=q.shape[0], queries=q.shape[2], keys=k.shape[2])
        made.steps, made.blocks = kd.cdiv(p.queries, self.t.block_q), kd.cdiv(p.keys, self.keys)
        made.together, made.splits = sizes[0], sizes[1].shape[0]
        return made

    # --- places -----------------------------------------------------------------------------------

    def each_block(self, s: dict[str, Any], work: Callable[[Any], None]) -> None:
        """Call `work` with this block's part, or if blocks stay with each of them."""
        first = self.number_of_block()
        if not self.stays:
            work(self.block_of(s, Visit(first)))
            return
        units = self.p.batch * self.p.kv_heads * self.blocks

        @kd.loop(0, kd.cdiv(units - first, self.launched), init_carry=(0, 0))
        def _(number: Any, carry: Any) -> Any:
            begun, slot = carry
            block = self.block_of(s, Visit(first + number * self.launched, begun, slot))
            work(block)
            return begun + block.count, 1 - slot

    def block_of(self, s: dict[str, Any], visit: Visit) -> Any:
        """A part, given the scratch; long parts come first."""
        p, t = self.p, self.t
        head, n, split, tail = self.place_of(visit.number)
        key = n * self.keys
        first = kd.minimum(kd.div(key, t.block_q), self.steps) if p.causal else 0
        start, count = self.share((self.steps - first) * self.group, split, tail)
        place = kd.div(head, p.kv_heads), kd.rem(head, p.kv_heads)
        return ScoreBlock(*place, key, first, start, count, split, tail, visit)

    def number_of_block(self) -> Any:
        """This block's number; 0 where the axes of the grid tell its place."""
        return 0 if self.single else kd.axis_index("block")

    def place_of(self, number: Any) -> tuple[Any, Any, Any, Tail | None]:
        """Of block `number`: (the head, the number of its keys, its number among the blocks that share these, its `Tail`)."""
        if self.single:
            split = kd.axis_index("split") if self.splitting else 0
            return kd.axis_index("head"), kd.axis_index("keys"), split, None
        number, split = self.shared(number)
        number, tail = self.shared_tail(number)
        several = self.together * self.blocks
        part, rest = kd.div(number, several), kd.rem(number, several)
        return part * self.together + kd.rem(rest, self.together), kd.div(rest, self.together), split, tail

    def shared(self, number: Any) -> tuple[Any, Any]:
        """(the number of a block's keys, its own number among the blocks that share these keys)."""
        return (kd.div(number, self.splits), kd.rem(number, self.splits)) if self.splitting else (number, 0)

    def shared_tail(self, number: Any) -> tuple[Any, Tail | None]:
        """(the number of a block's keys, its place among the blocks that share the last keys)."""
        if not self.tailed:
            return number, None
        units, pieces = self.p.batch * self.p.kv_heads * self.blocks, self.t.tail
        whole = units - shared_at_end(units, self.t, self.multiprocessors)
        beyond = kd.maximum(number - whole, 0)
        keys = kd.div(beyond, pieces)
        tail = Tail(keys, kd.rem(beyond, pieces), kd.where(number < whole, 1, pieces))
        return kd.minimum(number, whole) + keys, tail

    def share(self, count: Any, split: Any, tail: Tail | None) -> tuple[Any, Any]:
        """(the first, the number) of a block's steps, out of `count`."""
        mine, every = (split, self.splits) if tail is None else (tail.piece, tail.pieces)
        if self.ordered:
            return split, kd.cdiv(kd.maximum(count - split, 0), self.pieces)
        if tail is None and not self.splitting:
            return 0, count
        start = kd.div(count * mine, every)
        return start, kd.div(count * (mine + 1), every) - start

    def turn_of(self, block: Any, step: WalkStep) -> Any:
        """The number of blocks that add to a step's sum before this one."""
        number = kd.div(block.key, self.keys)
        return number - self.others_before(block, step) if self.ordered else number

    def sum_of(self, block: Any, step: WalkStep) -> tuple[Any, Any]:
        """The sum of a step's gradient."""
        line = block.batch * self.p.heads + step.head
        return line + self.second(block, step) if self.ordered else line, step.index

    def each_step(self, block: ScoreBlock, body: Callable[..., Any], carried: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        """Call `body(step, *carried)`, which gives what the next step carries, for each step in order; gives what is left.

        Blocks that add in turn go from the last queries to the first, or as `WalkOrder` says. Blocks that add in any
        order begin at different queries, if they have all of them.
        """
        if self.ordered:
            return self.each_in_order(block, body, carried)
        last = self.last_step(block)
        begin, end, by = (last, block.first, -1) if self.t.in_turn else (block.first, last, 1)
        head, index = block.kv_head * self.group, begin
        if self.splitting and self.group == 1:
            index = begin + by * block.start
        elif self.splitting or self.tailed:
            each = kd.maximum(last - block.first + 1, 1)
            head, index = head + kd.div(block.start, each), begin + by * kd.rem(block.start, each)
        start: Any = begin
        if self.spreads:
            start = kd.rem(kd.div(block.key, self.keys), kd.minimum(self.steps, SPREAD))
            index = index + start
            index = kd.where(index > end, index - self.steps, index)

        @kd.loop(0, block.count, init_carry=(*self.first_slots(block), head, index, *carried))
        def after(number: Any, carry: Any) -> Any:
            slot, dout_slot, head, index, *own = carry
            where = self.numbered(block, number), slot, dout_slot, head
            made = body(self.step_at(block, index & MOST_STEPS if self.single else index, where), *own)
            over, slots = index == end, self.following_slots(slot, dout_slot)
            if self.spreads:
                index = kd.where(over, begin, index + by)
                return *slots, kd.where(index == start, head + 1, head), index, *(made or ())
            return *slots, kd.where(over, head + 1, head), kd.where(over, begin, index + by), *(made or ())

        return tuple(after[4:])

    @property
    def spreads(self) -> bool:
        """Whether blocks of a head begin at different steps: else all load the same lines of L2, and add to the same, at
        the same time. Causal blocks begin on the diagonal anyway.
        """
        return not self.p.causal and not self.t.in_turn

    def weights(self, acc: Any, block: Any, step: WalkStep, key: Any, s: dict[str, Any]) -> tuple[Any, Any]:
        """(weights of products q.k (keys, queries) from `key` on, the slopes of their scores, None where these are the scale)."""
        self.mask(acc, key, step.index * self.t.block_q)
        x = kd.wgmma_accumulator_load(acc, wait_n=None)
        negative = kd.load(s["stats_smem"], (step.slot, 0), layout=kd.Layout.WGMMA_COL)
        return kd.exp2(kd.fma(x, self.p.scale * LOG2E, negative[None])), None

    def ahead(self, acc: Any, block: Any, step: WalkStep, key: Any, s: dict[str, Any]) -> dict[str, Any]:
        """Make the argument `s` of `weights`. It is called while the products are running."""
        return s

    def keep_scores(self, ds: Any, block: Any, key: Any, step: WalkStep, s: dict[str, Any]) -> None:
        """Called with the gradients of scores (keys, queries) from `key` on."""

    def send_scores(self, tile: Any, block: Any, key: Any, step: WalkStep, s: dict[str, Any]) -> None:
        """As `keep_scores`, with the gradients in SMEM. It is called if they are `turned`."""

    def mask(self, acc: Any, key: Any, query: Any) -> None:
        """Mask scores (keys, queries) from these two on that a query doesn't see, and missing keys.

        It works in place, because a branch with results would copy all scores.
        """
        p, ragged = self.p, self.ragged
        if not (p.causal or ragged):
            return
        last = key + acc.shape[0] - 1
        partly = last > query if p.causal else last >= p.keys

        @kd.when(partly | (last >= p.keys) if p.causal and ragged else partly)
        def _() -> None:
            keys = key + kd.broadcasted_iota(kd.int32, acc.shape, 0)
            seen = keys < p.keys
            if p.causal:
                causal = keys <= query + kd.broadcasted_iota(kd.int32, acc.shape, 1)
                seen = seen & causal if ragged else causal
            acc[...] = kd.where(seen, kd.wgmma_accumulator_load(acc, wait_n=None), -math.inf)

    # --- the producer -----------------------------------------------------------------------------

    def _produce(
        self, q: Any, k: Any, v: Any, dout: Any, stats: Any, dq_sum: Any, turns: Any, s: dict[str, Any]
    ) -> None:
        """The producer: it loads all operands.

        If `by_warps`, one of its warps for each consumer adds the consumer's results.
        """
        kd.set_max_registers(self.registers[1], action="decrease")
        fetch = partial(self._fetch, q, k, v, dout, stats, s)
        if not self.by_warps or self.adders:
            fetch()
            return

        @kd.warp_map
        def _(warp: Any) -> None:
            kd.when(warp == CONSUMERS)(fetch)
            kd.when(warp < CONSUMERS)(partial(self._add_by_warp, warp, dq_sum, turns, s))

    def _add(self, dq_sum: Any, turns: Any, s: dict[str, Any]) -> None:
        """The extra warpgroup that adds in turn, beside the producer."""
        kd.set_max_registers(self.registers[1], action="decrease")

        @kd.warp_map
        def _(warp: Any) -> None:
            kd.when(warp < CONSUMERS)(partial(self._add_by_warp, warp, dq_sum, turns, s))

    def _fetch(self, q: Any, k: Any, v: Any, dout: Any, stats: Any, s: dict[str, Any]) -> None:
        self.each_block(s, partial(self._fetch_block, q, k, v, dout, stats, s))

    def _fetch_block(self, q: Any, k: Any, v: Any, dout: Any, stats: Any, s: dict[str, Any], block: Any) -> None:
        t = self.t
        own = block.batch, block.kv_head, kd.ds(block.key, self.keys)

        def fetch(step: WalkStep) -> None:
            rows = kd.ds(step.index * t.block_q, t.block_q)
            place = block.batch, step.head
            self.load_keys(block, step, s, partial(kd.copy_gmem_to_smem, k.at[own]))
            loaded = s["q_loaded"].at[step.slot]
            await_release(s["q_consumed"], step.slot, step.number >= t.stages)
            kd.copy_gmem_to_smem(q.at[(*place, rows)], s["q_smem"].at[step.slot], loaded)
            kd.copy_gmem_to_smem(stats.at[(*place, slice(None), rows)], s["stats_smem"].at[step.slot], loaded)
            self.load_values(block, step, s, partial(kd.copy_gmem_to_smem, v.at[own]))
            await_release(s["dout_consumed"], step.dout_slot, step.number >= t.dout_stages)
            loaded = s["dout_loaded"].at[step.dout_slot]
            kd.copy_gmem_to_smem(dout.at[(*place, rows)], s["dout_smem"].at[step.dout_slot], loaded)

        self.each_step(block, fetch)

    def _add_by_warp(self, me: Any, dq_sum: Any, turns: Any, s: dict[str, Any]) -> None:
        """Add the results of consumer `me`: in turn after the block of the preceding keys and before the block of the
        following keys, or in any order, and the first block stores.
        """
        t, block = self.t, self.block_of(s, Visit(self.number_of_block()))
        for i in range(t.dq_slots):
            kd.barrier_arrive(s["dq_read"].at[me * t.dq_slots + i])  # nothing is there yet

        def add(step: WalkStep) -> None:
            turn = turns.at[me, *self.sum_of(block, step)]

            def copy(part: int, add: bool) -> None:
                self._copy_sum(me, part, block, step, dq_sum, s, add)

            if self.stores_first:
                self.add_or_store(me, copy, turn, s)
                return
            before = self.turn_of(block, step)
            kd.semaphore_wait(turn, before, decrement=False)
            for i in range(t.dq_parts):
                place = me * t.dq_slots + i % t.dq_slots
                kd.barrier_wait(s["dq_stored"].at[place])
                if self.ordered:
                    kd.when(before == 0)(partial(copy, i, False))
                kd.when(before > 0)(partial(copy, i, True)) if self.ordered else copy(i, True)
                kd.wait_smem_to_gmem(0, wait_read_only=True)
                kd.barrier_arrive(s["dq_read"].at[place])
            kd.wait_smem_to_gmem(0)
            kd.semaphore_signal(turn)

        self.each_step(block, add)

    # --- the sum of the queries' gradients --------------------------------------------------------

    def add(self, me: Any, acc: Any, block: ScoreBlock, step: WalkStep, dq_sum: Any, s: dict[str, Any]) -> None:
        """Add a step's gradient of the queries, a consumer's accumulator, to the sum of all blocks."""
        if self.alone:
            self.store_queries(me, acc, block, step, dq_sum, s)
            return
        t = self.t
        value = kd.wgmma_accumulator_load(acc, wait_n=None)
        for i in range(t.dq_parts):
            place = me * t.dq_slots + i % t.dq_slots
            if self.by_warps:
                kd.barrier_wait(s["dq_read"].at[place])
            else:  # wait for the last copy of this slot
                kd.wait_smem_to_gmem(t.dq_slots - 1 if i >= t.dq_slots else 0, wait_read_only=True)
            s["dq_smem"][0][place] = value[:, i * self.part * EIGHT : (i + 1) * self.part * EIGHT]
            kd.commit_smem()
            if self.by_warps:
                kd.barrier_arrive(s["dq_stored"].at[place])
            else:
                self._copy_sum(me, i, block, step, dq_sum, s)

    def _copy_sum(
        self, me: Any, i: int, block: ScoreBlock, step: WalkStep, dq_sum: Any, s: dict[str, Any], add: bool = True
    ) -> None:
        """Start adding, or storing, part `i` of a consumer's share."""
        t, lines = self.t, ROWS * EIGHT // LINE
        tile, line = (0, me * lines) if self.by_row else (me * self.own_tiles, 0)
        here = kd.ds(tile + i * self.part, self.part), kd.ds(line, lines)
        target = dq_sum.at[(*self.sum_of(block, step), *here)]
        reduction = "add" if add else None
        kd.copy_smem_to_gmem(s["dq_smem"][1].at[me * t.dq_slots + i % t.dq_slots], target, reduction_op=reduction)

    # --- the kernel -------------------------------------------------------------------------------

    def follow(self) -> None:
        """Start while the kernel before ends, and let the one after do so: this counts where launches are short."""
        kd.griddepcontrol_wait()
        kd.griddepcontrol_launch_dependents()

    def kernel(self, consumers: Consumers, *, name: str) -> Any:
        """The kernel `(q, k, v, dout, stats) -> (dk, dv, dq_sum)`.

        For any sizes it takes `WalkNumbers.numbers` after stats, and `results` names its results.
        """

        def body(q: Any, k: Any, v: Any, dout: Any, stats: Any, *rest: Any, **made: Any) -> None:
            self.follow()
            walk: Walk = self.at_launch(q, k, rest[:NUMBERS]) if self.opened else copy(self)
            me = kd.axis_index("wg")
            dk, dv, dq_sum, turns, _more = walk.results(rest[NUMBERS:] if self.opened else rest)

            @kd.when(me == CONSUMERS)
            def _() -> None:
                walk._produce(q, k, v, dout, stats, dq_sum, turns, made)

            @kd.when(me < CONSUMERS)
            def _() -> None:
                kd.set_max_registers(walk.registers[0], action="increase")
                consumers(walk)[0](me, dk, dv, dq_sum, made)

        def named(
            q: Any, k: Any, v: Any, dout: Any, stats: Any, dk: Any, dv: Any, dq_sum: Any, *more: Any, **made: Any
        ) -> None:
            body(q, k, v, dout, stats, dk, dv, dq_sum, *more, **made)

        return kd.kernel(
            body if self.opened else named,  # results have the names of parameters in reports
            out_type=self._outputs(),
            shapes=self.shapes(),
            scratch_types=self._scratch() | consumers(self)[1],
            grid=tuple(self.axes.values()),
            grid_names=tuple(self.axes),
            num_threads=CONSUMERS + 1,
            thread_name="wg",
            compiler_params=kd.CompilerParams(approx_math=True),
            name=name,
        )
