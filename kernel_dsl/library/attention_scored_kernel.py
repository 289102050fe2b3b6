"""Attention with every option on Hopper: the loop of `attention_kernel`, with the scores' functions and masks in registers.

Blocks take tiles of queries until none is left, long ones first, and loop over the blocks of keys that some query of a tile
sees. Blocks of keys that all queries see have no mask. docs/attention.md has more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .attention_backward_walk import heads_at_once
from .attention_captured import function_of, reading
from .attention_kernel import LOG2E, LOWEST, ROWS, SLACK, SMEM_BYTES, AttentionConfig
from .attention_linear import Linear, linear_of
from .attention_opened import at_launch, declared, most_of
from .attention_pages import loaded_together
from .attention_score import ScoredProblem, ScorePlace, clear_rows, ragged_tiles

MOST_TILES = 4096  # whose order is worked out
FEW = 3  # tiles a multiprocessor, below which each has a block of its own
ROUNDING = 1.5 * 2**23 + 127  # added to a float, leaves the nearest int, and 127, in its last bits
SLOPE, SQUARE, CUBE = 0.69328293, 0.24221098, 0.05500893  # 2 ** x from -0.5 to 0.5, within 1e-4


@dataclass(frozen=True)
class ScoredTile(ScorePlace):
    """Queries from `first` on. Its steps are the `count` blocks of keys from `begin` on, or those of a list."""

    first: Any
    begin: Any
    count: Any


def lanes_of(dim: int) -> int:
    """A head dimension as wgmma takes it."""
    return kd.cdiv(dim, 16) * 16


def swizzled(dtype: Any, *shape: int, row: int = 0) -> Any:
    """A buffer with the widest swizzle that whole parts of `row` elements have."""
    span = math.gcd((row or shape[-1]) * dtype.itemsize, 128)
    return kd.SMEM(
        shape, dtype, transforms=(kd.TilingTransform((8, span // dtype.itemsize)), kd.SwizzleTransform(span))
    )


def bytes_of(p: ScoredProblem, t: AttentionConfig) -> int:
    """SMEM that a configuration takes."""
    d, dv = lanes_of(p.dim), lanes_of(p.v_dim)
    bias = 0 if p.score.bias_tiles is None else ROWS * t.consumers * p.score.bias_tiles.itemsize
    return ROWS * t.consumers * max(d, dv) * 2 + t.stages * t.block_kv * ((d + dv) * 2 + bias)


def scored_config(p: ScoredProblem) -> AttentionConfig:
    """As many keys a step as registers and SMEM hold."""
    dv = lanes_of(p.v_dim)
    without_functions = not p.score.natural and p.score.mask_mod is None
    light = without_functions and p.score.softcap is None
    if light and dv <= 64:
        choices = [AttentionConfig(3, 128, 3, turns=True)]
    elif dv <= 64:
        choices = [AttentionConfig(2, 128, 3), AttentionConfig(2, 128, 2)]
    elif dv <= 128 and without_functions:
        choices = [AttentionConfig(3, 80, 3), AttentionConfig(3, 80, 2)]
    elif dv <= 128:  # a user's function takes registers; with one of scores, consumers that take turns are faster
        choices = [AttentionConfig(2, 128, 2, turns=p.score.score_mod is not None), AttentionConfig(2, 96, 2)]
    else:
        choices = [AttentionConfig(2, 80 if light else 64, 2)]
    choices += [AttentionConfig(2, n, 2) for n in (96, 80, 64, 48)]
    return paged_config(p, next(c for c in choices if bytes_of(p, c) <= SMEM_BYTES))


def paged_config(p: ScoredProblem, config: AttentionConfig) -> AttentionConfig:
    """A configuration whose steps are as many keys as pages have, or parts of them, and no more than given."""
    found = loaded_together(p, config.block_kv) if p.page else None
    return replace(config, block_kv=found[1]) if found else config


def tiles_of(p: ScoredProblem, t: AttentionConfig) -> int:
    """Tiles of a head: of ragged lengths, as many as there may be."""
    tile = ROWS * t.consumers
    return ragged_tiles(p, tile) if p.ragged else kd.cdiv(p.queries, tile)


def blocks_of(work: int, multiprocessors: int) -> int:
    """Blocks of so many tiles: fewer where a counter deals these. It costs a launch before, more than few tiles gain."""
    return multiprocessors if work >= FEW * multiprocessors else work


def listed(p: ScoredProblem) -> bool:
    """Whether the blocks of keys of each tile come from a list."""
    return p.score.mask_mod is not None


def extras(p: ScoredProblem) -> list[str]:
    """Names of the arrays after q, k and v that the kernel takes."""
    return p.extras + ["table"] * p.ragged + ["blocks", "counts"] * listed(p)


def scored_together(p: ScoredProblem, t: AttentionConfig, multiprocessors: int) -> int:
    """How many heads of a kernel take turns, long tiles first."""
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


def takes_together(p: ScoredProblem) -> bool:
    """Whether a kernel for any lengths takes `scored_together` of each call's, first after v."""
    return p.opened and bool(p.score.causal) and not p.ragged


class _Forward:
    """What roles share."""

    def __init__(self, p: ScoredProblem, t: AttentionConfig, multiprocessors: int, promise: bool) -> None:
        self.p, self.t, self.promise = p, t, promise
        found = loaded_together(p, t.block_kv) if p.page else None
        self.chunk = found[0] if found else t.block_kv  # keys that are loaded at once
        self.parts = t.block_kv // self.chunk
        self.tile = ROWS * t.consumers
        self.most = most_of(p.queries, p.keys)
        self.tiles: Any = tiles_of(p, t)
        self.dim, self.v_dim = lanes_of(p.dim), lanes_of(p.v_dim)
        self.group = p.heads // p.kv_heads
        self.work: Any = self.tiles * p.heads * (1 if p.ragged else p.batch)
        self.multiprocessors = multiprocessors
        # a kernel for any sizes has the counter, which says to as many blocks as tiles that there are no more
        self.counted = p.opened or self.grid < self.work
        used = bytes_of(p, t)
        self.staged = p.score.bias_tiles is not None and used <= SMEM_BYTES  # the bias goes through SMEM
        # a tile's output has SMEM of its own, where there is room, so that the next tile's queries can come
        self.apart = self.counted and used + self.tile * self.v_dim * 2 <= SMEM_BYTES
        self.together: Any = p.heads
        if not p.ragged and not listed(p):
            self.together = self.group if p.opened else scored_together(p, t, multiprocessors)

    def at_launch(self, q: Any, k: Any, page_table: Any, table: Any, together: Any) -> _Forward:
        """This with the sizes of a launch: of ragged ones, the table has a line for each tile."""
        made = copy(self)
        made.p = at_launch(self.p, q, k, page_table)
        made.tiles = tiles_of(made.p, self.t) if table is None else table.shape[0]
        made.work = made.tiles * made.p.heads * (1 if table is not None else made.p.batch)
        made.together = self.together if together is None else together
        return made

    # --- where ------------------------------------------------------------------------------------

    @property
    def grid(self) -> Any:
        """How many blocks there are."""
        if not self.p.opened:
            return blocks_of(self.work, self.multiprocessors)
        return kd.where(self.work >= FEW * self.multiprocessors, self.multiprocessors, self.work)

    def each_tile(self, s: dict[str, Any], leads: bool, carry: Any, body: Callable[[Any, Any], Any]) -> None:
        """`body(tile's number, carry) -> carry` for the tiles of this block: it takes the next one when it is done with one.

        One warpgroup `leads`: it takes the next number from all blocks' counter, and leaves it in one of two places in SMEM.
        Nobody reads that place any more, as all have begun the tile before, and read their number before that.
        """
        block = kd.axis_index("block")
        if not self.counted:
            body(block, carry)
            return
        blocks = self.grid

        def turn(state: Any) -> Any:
            step, number, carry = state
            found: Any = kd.atomic_add(s["tickets"], 1) if leads else None
            if not leads:
                kd.barrier_arrive(s["ticket"])
            carry = body(number, carry)
            if leads:  # the counter answers while tiles are loaded
                s["places"][kd.rem(step + 1, 2)] = found + blocks
                kd.barrier_arrive(s["ticket"])
            kd.barrier_wait(s["ticket"])
            return step + 1, s["places"][kd.rem(step + 1, 2)], carry

        kd.while_loop(lambda state: state[1] < self.work, turn, (0, block, carry))

    def place(self, block: Any, s: dict[str, Any]) -> ScoredTile:
        """The tile of that number."""
        p, t = self.p, self.t
        if p.ragged:
            place = ScorePlace.of(p, kd.rem(block, p.heads), kd.div(block, p.heads), s)
        else:
            several = self.together * self.tiles
            part, rest = kd.div(block, several), kd.rem(block, several)
            head = part * self.together + kd.rem(rest, self.together)
            place = ScorePlace.of(p, head, self.tiles - 1 - kd.div(rest, self.together), s)
        first = place.number * self.tile
        if listed(p):
            begin, end = 0, s["counts"][self.list_of(place, s)]
        else:
            begin, end = place.blocks(p, first, self.tile, t.block_kv)
        return ScoredTile(**vars(place), first=first, begin=begin, count=end - begin)

    def list_of(self, place: ScorePlace, s: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Where the list of a tile is."""
        if self.p.opened:
            return place.batch if self.p.mask_by[0] else 0, place.head if self.p.mask_by[1] else 0, place.line
        batches, heads, _ = s["counts"].shape
        return 0 if batches == 1 else place.batch, 0 if heads == 1 else place.head, place.line

    def block_of(self, tile: ScoredTile, step: Any, s: dict[str, Any]) -> tuple[Any, Any]:
        """(block of keys, whether no query has it masked, None where that is not known) of a step; the last keys first."""
        if not listed(self.p):
            return tile.begin + tile.count - 1 - step, None
        entry = s["blocks"][(*self.list_of(tile, s), tile.count - 1 - step)]
        return kd.div(entry, 2), kd.rem(entry, 2) == 1

    def next_slot(self, slot: Any) -> Any:
        return kd.where(slot == self.t.stages - 1, 0, slot + 1)

    # --- the producer -----------------------------------------------------------------------------

    def produce(self, q: Any, k: Any, v: Any, s: dict[str, Any]) -> None:
        kd.set_max_registers(self.t.registers[1], action="decrease")
        self.each_tile(s, True, (0, 0), lambda number, carry: self.produce_tile(number, carry, q, k, v, s))

    def produce_tile(self, number: Any, carry: Any, q: Any, k: Any, v: Any, s: dict[str, Any]) -> Any:
        """Load a tile; `carry`: (the next stage, how many were filled before)."""
        p, t = self.p, self.t
        tile = self.place(number, s)
        kv_head = kd.div(tile.head, self.group)

        def fetch_queries(again: Any) -> None:
            for i in range(t.consumers):
                if self.counted:
                    kd.when(again)(partial(kd.barrier_wait, s["q_consumed"].at[i]))
                rows = kd.ds(tile.q_row + tile.first + i * ROWS, ROWS)
                view = q.at[p.rows(tile.batch, tile.head, rows, kd.ds(0, self.dim))]
                kd.copy_gmem_to_smem(view, s["q_smem"].at[i, :, kd.ds(0, self.dim)], s["q_loaded"].at[i])

        @kd.loop(0, tile.count, init_carry=carry)
        def end(step: Any, carry: Any) -> Any:
            slot, filled = carry
            index, _ = self.block_of(tile, step, s)
            first = tile.k_row + index * t.block_kv
            for name, source, dim in (("k", k, self.dim), ("v", v, self.v_dim)):
                kd.when(filled >= t.stages)(partial(kd.barrier_wait, s[f"{name}_consumed"].at[slot]))
                target, loaded = s[f"{name}_smem"].at[slot], s[f"{name}_loaded"].at[slot]
                fetch = partial(self.fetch, source, tile, kv_head, first, dim, target, s=s)
                if name == "v" and self.staged:
                    kd.when(filled >= t.stages)(partial(kd.barrier_wait, s["bias_consumed"].at[slot]))
                    here = kd.ds(tile.first, self.tile), kd.ds(index * t.block_kv, t.block_kv)
                    view = s["bias"].at[p.bias_index((tile.batch, tile.head), *here)]
                    kd.copy_gmem_to_smem(view, s["bias_smem"].at[slot], s["bias_loaded"].at[slot])
                if name == "v" and (p.ragged or p.cache):
                    beyond = tile.keys - index * t.block_kv
                    kd.when(beyond >= t.block_kv)(partial(fetch, loaded))
                    kd.when(beyond < t.block_kv)(partial(self.fetch_tail, fetch, target, loaded, beyond, s))
                else:
                    fetch(loaded)
                if name == "k":
                    kd.when(step == 0)(partial(fetch_queries, filled > 0))
            return self.next_slot(slot), kd.minimum(filled + 1, t.stages)

        return end

    def fetch(
        self, source: Any, tile: Any, kv_head: Any, first: Any, dim: int, target: Any, loaded: Any, s: dict[str, Any]
    ) -> None:
        """Load a block of keys or values. Pages beyond the last key are not looked up, and one that is not there is zeros."""
        p, t, columns = self.p, self.t, kd.ds(0, dim)
        if not p.page:
            rows = kd.ds(first, t.block_kv)
            kd.copy_gmem_to_smem(source.at[p.key_rows(tile.batch, kv_head, rows, columns)], target, loaded)
            return
        for start in range(0, t.block_kv, self.chunk):
            key = first + start
            number = kd.minimum(key, kd.maximum(tile.keys - 1, 0))
            page = s["page_table"][tile.batch, kd.div(number, p.page)]
            rows = kd.ds(kd.multiple_of(kd.rem(key, p.page), self.chunk), self.chunk)
            if self.promise:  # the interpreter reports what is not there
                kd.optimization_barrier(kd.load(source, (page, 0, 0, 0), bounds="promise"))
            view = source.at[p.key_rows(page, kv_head, rows, columns)]
            kd.copy_gmem_to_smem(view, target.at[kd.ds(start, self.chunk)], loaded)

    def fetch_tail(self, fetch: Any, target: Any, loaded: Any, count: Any, s: dict[str, Any]) -> None:
        """Values of which the first `count` are of this sequence: others, be they infinite, must be zeros."""
        fetch(s["tail_loaded"])
        kd.barrier_wait(s["tail_loaded"])
        clear_rows(target, count)
        for _ in range(self.parts):
            kd.barrier_arrive(loaded)

    # --- consumers --------------------------------------------------------------------------------

    def softmax(self, x: Any, unit: Any, by_row: Any, top: Any, total: Any) -> tuple[Any, Any, Any, Any]:
        """As in `attention_kernel`: (weights, the factor of earlier weights, maximum so far, sum so far).

        `by_row`: the number to add to a row's scores, or None.
        """
        highest = kd.max(x, axis=1)
        new_top = kd.maximum(top, highest if by_row is None else highest + by_row)
        new_top = kd.where((new_top - top) * unit > SLACK, new_top, top)
        base = (new_top if by_row is None else new_top - by_row) * unit
        weights = self.weights(kd.fma(x, unit, -base[:, None]))
        fade = kd.exp2((top - new_top) * unit)
        parts = [weights[:, i : i + 8] for i in range(0, self.t.block_kv, 8)]
        return weights, fade, new_top, sum(parts[1:], kd.fma(total, fade[:, None], parts[0]))

    def weights(self, x: Any) -> Any:
        """2 ** x; for some columns by multiply-adds, while others use the exponential unit."""
        every = self.t.polynomial
        if every is None:
            return kd.exp2(x)
        parts = [x[:, i : i + 8] for i in range(0, self.t.block_kv, 8)]
        made = [exp2_by_fma(part) if n % every == every - 1 else kd.exp2(part) for n, part in enumerate(parts)]
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
        kd.set_max_registers(self.t.registers[0], action="increase")
        kd.when(me == self.t.consumers - 1)(partial(self.pass_turn, me, s))
        start = self.t.stages - 1
        self.each_tile(s, False, start, lambda number, slot: self.consume_tile(me, number, slot, out, lse, s))

    def consume_tile(self, me: Any, number: Any, start: Any, out: Any, lse: Any, s: dict[str, Any]) -> Any:
        """Compute a consumer's rows of a tile; `start` and the result: the stage used last."""
        p, t, score = self.p, self.t, self.p.score
        tile = self.place(number, s)
        mine = tile.first + me * ROWS
        q_tile = s["q_smem"].at[me, :, kd.ds(0, self.dim)]
        scale = p.scale * self.scale(tile, "q", s) * self.scale(tile, "k", s) if p.scales else p.scale
        row = mine + kd.broadcasted_iota(kd.int32, (ROWS, t.block_kv), 0)
        column = kd.broadcasted_iota(kd.int32, (ROWS, t.block_kv), 1)
        linear = self.linear(tile, row, column)
        if linear is not None:
            score = replace(score, score_mod=None)
        factor = score.factor(scale) * LOG2E
        unit = 1.0 if linear is not None else factor
        whole_from = score.first_key(mine + (ROWS - 1), tile.queries, tile.keys)
        whole_to = score.end_key(mine, tile.queries, tile.keys)

        def scored(x: Any, index: Any, whole: Any, bias: Any) -> Any:
            """Scores of products, masked for keys that a query doesn't see."""
            place = (tile.batch, tile.head, row, index * t.block_kv + column)
            x = score.scores(x, scale, lambda: bias, place)
            if linear is not None:  # hidden, so that the columns' numbers take no registers between steps
                slope = kd.optimization_barrier(linear.by_key * LOG2E)
                x = kd.fma(x, factor, kd.broadcasted_iota(kd.int32, (1, t.block_kv), 1).astype(kd.float32) * slope)
            if whole is None:
                whole = (index * t.block_kv >= whole_from) & ((index + 1) * t.block_kv <= whole_to)
                if score.mask_mod is not None:
                    whole = False

            def hide(x: Any) -> Any:
                return kd.where(score.seen(place, tile.queries, tile.keys), x, -math.inf)

            return hide(x) if whole is False else kd.cond(whole, lambda x: x, hide, x)

        def step(number: Any, carry: Any, accs: tuple[Any, Any]) -> Any:
            slot, weights, top, total = carry
            s_acc, o_acc = accs
            following = self.next_slot(slot)
            index, whole = self.block_of(tile, number, s)
            kd.barrier_wait(s["k_loaded"].at[following])
            if t.turns:
                kd.barrier_wait(s["turn"].at[me])
            kd.wgmma(s_acc, q_tile, s["k_smem"].at[following].T, accumulate=False)
            add = partial(kd.wgmma, o_acc, weights, s["v_smem"].at[slot])
            kd.cond(number > 0, add, lambda: kd.wgmma_wait(0))
            self.pass_turn(me, s)
            bias = None
            if self.staged:
                kd.barrier_wait(s["bias_loaded"].at[following])
                rows = kd.ds(me * ROWS, ROWS)
                bias = kd.load(s["bias_smem"].at[following], (rows, slice(None)), layout=kd.Layout.WGMMA)
                kd.barrier_arrive(s["bias_consumed"].at[following])
            elif score.bias is not None:  # loaded beside the products
                here = kd.ds(mine, ROWS), kd.ds(index * t.block_kv, t.block_kv)
                bias = p.bias_tile(s["bias"], (tile.batch, tile.head), *here)
            x = kd.wgmma_accumulator_load(s_acc, wait_n=1)
            kd.barrier_arrive(s["k_consumed"].at[following])
            x = scored(x, index, whole, bias)
            by_row = None
            if linear is not None:
                lines = kd.layout_cast(mine + kd.arange(ROWS), kd.Layout.WGMMA_ROW)
                by_row = linear.at(lines, index * t.block_kv) * LOG2E
            fresh, fade, top, total = self.softmax(x, unit, by_row, top, total)
            fresh, fade, top, total = kd.optimization_barrier(fresh, fade, top, total)
            kd.barrier_wait(s["v_loaded"].at[following])
            kd.wgmma_wait(0)
            kd.optimization_barrier(weights)  # the product, issued under a condition, read their registers until here
            kd.barrier_arrive(s["v_consumed"].at[slot], number > 0)
            o_acc.scale_rows(fade)
            return following, kd.optimization_barrier(fresh.astype(p.dtype)), top, total

        def run(s_acc: Any, o_acc: Any) -> Any:
            kd.when(tile.count > 0)(partial(kd.barrier_wait, s["q_loaded"].at[me]))
            o_acc[...] = kd.zeros((ROWS, self.v_dim), kd.float32)
            top = kd.layout_cast(kd.full((ROWS,), LOWEST, kd.float32), kd.Layout.WGMMA_ROW)
            total = kd.layout_cast(kd.zeros((ROWS, 8), kd.float32), kd.Layout.WGMMA)
            weights = kd.layout_cast(kd.zeros((ROWS, t.block_kv), p.dtype), kd.Layout.WGMMA)
            carry = (start, weights, top, total)
            carry = kd.loop(0, tile.count, init_carry=carry)(partial(step, accs=(s_acc, o_acc)))
            slot, weights, top, total = carry
            some = tile.count > 0
            if self.apart:
                kd.barrier_arrive(s["q_consumed"].at[me], some)
            # with no step there are no values, and SMEM holds anything
            kd.when(some)(partial(kd.wgmma, o_acc, weights, s["v_smem"].at[slot]))
            kd.wgmma_wait(0)
            kd.optimization_barrier(weights)
            if self.counted:
                kd.barrier_arrive(s["v_consumed"].at[slot], some)
            return o_acc[...], top * unit, kd.sum(total, axis=1), slot

        types = kd.ACC((ROWS, t.block_kv), kd.float32), kd.ACC((ROWS, self.v_dim), kd.float32)
        value, top, total, slot = kd.run_scoped(run, *types)
        self.finish(me, tile, value, top, total, out, lse, s)
        if self.counted and not self.apart:
            kd.barrier_arrive(s["q_consumed"].at[me], tile.count > 0)
        return slot

    def linear(self, tile: ScoredTile, row: Any, column: Any) -> Linear | None:
        """The number that `score_mod` adds, if it is linear in the indices of queries and keys."""
        p = self.p
        if p.score.score_mod is None:
            return None
        place = tile.batch, tile.head, row, column
        like = kd.zeros(row.shape, kd.float32)
        return linear_of(function_of(p.score.score_mod), like, place, (self.most, self.most))

    def finish(
        self, me: Any, tile: ScoredTile, value: Any, top: Any, total: Any, out: Any, lse: Any, s: dict[str, Any]
    ) -> None:
        """Store a consumer's rows, whose weights are relative to 2 ** `top` and sum up to `total`."""
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
        out_tile = s["out_smem" if self.apart else "q_smem"].at[me, :, kd.ds(0, self.v_dim)]
        if self.apart:
            kd.wait_smem_to_gmem(0, wait_read_only=True)
        made = (value * factor[:, None]).astype(p.out_dtype)
        rows = kd.ds(tile.q_row + mine, ROWS)
        target = out.at[p.rows(tile.batch, tile.head, rows, kd.ds(0, self.v_dim))]

        def copy() -> None:
            out_tile[...] = made
            kd.commit_smem()
            kd.copy_smem_to_gmem(out_tile, target)
            if not self.apart:  # else the next tile waits
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

    # --- what the kernel is made of ---------------------------------------------------------------

    def scratch(self) -> dict[str, Any]:
        p, t = self.p, self.t
        made = {
            # queries, and then the output: each consumer writes where it alone has read
            "q_smem": swizzled(
                p.dtype, t.consumers, ROWS, max(self.dim, self.v_dim), row=math.gcd(self.dim, self.v_dim)
            ),
            "k_smem": swizzled(p.dtype, t.stages, t.block_kv, self.dim),
            "v_smem": swizzled(p.dtype, t.stages, t.block_kv, self.v_dim),
            "q_loaded": kd.Barrier(num_barriers=t.consumers),
        }
        for name in "kv":
            made[f"{name}_loaded"] = kd.Barrier(num_arrivals=self.parts, num_barriers=t.stages)
            made[f"{name}_consumed"] = kd.Barrier(num_arrivals=t.consumers, num_barriers=t.stages)
        if self.staged:
            made["bias_smem"] = swizzled(p.score.bias_tiles, t.stages, self.tile, t.block_kv)
            made["bias_loaded"] = kd.Barrier(num_barriers=t.stages)
            made["bias_consumed"] = kd.Barrier(num_arrivals=t.consumers, num_barriers=t.stages)
        if self.counted:
            made["q_consumed"] = kd.Barrier(num_barriers=t.consumers)
            made["places"] = kd.SMEM((2,), kd.int32)
            made["ticket"] = kd.Barrier(num_arrivals=t.consumers + 1)
        if self.apart:
            made["out_smem"] = swizzled(p.dtype, t.consumers, ROWS, self.v_dim)
        if p.ragged or p.cache:
            made["tail_loaded"] = kd.Barrier(num_arrivals=self.parts)
        if t.turns:
            made["turn"] = kd.Barrier(num_barriers=t.consumers)
        return made


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

    `promise`: that pages are in the cache, which the interpreter checks. Extents of the problem that are Dims are each
    call's own; the kernel may then take `scored_together` of its sizes before the extras.
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
        out, *lse = rest[len(names) :]
        with reading(s):
            kd.when(me == t.consumers)(lambda: shared.produce(q, k, v, s))
            kd.when(me < t.consumers)(lambda: shared.consume(me, out, lse[0] if lse else None, s))

    out_type: Any = kd.ShapeDtypeStruct(p.out_shape, p.out_dtype)
    if p.lse:
        out_type = (out_type, kd.ShapeDtypeStruct(p.lse_shape, kd.float32))

    def grid_of(q: Any, k: Any, v: Any, *rest: Any) -> tuple[int]:
        if p.ragged:  # the table has a line for each tile
            return (blocks_of(rest[names.index("table")].shape[0] * p.heads, multiprocessors),)
        given = rest[takes_together(p) :]
        lengths = at_launch(p, q, k, given[names.index("page_table")] if p.page else None)
        return (blocks_of(tiles_of(lengths, t) * lengths.batch * p.heads, multiprocessors),)

    made = kd.kernel(
        body,
        out_type=out_type,
        shapes=declared(p, names) if p.opened else None,
        scratch_types=static.scratch(),
        grid=grid_of if p.opened else (static.grid,),
        grid_names=("block",),
        num_threads=t.consumers + 1,
        thread_name="wg",
        compiler_params=kd.CompilerParams(approx_math=True),
        name="attention_scored",
    )
    return made if p.score.has_functions else identified(made, problem, config, multiprocessors, promise)
