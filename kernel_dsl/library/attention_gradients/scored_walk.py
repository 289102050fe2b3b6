"""The loop of attention's backward with options: the queries that see a block's keys, ragged lengths, all dimensions."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import kernel_dsl as kd

from ..attention_forward.captured import reading
from ..attention_forward.opened import at_launch, declared, lines_of
from ..attention_forward.problem import ScoredProblem, ScorePlace, clear_rows, ragged_tiles
from ..attention_forward.scored_config import swizzled
from ..attention_forward.sizes import ROWS, SMEM_BYTES
from ..stage_ring import await_release
from .keys import Visit
from .order import (
    CONSUMERS,
    EIGHT,
    GIVEN,
    KEYS,
    NUMBERS,
    AttentionBackwardConfig,
    alternating,
    heads_at_once,
    of_steps,
    step_counts,
)
from .scored_scores import ScoredBlock, ScoredScores, ScoredStep
from .scored_sizes import (
    first_step,
    has_all_steps,
    in_order,
    inner_problem,
    keys_of,
    list_entry,
    padded_dims,
    steps_of,
    stores_queries,
    walk_extras,
    whole_units,
)
from .walk import Consumers, WalkStep


class ScoredWalk(ScoredScores):
    """The walk of a problem with options; arrays beside q, k, v, dout and stats are in the scratch under their names."""

    def __init__(
        self,
        problem: ScoredProblem,
        config: AttentionBackwardConfig,
        multiprocessors: int,
        listed: bool,
        bias_dtype: Any = None,
    ) -> None:
        dim, v_dim = padded_dims(problem)
        keys, m = keys_of(problem), config.block_q
        tiles, rows = (m // EIGHT, dim) if keys == KEYS else (dim // EIGHT, m)
        super().__init__(inner_problem(problem), config, multiprocessors, keys, tiles, rows, keys == KEYS == dim)
        self.v_dim: int = v_dim
        self.scored = problem
        self.bias_dtype = bias_dtype
        # the gradient of a bias is that of scores in the dtype of products, so that TMA stores it from where these read it
        self.turned: bool = bias_dtype == problem.dtype and whole_units(problem.keys, problem.dtype.itemsize)
        self.steps: Any = of_steps(config) // m if problem.opened else steps_of(problem, config)
        self.names: list[str] = walk_extras(problem, listed)
        if problem.ragged and config.in_turn:  # all warps clear the rows at the end of a sequence
            self.adders: bool = True
            self.registers: tuple[int, int] = 232, 24
        self.alone: bool = stores_queries(problem)
        self.stores_first: bool = self.stores_first and has_all_steps(problem)
        self.ordered: bool = in_order(problem, config)
        self.falls: bool = bool(problem.score.causal)
        if problem.ragged:
            self.splitting: bool = False
            self.blocks: Any = lines_of(problem) if problem.opened else ragged_tiles(problem, keys, problem.keys)
            self.grid: Any = problem.kv_heads * self.blocks
        self.together: int = 0 if problem.opened else self.heads_together(multiprocessors)
        tiles = problem.score.bias_tiles
        own = 0 if tiles is None or keys != KEYS else config.stages * config.block_q * KEYS * tiles.itemsize
        self.staged: bool = bool(own) and self.smem_bytes + own <= SMEM_BYTES  # the bias goes through SMEM

    @property
    def stays(self) -> bool:
        return super().stays and not self.scored.ragged

    def scored_at_launch(self, q: Any, k: Any, stats: Any, table: Any, sizes: Any) -> ScoredWalk:
        """As `at_launch`; `table`: the table of ragged keys."""
        made = copy(self)
        made.scored = at_launch(self.scored, q, k, None)
        made.p = inner_problem(made.scored)
        made.steps = stats.shape[3] // self.t.block_q
        made.blocks = table.shape[0] if self.scored.ragged else kd.cdiv(made.scored.keys, self.keys)
        made.together, made.splits = sizes[0], sizes[1].shape[0]
        return made

    def heads_together(self, multiprocessors: int) -> int:
        """The number of heads whose blocks alternate.

        It is the smallest number that keeps the last blocks short, so that running blocks share queries in L2.
        """
        p, t = self.scored, self.t
        if p.ragged:  # long sequences first, in each group of heads
            many = [n for n in range(1, p.kv_heads) if p.kv_heads % n == 0 and n * self.blocks >= 4 * multiprocessors]
            return many[0] if many else p.kv_heads
        if "order" in self.names:  # the last blocks are the short ones of as many heads as run at a time
            heads = p.batch * p.kv_heads
            many = [n for n in range(1, heads) if heads % n == 0 and 10 * n * self.blocks >= 9 * multiprocessors]
            return many[0] if many else heads
        if p.score.window is not None:
            return 1
        if not p.score.causal:
            return alternating(p.batch * p.kv_heads, self.blocks, self.steps)
        lengths = [n for n in step_counts(replace(self.p, causal=True), t, self.keys) for _ in range(t.splits)]
        return heads_at_once(lengths, p.batch * p.kv_heads, multiprocessors)

    # --- places -----------------------------------------------------------------------------------

    def block_of(self, s: dict[str, Any], visit: Visit) -> ScoredBlock:
        """A part. Those of the first keys come first, because they are the long ones in causal attention."""
        p, t = self.scored, self.t
        head, tile, split, tail = self.place_of(visit.number)
        if p.score.window is not None and isinstance(self.blocks, int) and self.blocks == 1:
            tile = kd.optimization_barrier(tile) & 1  # of a known number, masks take registers outside the loop
        if "order" in s:
            by_batch = p.mask_by[0] if self.opened else s["order"].shape[0] != 1
            tile = s["order"][kd.div(head, p.kv_heads) if by_batch else 0, 0, tile]
        place = ScorePlace.of(p, head, tile, s, p.kv_heads, by_key=True)
        key = place.number * self.keys
        begin, end = place.query_blocks(p, key, self.keys, t.block_q)
        entry = None
        if "blocks" in s:
            by_batch = p.mask_by[0] if self.opened else s["counts"].shape[0] != 1
            where = place.batch if by_batch else 0, 0, place.line
            begin, end = 0, s["counts"][where]
            entry = partial(list_entry, s["blocks"], where)
        end = kd.where(key < place.keys, end, begin) if p.ragged else end
        start, count = self.share((end - begin) * self.group, split, tail)
        base = first_step(p, t, place)
        shared = start, count, split, tail
        return ScoredBlock(place.batch, place.head, key, begin, *shared, visit, place, end - 1, base, entry)

    def last_step(self, block: Any) -> Any:
        """The number of the last step that a block has of a head, or of the last entry of its list."""
        return block.last

    def step_at(self, block: Any, index: Any, where: tuple[Any, Any, Any, Any]) -> ScoredStep:
        """The step number `index` of a head, or that of the list's entry with this number."""
        return ScoredStep(*where, *((index, None) if block.entry is None else block.entry(index)))

    @property
    def spreads(self) -> bool:
        """Blocks begin at their first step: masks give them different ones."""
        return False

    # --- the producer -----------------------------------------------------------------------------

    def view(self, ref: Any, block: ScoredBlock, head: Any, row: Any, count: int, dim: int) -> Any:
        """Some rows of a head, and zeros beyond its dimension."""
        return ref.at[self.scored.rows(block.batch, head, kd.ds(row, count), kd.ds(0, dim))]

    def copy_rows(self, view: Any, target: Any, loaded: Any, count: Any, s: dict[str, Any]) -> None:
        """Load rows. The first `count` belong to this sequence; the others, which may be infinite, must become zeros."""
        if not self.scored.ragged:
            kd.copy_gmem_to_smem(view, target, loaded)
            return
        rows = target.shape[0]

        @kd.when(count >= rows)
        def _() -> None:
            kd.copy_gmem_to_smem(view, target, loaded)

        @kd.when(count < rows)
        def _() -> None:
            kd.copy_gmem_to_smem(view, target, s["tail_loaded"])
            kd.barrier_wait(s["tail_loaded"])
            clear_rows(target, count)
            kd.barrier_arrive(loaded)

    def _fetch_block(self, q: Any, k: Any, v: Any, dout: Any, stats: Any, s: dict[str, Any], block: Any) -> None:
        t, place = self.t, block.place

        def fetch(step: WalkStep) -> None:
            first = step.index * t.block_q
            left = place.queries - first

            def own(ref: Any, dim: int, target: Any, loaded: Any) -> None:
                source = self.view(ref, block, block.kv_head, place.k_row + block.key, self.keys, dim)
                self.copy_rows(source, target, loaded, place.keys - block.key, s)

            self.load_keys(block, step, s, partial(own, k, self.p.dim))
            loaded = s["q_loaded"].at[step.slot]
            await_release(s["q_consumed"], step.slot, step.number >= t.stages)
            row = place.q_row + first
            source = self.view(q, block, step.head, row, t.block_q, self.p.dim)
            self.copy_rows(source, s["q_smem"].at[step.slot], loaded, left, s)
            where = 0 if self.scored.ragged else block.batch
            here = kd.ds((block.base + step.index) * t.block_q, t.block_q)
            kd.copy_gmem_to_smem(stats.at[where, step.head, :, here], s["stats_smem"].at[step.slot], loaded)
            if self.staged:
                await_release(s["bias_consumed"], step.slot, step.number >= t.stages)
                tile = kd.ds(first, t.block_q), kd.ds(block.key, self.keys)
                view = s["bias"].at[self.scored.bias_index((block.batch, step.head), *tile)]
                kd.copy_gmem_to_smem(view, s["bias_smem"].at[step.slot], s["bias_loaded"].at[step.slot])
            self.load_values(block, step, s, partial(own, v, self.v_dim))
            await_release(s["dout_consumed"], step.dout_slot, step.number >= t.dout_stages)
            loaded = s["dout_loaded"].at[step.dout_slot]
            source = self.view(dout, block, step.head, row, t.block_q, self.v_dim)
            self.copy_rows(source, s["dout_smem"].at[step.dout_slot], loaded, left, s)

        self.each_step(block, fetch)

    def turn_of(self, block: Any, step: WalkStep) -> Any:
        """The number of blocks that add to a step before this one."""
        place = block.place
        if self.ordered:
            return super().turn_of(block, step)
        first = self.scored.score.first_key(step.index * self.t.block_q, place.queries, place.keys)
        return kd.div(block.key, self.keys) - kd.div(first, self.keys)

    def sum_of(self, block: Any, step: WalkStep) -> tuple[Any, Any]:
        if self.ordered:
            return super().sum_of(block, step)
        head = step.head if self.scored.ragged else block.batch * self.p.heads + step.head
        return head, block.base + step.index

    # --- results ----------------------------------------------------------------------------------

    def query_place(self, block: Any, step: Any, rows: Any, columns: Any) -> tuple[Any, ...]:
        return self.scored.rows(block.batch, step.head, rows, columns)

    def store(self, value: Any, tile: Any, out: Any, block: Any, key: Any, which: int = 0) -> None:
        """Store a gradient of 64 keys from `key` on, through SMEM that the walk no longer uses."""
        p, place = self.scored, block.place

        def parts() -> tuple[Any, Any]:
            target = self.view(out, block, block.kv_head, place.k_row + key, ROWS, value.shape[1])
            return target, value.astype(self.p.dtype)

        def copy(target: Any, made: Any) -> None:
            if self.t.in_turn and not p.ragged:
                # hide the first row: otherwise places of rows are kept from before the loop, which needs the registers
                zero = kd.optimization_barrier(kd.full((), 0, kd.int32))
                tile.at[kd.ds(zero, ROWS)][...] = made
            else:
                tile[...] = made
            kd.commit_smem()
            kd.copy_smem_to_gmem(tile, target)

        if block.tail is not None:
            target = self.view(out, block, block.kv_head, place.k_row + key, ROWS, value.shape[1])
            self.store_shared(value, tile, target, block, key, which)
            return
        if not p.ragged:
            here = block.batch, block.kv_head, kd.ds(key, ROWS), kd.ds(0, value.shape[1])
            self.store_either(lambda: copy(*parts()), lambda: out.at[(block.split, *here)], value)
            return
        target, made = parts()
        whole = key + ROWS <= place.keys
        there = key + kd.broadcasted_iota(kd.int32, made.shape, 0) < place.keys
        kd.when(whole)(lambda: copy(target, made))
        kd.when(~whole)(lambda: kd.store(target, ..., made, mask=there))

    # --- the kernel -------------------------------------------------------------------------------

    def kernel(self, consumers: Consumers, *, name: str) -> Any:
        """The kernel `(q, k, v, dout, stats, *extras) -> (dk, dv, dq_sum)`; `walk_extras` names the arrays between.

        With a `bias_dtype` the gradient of the bias follows. For any sizes it takes `WalkNumbers.numbers` after stats.
        """
        names = self.names

        def body(q: Any, k: Any, v: Any, dout: Any, stats: Any, *rest: Any, **made: Any) -> None:
            self.follow()
            walk: ScoredWalk = self
            sizes, rest = (rest[:NUMBERS], rest[NUMBERS:]) if self.opened else ((), rest)
            s = made | dict(zip(names, rest, strict=False))
            if self.opened:
                walk = self.scored_at_launch(q, k, stats, s.get("table"), sizes)
            me = kd.axis_index("wg")
            dk, dv, dq_sum, turns, dbias = walk.results(rest[len(names) :])
            s |= dict(zip(["dbias"], dbias, strict=False))

            with reading(s):

                @kd.when(me == CONSUMERS)
                def _() -> None:
                    walk._produce(q, k, v, dout, stats, dq_sum, turns, s)

                if self.adders:
                    kd.when(me == CONSUMERS + 1)(lambda: walk._add(dq_sum, turns, s))

                @kd.when(me < CONSUMERS)
                def _() -> None:
                    kd.set_max_registers(self.registers[0], action="increase")
                    consumers(walk)[0](me, dk, dv, dq_sum, s)

        extra: dict[str, Any] = {"tail_loaded": kd.Barrier()} if self.scored.ragged else {}
        if self.staged:
            extra["bias_smem"] = swizzled(self.scored.score.bias_tiles, self.t.stages, self.t.block_q, KEYS, row=ROWS)
            extra["bias_loaded"] = kd.Barrier(num_barriers=self.t.stages)
            extra["bias_consumed"] = kd.Barrier(num_arrivals=CONSUMERS, num_barriers=self.t.stages)
        return kd.kernel(
            body,
            out_type=self._outputs(),
            shapes=self.shapes(len(names)),
            scratch_types=self._scratch() | extra | consumers(self)[1],
            grid=tuple(self.axes.values()),
            grid_names=tuple(self.axes),
            num_threads=CONSUMERS + 1 + self.adders,
            thread_name="wg",
            compiler_params=kd.CompilerParams(approx_math=True),
            name=name,
        )

    def _key_shapes(self) -> list[tuple[int, ...]]:
        p = self.scored
        return [p.shape(p.kv_heads, p.keys, dim) for dim in (p.dim, p.v_dim)]

    def _query_shape(self) -> tuple[int, ...]:
        p = self.scored
        return p.shape(p.heads, p.queries, p.dim)

    def _sum_lines(self) -> Any:
        return self.scored.heads * (1 if self.scored.ragged else self.scored.batch) * (1 + self.ordered)

    def _bias_outputs(self) -> list[Any]:
        if self.bias_dtype is None:
            return []
        # some scores may be in no step, because no query sees them
        score = self.scored.score
        skips = bool(score.causal) or score.window is not None or score.mask_mod is not None
        return [kd.ShapeDtypeStruct(score.bias or (), self.bias_dtype, init=0 if skips else None)]

    def _declared(self) -> dict[int, tuple[Any, ...]]:
        p, v_dim = self.scored, self.scored.v_dim
        inputs = declared(p, self.names, (p.mask_by[0], False), first=GIVEN + NUMBERS)
        stats = 1 if p.ragged else p.batch, p.heads, 2, of_steps(self.t)
        return inputs | {3: p.shape(p.heads, p.queries, v_dim), 4: stats}
