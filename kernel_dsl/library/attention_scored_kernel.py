"""Attention with every option on Hopper: the loop of `attention_kernel`, with the scores' functions and masks in registers.

Blocks take tiles of queries until none is left, long ones first, and loop over the blocks of keys that some query of a tile
sees. Blocks of keys that all queries see have no mask. docs/attention.md has more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import kernel_dsl as kd

from ..kernel import identified
from .attention_captured import function_of, reading
from .attention_norms import largest_product
from .attention_opened import at_launch, declared
from .attention_problem import ScoredProblem
from .attention_scored_config import MOST_LOG, blocks_of, bounded, extras, listed, takes_together, tiles_of
from .attention_scored_tiles import ScoredTile, ScoredTiles
from .attention_sizes import LOG2E, LOWEST, ROWS, SLACK, AttentionConfig

if TYPE_CHECKING:
    from .attention_linear import Linear

LEAST_SCALE = 1e-6  # a number divided by this is still far from float32's largest
ROUNDING = 1.5 * 2**23 + 127  # a float plus this has the nearest int, plus 127, in its last bits
SLOPE, SQUARE, CUBE = 0.69328293, 0.24221098, 0.05500893  # of 2 ** x from -0.5 to 0.5, within 1e-4


class _Forward(ScoredTiles):
    """The consumers."""

    def softmax(self, x: Any, unit: Any, added: Any, top: Any, total: Any) -> tuple[Any, Any, Any, Any]:
        """As in `attention_kernel`: (weights, the factor of earlier weights, maximum so far, sum so far).

        `added`: the number to add to all scores, or None.
        """
        highest = kd.max(x, axis=1)
        new_top = kd.maximum(top, highest if added is None else highest + added)
        new_top = kd.where((new_top - top) * unit > SLACK, new_top, top)
        base = (new_top if added is None else new_top - added) * unit
        weights = self.weights(kd.fma(x, unit, -base[:, None]))
        fade = kd.exp2((top - new_top) * unit)
        first, *parts = self.groups(weights)
        return weights, fade, new_top, sum(parts, kd.fma(total, fade[:, None], first))

    def groups(self, x: Any) -> list[Any]:
        """Groups of 8 columns. Each lane holds two columns of a group, so sums over groups stay in a lane."""
        return [x[:, i : i + 8] for i in range(0, self.t.block_kv, 8)]

    def weights(self, x: Any) -> Any:
        """2 ** x. Some columns use multiply-adds while others use the exponential unit."""
        every = self.t.polynomial
        if every is None:
            return kd.exp2(x)
        made = [exp2_by_fma(y) if n % every == every - 1 else kd.exp2(y) for n, y in enumerate(self.groups(x))]
        return kd.concatenate(made, axis=1)

    def scale(self, tile: ScoredTile, name: str, s: dict[str, Any]) -> Any:
        """The scale of an array's head; 1 without scales."""
        if name not in self.p.scales:
            return 1.0
        return self.p.scale_of(s[f"{name}_scale"], name, tile.batch, kd.div(tile.head, self.group))

    def pass_turn(self, me: Any, s: dict[str, Any]) -> None:
        if self.t.turns:
            kd.barrier_arrive(s["turn"].at[kd.where(me == self.t.consumers - 1, 0, me + 1)])

    def consume(self, me: Any, out: Any, lse: Any, s: dict[str, Any]) -> None:
        kd.set_max_registers(self.registers[0], action="increase")
        kd.when(me == self.t.consumers - 1)(partial(self.pass_turn, me, s))
        start = self.t.stages - 1, 0
        self.each_tile(s, False, start, lambda tile, carry: self.consume_tile(me, tile, carry, out, lse, s))

    def release(self, place: Any, s: dict[str, Any]) -> None:
        """Allow the producer to load queries over the output."""
        kd.wait_smem_to_gmem(0, wait_read_only=True)
        kd.barrier_arrive(s["q_consumed"].at[place])

    def consume_tile(self, me: Any, tile: ScoredTile, carry: Any, out: Any, lse: Any, s: dict[str, Any]) -> Any:
        """Compute a consumer's rows of a tile. `carry` and the result: (the stage used last, the number of tiles so
        far).
        """
        p, t, score = self.p, self.t, self.p.score
        start, tiles = carry
        place_of_q, place_before = self.query_place(tiles, me), self.query_place(tiles + 1, me)
        mine = tile.first + me * ROWS
        q_tile = s["q_smem"].at[place_of_q, :, kd.ds(0, self.dim)]
        scale = p.scale * self.scale(tile, "q", s) * self.scale(tile, "k", s) if p.scales else p.scale
        row = mine + kd.broadcasted_iota(kd.int32, (ROWS, t.block_kv), 0)
        column = kd.broadcasted_iota(kd.int32, (ROWS, t.block_kv), 1)
        linear = self.linear(tile, row, column)
        if linear is not None:
            score = replace(score, score_mod=None)
        factor = score.factor(scale) * LOG2E
        # a linear term is put into the accumulator before the products, except with softcap, which precedes the term,
        # and with scales, which may be 0
        seeded = linear is not None and score.softcap is None and not p.scales and p.scale > LEAST_SCALE
        # a masked score times a scale of 0 or below is no score below all others, so such scales come before the mask
        before = bool(p.scales) and linear is None and not score.natural and score.softcap is None
        unit = 1.0 if before or (linear is not None and not seeded) else factor
        begin, end = self.own_steps(tile, mine)
        whole_from = score.first_key(mine + (ROWS - 1), tile.queries, tile.keys)
        whole_to = score.end_key(mine, tile.queries, tile.keys)

        def release_before(number: Any) -> None:
            """Call `release` at a tile's first step, when the previous tile's output is stored."""
            if self.q_places == 2:
                kd.when((number == begin) & (tiles > 0))(partial(self.release, place_before, s))

        def scored(x: Any, place: Any, bias: Any) -> Any:
            """Scores of products."""
            x = score.scores(x, scale, lambda: bias, place)
            x = x * factor if before else x
            return x if linear is None or seeded else kd.fma(x, factor, by_column(linear.by_key * LOG2E))

        def by_column(slope: Any) -> Any:
            """The term of each column. It is hidden from the assembler, so that it takes no registers between steps."""
            slope = kd.optimization_barrier(slope)
            group = kd.layout_cast(kd.broadcasted_iota(kd.int32, (ROWS, 8), 1), kd.Layout.WGMMA)
            group = group.astype(kd.float32) * slope
            return kd.concatenate([kd.fma(slope, float(i), group) for i in range(0, t.block_kv, 8)], axis=1)

        def masked(x: Any, index: Any, place: Any, whole: Any, hidden: float) -> Any:
            """Scores or weights, with the value `hidden` for keys that a query doesn't see."""
            if whole is None:
                whole = (index * t.block_kv >= whole_from) & ((index + 1) * t.block_kv <= whole_to)
                if score.mask_mod is not None:
                    whole = False

            def hide(x: Any) -> Any:
                return kd.where(score.seen(place, tile.queries, tile.keys), x, hidden)

            return hide(x) if whole is False else kd.cond(whole, lambda x: x, hide, x)

        def step(number: Any, carry: Any, accs: tuple[Any, Any], light: bool) -> Any:
            slot, weights, top, total = carry
            s_acc, o_acc = accs
            # where nothing splits the softmax, the assembler mixes its sums with its exponentials, and then waits for the
            # product before these: two consumers are too few for that, and float8's scores too short, unless there is no
            # maximum
            early = t.consumers > 2 and (p.narrow is None or (light and p.guarded))
            following = self.next_slot(slot)
            index, whole = self.block_of(tile, number, s)
            kd.barrier_wait(s["k_loaded"].at[following])
            if t.turns:
                kd.barrier_wait(s["turn"].at[me])
            if linear is not None and seeded:
                s_acc[...] = by_column(linear.by_key * (1.0 / p.scale))
            kd.wgmma(s_acc, q_tile, s["k_smem"].at[following].T, accumulate=seeded)
            add = partial(kd.wgmma, o_acc, weights, s["v_smem"].at[slot])
            kd.cond(number > begin, add, lambda: kd.wgmma_wait(0))
            self.pass_turn(me, s)
            bias = None
            if self.staged:
                kd.barrier_wait(s["bias_loaded"].at[following])
                rows = kd.ds(me * ROWS, ROWS)
                bias = kd.load(s["bias_smem"].at[following], (rows, slice(None)), layout=kd.Layout.WGMMA)
                kd.barrier_arrive(s["bias_consumed"].at[following])
            elif score.bias is not None:  # load it beside the products
                here = kd.ds(mine, ROWS), kd.ds(index * t.block_kv, t.block_kv)
                bias = p.bias_tile(s["bias"], (tile.batch, tile.head), *here)
            x = kd.wgmma_accumulator_load(s_acc, wait_n=1)
            kd.barrier_arrive(s["k_consumed"].at[following])
            if early:
                release_before(number)
                kd.barrier_wait(s["v_loaded"].at[following])
            place = tile.batch, tile.head, row, index * t.block_kv + column
            x = scored(x, place, bias)
            added = fade = None
            if light:
                if p.guarded:  # the mask comes before the exponentials, so that these mix with their sums
                    fresh = self.weights(masked(x * unit, index, place, whole, -math.inf))
                else:  # the mask comes last, so that the instructions of both functions mix
                    fresh = masked(self.weights(x * unit), index, place, whole, 0.0)
                fresh, total = kd.optimization_barrier(fresh, sum(self.groups(fresh), total))
            else:
                x = masked(x, index, place, whole, -math.inf)
                if linear is not None:
                    added = linear.at(mine, index * t.block_kv) * (LOG2E / factor if seeded else LOG2E)
                fresh, fade, top, total = self.softmax(x, unit, added, top, total)
                fresh, fade, top, total = kd.optimization_barrier(fresh, fade, top, total)
            if not early:
                kd.barrier_wait(s["v_loaded"].at[following])
            if listed(p) and t.consumers == 2:
                # no sum is below 0, so this stores nothing; but the assembler puts the sums before the wait
                kd.store(q_tile, (slice(None), kd.ds(0, 8)), total.astype(p.scored_dtype), mask=total < 0)
            kd.wgmma_wait(0)
            kd.optimization_barrier(weights)  # the product, issued under a condition, read their registers until here
            kd.barrier_arrive(s["v_consumed"].at[slot], number > begin)
            if not early:
                release_before(number)
            if fade is not None:
                o_acc.scale_rows(fade)
            return following, kd.optimization_barrier(fresh.astype(p.dtype)), top, total

        def run(s_acc: Any, o_acc: Any) -> Any:
            kd.when(tile.count > 0)(partial(kd.barrier_wait, s["q_loaded"].at[place_of_q]))
            o_acc[...] = kd.zeros((ROWS, self.v_dim), kd.float32)

            def steps(light: bool) -> Any:
                """All steps, `light` without a maximum: (the stage used last, the maximum, the sum)."""
                top = kd.layout_cast(kd.full((ROWS,), 0.0 if light else LOWEST, kd.float32), kd.Layout.WGMMA_ROW)
                total = kd.layout_cast(kd.zeros((ROWS, 8), kd.float32), kd.Layout.WGMMA)
                weights = kd.layout_cast(kd.zeros((ROWS, t.block_kv), p.dtype), kd.Layout.WGMMA)
                carry = (self.skip(me, 0, begin, start, s), weights, top, total)
                carry = kd.loop(begin, end, init_carry=carry)(partial(step, accs=(s_acc, o_acc), light=light))
                slot, weights, top, total = carry
                some = end > begin
                if self.apart and self.counted:
                    kd.barrier_arrive(s["q_consumed"].at[place_of_q])
                if self.q_places == 2:
                    kd.when(~some & (tiles > 0))(partial(self.release, place_before, s))
                # without steps no values were loaded, and SMEM may hold any bits
                kd.when(some)(partial(kd.wgmma, o_acc, weights, s["v_smem"].at[slot]))
                kd.wgmma_wait(0)
                kd.optimization_barrier(weights)
                if self.counted or self.skips:
                    kd.barrier_arrive(s["v_consumed"].at[slot], some)
                return slot, top, total

            if p.guarded:
                small = largest_product(p, tile.head, s["norms"]) * (factor * factor) <= MOST_LOG**2
                slot, top, total = kd.cond(small, partial(steps, True), partial(steps, False))
            else:
                slot, top, total = steps(bounded(p))
            top = top * unit
            if linear is not None:  # the row's part of the term changes no weight
                lines = kd.layout_cast(kd.arange(ROWS), kd.Layout.WGMMA_ROW).astype(kd.float32)
                top = top + lines * (linear.by_query * LOG2E)
            return o_acc[...], top, kd.sum(total, axis=1), self.skip(me, end, tile.count, slot, s)

        types = kd.ACC((ROWS, t.block_kv), kd.float32), kd.ACC((ROWS, self.v_dim), kd.float32)
        value, top, total, slot = kd.run_scoped(run, *types)
        last, place = None, s["out_smem"].at[me] if self.apart else s["q_smem"].at[place_of_q]
        if self.shared is not None:
            where = me, tile.batch * p.heads + tile.head, tile.number, self.tiles
            value, top, total, last = self.shared.joined(*where, value, top, total, s)
        finish = partial(self.finish, me, tile, value, top, total, out, lse, place, s)
        finish() if last is None else kd.when(last)(finish)
        if self.counted and not self.apart and self.q_places == 1:
            kd.barrier_arrive(s["q_consumed"].at[place_of_q])
        return slot, tiles + 1

    @property
    def skips(self) -> bool:
        """Whether a consumer may see fewer keys than its tile does."""
        score = self.p.score
        return not listed(self.p) and (bool(score.causal) or score.window is not None)

    def own_steps(self, tile: ScoredTile, first: Any) -> tuple[Any, Any]:
        """(the first, the end) of a tile's steps with keys that a consumer's queries, from `first` on, see."""
        if not self.skips:
            return 0, tile.count
        begin, end = tile.blocks(self.p, first, ROWS, self.t.block_kv)
        last = tile.begin + tile.count
        return last - kd.where(first < tile.queries, end, begin), last - begin

    def skip(self, me: Any, begin: Any, end: Any, slot: Any, s: dict[str, Any]) -> Any:
        """Release the stages of steps that this consumer skips. Returns the stage used last."""
        if not self.skips:
            return slot

        def step(_: Any, slot: Any) -> Any:
            following = self.next_slot(slot)
            for name in ("k", "v") + ("bias",) * self.staged:
                kd.barrier_wait(s[f"{name}_loaded"].at[following])
                if name == "k" and self.t.turns:
                    kd.barrier_wait(s["turn"].at[me])
                    self.pass_turn(me, s)
                kd.barrier_arrive(s[f"{name}_consumed"].at[following])
            return following

        return kd.loop(begin, end, init_carry=slot)(step)

    def linear(self, tile: ScoredTile, row: Any, column: Any) -> Linear | None:
        """The number that `score_mod` adds, if it is linear in the indices of queries and keys."""
        from .attention_linear import linear_of  # operations, imported for the first trace

        p = self.p
        if p.score.score_mod is None:
            return None
        place = tile.batch, tile.head, row, column
        like = kd.zeros(row.shape, kd.float32)
        return linear_of(function_of(p.score.score_mod), like, place, (self.most, self.most))

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
            highest = kd.maximum(top, sink)
            fade = kd.exp2(top - highest)
            top, total = highest, kd.fma(total, fade, kd.exp2(sink - highest))
            factor = fade / total
        else:
            factor = kd.where(total == 0, 0.0, 1.0 / total)
        if "v" in p.scales:
            factor = factor * self.scale(tile, "v", s)
        out_tile = place.at[:, kd.ds(0, self.v_dim)]
        if self.apart:
            kd.wait_smem_to_gmem(0, wait_read_only=True)
        made = (value * factor[:, None]).astype(p.out_dtype)
        rows = kd.ds(tile.q_row + mine, ROWS)
        target = out.at[p.rows(tile.batch, tile.head, rows, kd.ds(0, self.v_dim))]

        def copy() -> None:
            out_tile[...] = made
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
            kd.when(~whole)(lambda: kd.store(target, ..., made, mask=there))
        if p.lse:
            logs = kd.where(total == 0, -math.inf, (top + kd.log2(total)) * (1.0 / LOG2E))
            where = p.lse_rows(tile.batch, tile.head, rows)
            there = mine + kd.arange(ROWS) < tile.queries if p.ragged else None
            kd.store(lse, where, logs, mask=there)


def exp2_by_fma(x: Any) -> Any:
    """2 ** x of x up to 128, by nine instructions that do not use the exponential unit; 0 below -126.5, NaN stays NaN."""
    x = kd.maximum(x, -127.0)
    moved = x + ROUNDING
    part = x - (moved - ROUNDING)  # -0.5 to 0.5
    value = kd.fma(kd.fma(kd.fma(part, CUBE, SQUARE), part, SLOPE), part, 1.0)
    return value * kd.bitcast_convert_type(kd.bitcast_convert_type(moved, kd.int32) << 23, kd.float32)


@cache
def scored_kernel(problem: ScoredProblem, config: AttentionConfig, multiprocessors: int, promise: bool = False) -> Any:
    """The kernel `(q, k, v, *extras) -> out` or `-> (out, lse)`; `extras` names the arrays between.

    `promise`: that pages are in the cache, which the interpreter checks. Each call gives the extents that are Dims; the
    kernel may then take `scored_together` of its sizes before the extras.
    """
    p, t, names = problem, config, extras(problem)
    static = _Forward(p, t, multiprocessors, promise)

    def body(q: Any, k: Any, v: Any, *rest: Any, **scratch: Any) -> None:
        shared = static
        if p.opened:
            together, rest = (rest[0], rest[1:]) if takes_together(p) else (None, rest)
            table = rest[names.index("table")] if p.ragged else None
            shared = static.at_launch(q, k, rest[names.index("page_table")] if p.page else None, table, together)
        me, s = kd.axis_index("wg"), scratch | dict(zip(names, rest, strict=False))
        if shared.counted:
            s["tickets"] = kd.get_global(kd.SemaphoreType.REGULAR)
        if shared.shared is not None:
            s["shared_turns"] = kd.get_global(kd.SemaphoreType.REGULAR((shared.shared.count, t.consumers)))
        out, *lse = rest[len(names) :]
        with reading(s):
            kd.when(me == t.consumers)(lambda: shared.produce(q, k, v, s))
            kd.when(me < t.consumers)(lambda: shared.consume(me, out, lse[0] if lse else None, s))

    out_type: Any = kd.ShapeDtypeStruct(p.out_shape, p.out_dtype)
    if p.lse:
        out_type = (out_type, kd.ShapeDtypeStruct(p.lse_shape, kd.float32))

    def blocks_for(work: Any) -> Any:
        return work if p.alone else blocks_of(work, multiprocessors)

    def grid_of(q: Any, k: Any, v: Any, *rest: Any) -> tuple[int, ...]:
        if p.ragged:  # the table has a line for each tile
            return (blocks_for(rest[names.index("table")].shape[0] * p.heads),)
        given = rest[takes_together(p) :]
        lengths = at_launch(p, q, k, given[names.index("page_table")] if p.page else None)
        heads = lengths.batch * p.heads
        return (heads, tiles_of(lengths, t)) if p.alone else (blocks_for(tiles_of(lengths, t) * heads),)

    made = kd.kernel(
        body,
        out_type=out_type,
        shapes=declared(p, names) if p.opened else None,
        scratch_types=static.scratch(),
        grid=grid_of if p.opened else (static.grid,),
        grid_names=("block", "tile") if p.alone and not p.ragged else ("block",),
        num_threads=t.consumers + 1,
        thread_name="wg",
        compiler_params=kd.CompilerParams(approx_math=True),
        name="attention_scored",
    )
    return made if p.score.has_functions else identified(made, problem, config, multiprocessors, promise)
