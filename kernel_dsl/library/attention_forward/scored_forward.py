"""The consumers of attention with every option: warpgroups that each own rows of a tile, and loop over its blocks of keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import kernel_dsl as kd

from ..stage_product import following_slot
from .norms import largest_product
from .scored_config import MOST_LOG, bounded, listed
from .scored_rows import RowScores, ScoredRows
from .scored_tiles import ScoredTile
from .sizes import LOG2E, LOWEST, ROWS


class ScoredForward(ScoredRows):
    """The consumers."""

    def pass_turn(self, me: Any, s: dict[str, Any]) -> None:
        if self.t.turns:
            kd.barrier_arrive(s["turn"].at[kd.where(me == self.t.consumers - 1, 0, me + 1)])

    def consume(self, me: Any, out: Any, lse: Any, s: dict[str, Any]) -> None:
        kd.set_max_registers(self.registers[0], action="increase")
        kd.when(me == self.t.consumers - 1)(partial(self.pass_turn, me, s))
        start = self.t.stages - 1, 0
        self.each_tile(s, False, start, lambda tile, carry: self.consume_tile(me, tile, carry, out, lse, s))

    def keep_sums_early(self, q_tile: Any, total: Any) -> None:
        """Let the assembler put a step's sums before the wait that follows."""
        if listed(self.p) and self.t.consumers == 2:  # no sum is below 0, so this stores nothing
            kd.store(q_tile, (slice(None), kd.ds(0, 8)), total.astype(self.p.scored_dtype), mask=total < 0)

    def values(self, slot: Any, s: dict[str, Any]) -> Any:
        """The values of a stage, as products take them."""
        return s["v_smem"].at[slot, :, kd.ds(0, self.columns)]

    def release(self, place: Any, s: dict[str, Any]) -> None:
        """Allow the producer to load queries over the output."""
        kd.wait_smem_to_gmem(0, wait_read_only=True)
        kd.barrier_arrive(s["q_consumed"].at[place])

    def consume_tile(self, me: Any, tile: ScoredTile, carry: Any, out: Any, lse: Any, s: dict[str, Any]) -> Any:
        """Compute a consumer's rows of a tile. `carry` and the result: (the stage used last, the number of tiles so
        far).
        """
        p, (start, tiles) = self.p, carry
        place, before = self.query_place(tiles, me), self.query_place(tiles + 1, me)
        q_tile = s["q_smem"].at[place, :, kd.ds(0, self.depth)]
        steps = _TileSteps(self, me, tile, s, RowScores(self, me, tile, s), start, tiles, place, before, q_tile)
        types = kd.ACC((ROWS, self.t.block_kv), kd.float32), kd.ACC((ROWS, self.columns), kd.float32)
        value, top, total, slot = kd.run_scoped(steps.run, *types)
        last, out_tile = None, s["out_smem"].at[me] if self.apart else s["q_smem"].at[place]
        if self.shared is not None:
            where = me, tile.batch * p.heads + tile.head, tile.number, self.tiles
            value, top, total, last = self.shared.joined(*where, value, top, total, s)
        finish = partial(self.finish, me, tile, value, top, total, out, lse, out_tile, s)
        finish() if last is None else kd.when(last)(finish)
        if self.counted and not self.apart and self.q_places == 1:
            kd.barrier_arrive(s["q_consumed"].at[place])
        return slot, tiles + 1

    def skip(self, me: Any, begin: Any, end: Any, slot: Any, s: dict[str, Any]) -> Any:
        """Release the stages of steps that this consumer skips. Returns the stage used last."""
        if not self.skips:
            return slot

        def step(_: Any, slot: Any) -> Any:
            following = following_slot(slot, self.t.stages)
            for name in ("k", "v") + ("bias",) * self.staged:
                kd.barrier_wait(s[f"{name}_loaded"].at[following])
                if name == "k" and self.t.turns:
                    kd.barrier_wait(s["turn"].at[me])
                    self.pass_turn(me, s)
                kd.barrier_arrive(s[f"{name}_consumed"].at[following])
            return following

        return kd.loop(begin, end, init_carry=slot)(step)

    def part_head(self, tile: ScoredTile) -> Any:
        """The head of a tile's results."""
        return tile.head * self.p.splits + kd.axis_index("part") if self.p.shared else tile.head

    def finish(
        self,
        me: Any,
        tile: ScoredTile,
        value: Any,
        top: Any,
        total: Any,
        out: Any,
        lse: Any,
        place: Any,
        s: dict[str, Any],
    ) -> None:
        """Store a consumer's rows, whose weights are relative to 2 ** `top` and sum up to `total`, by `place` in SMEM."""
        p, mine = self.p, tile.first + me * ROWS
        if p.score.sinks:
            sink = s["sinks"][tile.head].astype(kd.float32) * LOG2E
            if p.shared:  # in the first part's sum
                sink = kd.where(kd.axis_index("part") == 0, sink, -math.inf)
            highest = kd.maximum(top, sink)
            fade = kd.exp2(top - highest)
            top, total = highest, kd.fma(total, fade, kd.exp2(sink - highest))
            factor = kd.where(total == 0, 0.0, fade / total)  # a sink of -inf is none
        else:
            factor = kd.where(total == 0, 0.0, 1.0 / total)
        if "v" in p.scales:
            factor = factor * self.scale(tile, "v", s)
        out_tile, beyond = place.at[:, kd.ds(0, self.v_dim)], self.v_dim - self.columns
        if self.apart:
            kd.wait_smem_to_gmem(0, wait_read_only=True)
        made = (value * factor[:, None]).astype(p.out_dtype)
        rows = kd.ds(tile.q_row + mine, ROWS)
        place_of = p.rows(tile.batch, tile.head, rows, kd.ds(0, self.v_dim))
        if p.shared:
            place_of = tile.batch, self.part_head(tile), rows, kd.ds(0, self.v_dim)
        target = out.at[place_of]

        def copy() -> None:
            out_tile.at[:, kd.ds(0, self.columns)][...] = made
            if beyond:  # copies move whole tiles, and read them; the output has no such columns
                out_tile.at[:, kd.ds(self.columns, beyond)][...] = kd.zeros((ROWS, beyond), made.dtype)
            kd.commit_smem()
            kd.copy_smem_to_gmem(out_tile, target)
            if not self.apart and self.q_places == 1:  # otherwise the next tile waits
                kd.wait_smem_to_gmem(0, wait_read_only=True)

        if not p.ragged:
            copy()
        else:
            there = mine + kd.broadcasted_iota(kd.int32, made.shape, 0) < tile.queries
            whole = mine + ROWS <= tile.queries
            kd.when(whole)(copy)
            kd.when(~whole)(lambda: kd.store(target.at[:, kd.ds(0, self.columns)], ..., made, mask=there))
        if p.lse:
            logs = kd.where(total == 0, -math.inf, (top + kd.log2(total)) * (1.0 / LOG2E))
            where = p.lse_rows(tile.batch, self.part_head(tile), rows)
            there = mine + kd.arange(ROWS) < tile.queries if p.ragged else None
            kd.store(lse, where, logs, mask=there)


@dataclass(frozen=True)
class _TileSteps:
    """The steps of consumer `me` over the keys of a tile.

    `start`: the stage used last; `tiles`: the number of tiles so far; `place`, `before`: where the queries of this tile and of
    the one before it lie in SMEM; `q_tile`: these queries.
    """

    kernel: ScoredForward
    me: Any
    tile: ScoredTile
    s: dict[str, Any]
    rows: RowScores
    start: Any
    tiles: Any
    place: Any
    before: Any
    q_tile: Any

    def run(self, s_acc: Any, o_acc: Any) -> Any:
        """All steps: (the sum of weighted values, the maximum, the sum of weights, the stage used last)."""
        kernel, p, s, rows = self.kernel, self.kernel.p, self.s, self.rows
        await_queries = partial(kd.barrier_wait, s["q_loaded"].at[self.place])
        # of a tile without keys the producer tells, too, that it has seen the release of its place
        await_queries() if kernel.counted else kd.when(self.tile.count > 0)(await_queries)
        o_acc[...] = kd.zeros((ROWS, kernel.columns), kd.float32)
        steps = partial(self._all, (s_acc, o_acc))
        if p.guarded:
            small = largest_product(p, self.tile.head, s["norms"]) * (rows.factor * rows.factor) <= MOST_LOG**2
            slot, top, total = kd.cond(small, partial(steps, True), partial(steps, False))
        else:
            slot, top, total = steps(bounded(p))
        top = rows.logarithms(top)
        return o_acc[...], top, kd.sum(total, axis=1), kernel.skip(self.me, rows.end, self.tile.count, slot, s)

    def _all(self, accs: tuple[Any, Any], light: bool) -> Any:
        """All steps, `light` without a maximum: (the stage used last, the maximum, the sum)."""
        kernel, p, s, begin, end = self.kernel, self.kernel.p, self.s, self.rows.begin, self.rows.end
        top = kd.layout_cast(kd.full((ROWS,), 0.0 if light else LOWEST, kd.float32), kd.Layout.WGMMA_ROW)
        total = kd.layout_cast(kd.zeros((ROWS, 8), kd.float32), kd.Layout.WGMMA)
        weights = kd.layout_cast(kd.zeros((ROWS, kernel.t.block_kv), p.dtype), kd.Layout.WGMMA)
        carry = (kernel.skip(self.me, 0, begin, self.start, s), weights, top, total, *self.rows.early_bias(begin))
        carry = kd.loop(begin, end, init_carry=carry)(partial(self._step, accs=accs, light=light))
        slot, weights, top, total, *_ = carry
        some = end > begin
        if kernel.apart and kernel.counted:
            kd.barrier_arrive(s["q_consumed"].at[self.place])
        if kernel.q_places == 2:
            kd.when(~some & (self.tiles > 0))(partial(kernel.release, self.before, s))
        # without steps no values were loaded, and SMEM may hold any bits
        kd.when(some)(partial(kd.wgmma, accs[1], weights, kernel.values(slot, s)))
        kd.wgmma_wait(0)
        kd.optimization_barrier(weights)
        if kernel.counted or kernel.skips:
            kd.barrier_arrive(s["v_consumed"].at[slot], some)
        return slot, top, total

    def _step(self, number: Any, carry: Any, accs: tuple[Any, Any], light: bool) -> Any:
        """Scores of a block of keys beside the product of the block before; then their softmax."""
        kernel, s, x = self.kernel, self.s, self.rows
        slot, weights, top, total, *early_bias = carry
        s_acc, o_acc = accs
        # where nothing splits the softmax, the assembler mixes its sums with its exponentials, and then waits for the
        # product before these: two consumers are too few for that, and float8's scores too short, unless there is no
        # maximum
        early = kernel.t.consumers > 2 and (kernel.p.narrow is None or (light and kernel.p.guarded))
        following = following_slot(slot, kernel.t.stages)
        index, whole = kernel.block_of(self.tile, number, s)
        x.multiply(s_acc, self.q_tile, following)
        add = partial(kd.wgmma, o_acc, weights, kernel.values(slot, s))
        kd.cond(number > x.begin, add, lambda: kd.wgmma_wait(0))
        kernel.pass_turn(self.me, s)
        bias = early_bias[0] if early_bias else x.bias(index, following)
        early_bias = x.early_bias(number, 1)
        made = kd.wgmma_accumulator_load(s_acc, wait_n=1)
        kd.barrier_arrive(s["k_consumed"].at[following])
        if early:
            self._release_before(number)
            kd.barrier_wait(s["v_loaded"].at[following])
        fresh, fade, top, total = x.weights(made, bias, index, whole, top, total, light)
        if not early:
            kd.barrier_wait(s["v_loaded"].at[following])
        kernel.keep_sums_early(self.q_tile, total)
        kd.wgmma_wait(0)
        kd.optimization_barrier(weights)  # the product, issued under a condition, read their registers until here
        kd.barrier_arrive(s["v_consumed"].at[slot], number > x.begin)
        if not early:
            self._release_before(number)
        if fade is not None:
            o_acc.scale_rows(fade)
        return following, kd.optimization_barrier(fresh.astype(kernel.p.dtype)), top, total, *early_bias

    def _release_before(self, number: Any) -> None:
        """Let the producer load queries at a tile's first step, when the previous tile's output is stored."""
        if self.kernel.q_places == 2:
            kd.when((number == self.rows.begin) & (self.tiles > 0))(partial(self.kernel.release, self.before, self.s))
