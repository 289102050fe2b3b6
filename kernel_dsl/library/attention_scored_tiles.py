"""How blocks of attention with every option take tiles of queries, and how their producer loads these and the keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import kernel_dsl as kd

from .attention_opened import SMALLEST, at_launch, most_of, takes_number
from .attention_pages import loaded_together
from .attention_problem import ScoredProblem, ScorePlace, clear_rows
from .attention_scored_config import (
    FEW,
    bias_by_key,
    blocks_of,
    bytes_of,
    computed,
    listed,
    scored_together,
    swizzled,
    tiles_of,
)
from .attention_scored_shared import SharedTiles, shared_tiles
from .attention_sizes import HALF, ROWS, SMEM_BYTES, AttentionConfig
from .stage_ring import await_release, fill_stages

MOST_HELD = 124  # registers of scores, weights and output, of a consumer's 152
# fields that differ from tile to tile
MOVING = "batch", "head", "number", "begin", "count", "q_row", "k_row", "queries", "keys", "line", "entry"


@dataclass(frozen=True)
class ScoredTile(ScorePlace):
    """A tile: queries from `first` on. Its steps are the `count` blocks of keys from `begin` on, or the blocks of a
    list, which begins with `entry`.
    """

    first: Any
    begin: Any
    count: Any
    entry: Any = 0


class ScoredTiles:
    """The common parts of the roles, and the producer."""

    def __init__(self, p: ScoredProblem, t: AttentionConfig, multiprocessors: int, promise: bool) -> None:
        self.p: ScoredProblem = p
        self.t: AttentionConfig = t
        self.promise: bool = promise
        found = loaded_together(p, t.block_kv) if p.page else None
        self.chunk: int = found[0] if found else t.block_kv  # keys that one copy loads
        self.parts: int = t.block_kv // self.chunk
        self.tile: int = ROWS * t.consumers
        self.most: int = most_of(p.queries, p.keys)
        self.tiles: Any = tiles_of(p, t)
        self.dim: int = computed(p.dim, p.scored_dtype)
        self.v_dim: int = computed(p.v_dim)
        self.group: int = p.heads // p.kv_heads
        self.work: Any = self.tiles * p.heads * (1 if p.ragged else p.batch)
        self.multiprocessors = multiprocessors
        # a kernel for all sizes has the counter, also with as many blocks as tiles: then it shows that no tile is left
        self.counted = not p.shared and (not p.alone if p.opened else self.grid < self.work)
        used = bytes_of(p, t)
        self.staged: bool = p.score.bias_tiles is not None and used <= SMEM_BYTES  # the bias goes through SMEM
        # few consumers have registers for it, and no third one that computes while they wait
        spare = t.consumers == 1 or (t.consumers == 2 and self.v_dim <= 64)
        self.bias_ahead: bool = spare and bias_by_key(p) and not listed(p)
        # to load queries early, the next tile's queries have their own SMEM if there is room, otherwise the output has
        twice = self.counted and p.narrow is None
        self.q_places = 2 if twice and used + self.tile * max(self.dim, self.v_dim) * 2 <= SMEM_BYTES else 1
        self.apart = self.q_places == 1 and self.counted and used + self.tile * self.v_dim * 2 <= SMEM_BYTES
        self.apart = self.apart or p.narrow is not None
        self.together: Any = p.heads
        if not p.ragged and not listed(p):
            self.together = self.group if p.opened else scored_together(p, t, multiprocessors)

        self.shared: SharedTiles | None = None
        if self.counted and not p.opened:
            self.shared = shared_tiles(p, t, self.work, self.together, multiprocessors)
        if self.shared:
            self.work = self.shared.end

    @property
    def registers(self) -> tuple[int, int]:
        """(registers a lane of a consumer, of the producer). A producer that looks places up spills with 32, and one that
        loads many pages of ragged sequences with 40. It has more where consumers have some to give: most of what one
        holds are scores, weights and output.
        """
        if self.t.consumers == 1 and self.v_dim > HALF:
            return 240, 96
        if self.t.consumers == 1:
            return (200, 56) if self.parts > 1 or self.finds_places else self.t.registers
        if self.t.consumers == 2:
            return (216, 72) if self.p.page else self.t.registers
        held = self.t.block_kv * 3 // 4 + self.v_dim // 2
        gives = self.parts > 1 or (self.finds_places and held <= MOST_HELD)
        return (152, 56) if gives and self.t.consumers == 3 else self.t.registers

    def at_launch(self, q: Any, k: Any, page_table: Any, table: Any, number: Any) -> Any:
        """These tiles with the sizes of a launch, and its `number`: of splits, or of heads that go together, or None. With
        ragged lengths, the table has a line for each tile.
        """
        made = copy(self)
        made.p = at_launch(self.p, q, k, page_table)
        if self.p.shared:
            made.p = replace(made.p, splits=number)
        made.tiles = tiles_of(made.p, self.t) if table is None else table.shape[0]
        made.work = made.tiles * made.p.heads * (1 if table is not None else made.p.batch)
        made.together = self.together if number is None or self.p.shared else number
        return made

    # --- places -----------------------------------------------------------------------------------

    @property
    def grid(self) -> Any:
        """The number of blocks."""
        if not self.p.opened:
            return blocks_of(self.work, self.multiprocessors)
        return kd.where(self.work >= FEW * self.multiprocessors, self.multiprocessors, self.work)

    def each_tile(self, s: dict[str, Any], leads: bool, carry: Any, body: Callable[..., Any]) -> None:
        """Call `body(tile, carry) -> carry` for the tiles of this block. It takes the next tile when one is done.

        One warpgroup `leads`: it takes the next number from the counter of all blocks, looks up the tile, and stores it
        to one of two lines in SMEM. No warpgroup reads that line any more: all have begun the tile before, and they
        read this line before that. If it `finds_places`, its `body(tile, carry, look)` calls `look()` for that.
        """
        block = kd.axis_index("block")
        made = self.place(block, s)
        if not self.counted:
            body(made, carry)
            return
        names, tile_of = self.moving(made)
        blocks = self.grid

        def turn(state: Any) -> Any:
            step, _, fields, carry = state
            found: Any = kd.atomic_add(s["tickets"], 1) if leads else None
            if not leads:
                kd.barrier_arrive(s["ticket"])

            def look(line: Any) -> None:  # the counter's value arrives while tiles are loaded
                number = found + blocks
                following = self.place(number, s)
                for i, value in enumerate([number, *(getattr(following, name) for name in names)]):
                    s["places"][line, i] = value
                kd.barrier_arrive(s["ticket"])

            if leads and self.finds_places:
                line = kd.rem(step + 1, 2)
                carry = body(tile_of(fields), carry, partial(look, line))
            else:
                carry = body(tile_of(fields), carry)
                line = kd.rem(step + 1, 2)
                if leads:
                    look(line)
            kd.barrier_wait(s["ticket"])
            return step + 1, s["places"][line, 0], tuple(s["places"][line, i + 1] for i in range(len(names))), carry

        fields = tuple(getattr(made, name) for name in names)
        kd.while_loop(lambda state: state[1] < self.work, turn, (0, block, fields, carry))

    def moving(self, made: ScoredTile) -> tuple[list[str], Callable[[tuple[Any, ...]], ScoredTile]]:
        """(the fields in which this block's other tiles differ from `made`, the tile with such fields)."""
        same = () if self.p.ragged else ("queries", "line") if self.p.cache else ("queries", "keys", "line")
        names = [name for name in MOVING if name not in same and not isinstance(getattr(made, name), int)]

        bounds: dict[str, int] = {}  # known of the first tile, and lost in SMEM; without them page numbers take 64 bits
        if self.p.page:
            steps = self.most // 16 + 1
            bounds = {"head": self.p.heads - 1, "number": self.most // SMALLEST, "begin": steps, "count": steps}
            bounds |= {"queries": self.most, "keys": self.most}

        def tile_of(fields: tuple[Any, ...]) -> ScoredTile:
            found = {n: kd.clip(x, 0, bounds[n]) if n in bounds else x for n, x in zip(names, fields, strict=True)}
            if not self.p.ragged:
                found["line"] = found["number"]
            return replace(made, **found, first=self.first_of(found["number"]))

        return names, tile_of

    @property
    def finds_places(self) -> bool:
        """Whether places of tiles stand in GMEM. A tile is then looked up while the tile before is loaded, and its queries
        are loaded before its keys, if they have their own SMEM: with few steps a tile, nothing else hides this time.
        """
        return listed(self.p) or self.p.ragged or bool(self.p.cache)

    @property
    def by_groups(self) -> bool:
        """Whether the grid also has an axis of the heads that go together, within that of tiles."""
        return self.p.alone and not self.p.shared and takes_number(self.p)

    def first_of(self, number: Any) -> Any:
        """The first query of a tile."""
        return (number if self.shared is None else kd.rem(number, self.tiles)) * self.tile

    def place(self, block: Any, s: dict[str, Any]) -> ScoredTile:
        """The tile of this block's number."""
        p, t = self.p, self.t
        if p.ragged:
            place = ScorePlace.of(p, kd.rem(block, p.heads), kd.div(block, p.heads), s)
        elif p.alone or p.shared:  # the grid has an axis of tiles, long ones first, so that nothing is divided
            head = block * self.together + kd.axis_index("head") if self.by_groups else block
            place = ScorePlace.of(p, head, self.tiles - 1 - kd.axis_index("tile"), s)
        elif self.shared is not None:
            place = ScorePlace.of(p, *self.shared.place(block, self.tiles, self.together), s)
        else:
            several = self.together * self.tiles
            part, rest = kd.div(block, several), kd.rem(block, several)
            head = part * self.together + kd.rem(rest, self.together)
            place = ScorePlace.of(p, head, self.tiles - 1 - kd.div(rest, self.together), s)
        first = self.first_of(place.number)
        entry: Any = 0
        if listed(p):
            begin, end = self.part_of(0, s["counts"][self.list_of(place, s)])
            entry = s["blocks"][(*self.list_of(place, s), begin)]
        else:
            begin, end = self.part_of(*place.blocks(p, first, self.tile, t.block_kv))
        if self.shared is not None:
            begin, end = self.shared.share(place.number, self.tiles, begin, end)
        return ScoredTile(**vars(place), first=first, begin=begin, count=end - begin, entry=entry)

    def part_of(self, begin: Any, end: Any) -> tuple[Any, Any]:
        """This block's part of the steps from `begin` to `end`: all of them unless tiles share keys."""
        if not self.p.shared:
            return begin, end
        part, steps = kd.axis_index("part"), end - begin
        return begin + kd.div(steps * part, self.p.splits), begin + kd.div(steps * (part + 1), self.p.splits)

    def list_of(self, place: ScorePlace, s: dict[str, Any]) -> tuple[Any, Any, Any]:
        """The index of a tile's list."""
        if self.p.opened:
            return place.batch if self.p.mask_by[0] else 0, place.head if self.p.mask_by[1] else 0, place.line
        batches, heads, _ = s["counts"].shape
        return 0 if batches == 1 else place.batch, 0 if heads == 1 else place.head, place.line

    def block_of(self, tile: ScoredTile, step: Any, s: dict[str, Any]) -> tuple[Any, Any]:
        """(block of keys, whether no query has it masked, None where that is not known) of a step; without a list the last
        keys first.
        """
        if not listed(self.p):
            return tile.begin + tile.count - 1 - step, None
        entry = s["blocks"][(*self.list_of(tile, s), self.entry_of(tile, step))]
        return kd.div(entry, 2), kd.rem(entry, 2) == 1

    def entry_of(self, tile: ScoredTile, step: Any) -> Any:
        """The number of a step's entry in the tile's list."""
        return tile.begin + step if self.p.shared else step

    # --- the producer -----------------------------------------------------------------------------

    def produce(self, q: Any, k: Any, v: Any, s: dict[str, Any]) -> None:
        kd.set_max_registers(self.registers[1], action="decrease")
        self.each_tile(s, True, (0, 0, 0), partial(self.produce_tile, sources=(q, k, v), s=s))

    def produce_tile(
        self,
        tile: ScoredTile,
        carry: Any,
        look: Callable[[], None] | None = None,
        *,
        sources: tuple[Any, Any, Any],
        s: dict[str, Any],
    ) -> Any:
        """Load a tile. `carry`: (the next stage, the number of stages filled before, the number of tiles before).
        `look()` looks up the next tile, if that is done here.
        """
        q, k, v = sources
        p, t = self.p, self.t
        kv_head = kd.div(tile.head, self.group)
        *carry, tiles = carry

        def take_place(i: int) -> Any:
            """Wait for the place of a consumer's queries; its number."""
            place = self.query_place(tiles, i)
            if self.counted:
                await_release(s["q_consumed"], place, tiles >= self.q_places)
            return place

        def fetch_queries() -> None:
            for i in range(t.consumers):
                place = take_place(i)
                rows = kd.ds(tile.q_row + tile.first + i * ROWS, ROWS)
                view = q.at[p.rows(tile.batch, tile.head, rows, kd.ds(0, self.dim))]
                kd.copy_gmem_to_smem(view, s["q_smem"].at[place, :, kd.ds(0, self.dim)], s["q_loaded"].at[place])

        queries_first = look is not None and self.q_places == 2
        if look is not None:
            kd.when(tile.count == 0)(look)

        def fill(step: Any, slot: Any, filled: Any, pages: Any, *entries: Any) -> tuple[Any, ...]:
            if listed(p):  # the next entry arrives while this step's keys are loaded
                index = kd.div(entries[0], 2)
                here = *self.list_of(tile, s), self.entry_of(tile, step + 1)
                entries = (kd.load(s["blocks"], here, mask=step + 1 < tile.count),)
            else:
                index, _ = self.block_of(tile, step, s)
            if queries_first:
                kd.when(step == 0)(fetch_queries)
            later = self.pages_of(tile, step + 1, s)
            if self.parts > 1:
                s["pages"][...] = pages
                pages = s["pages"]
            first = tile.k_row + index * t.block_kv
            for name, source, dim in (("k", k, self.dim), ("v", v, self.v_dim)):
                await_release(s[f"{name}_consumed"], slot, filled >= t.stages)
                target, loaded = s[f"{name}_smem"].at[slot], s[f"{name}_loaded"].at[slot]
                fetch = partial(self.fetch, source, tile, kv_head, first, dim, target, pages=pages)
                if name == "v" and self.staged:
                    await_release(s["bias_consumed"], slot, filled >= t.stages)
                    here = kd.ds(tile.first, self.tile), kd.ds(index * t.block_kv, t.block_kv)
                    view = s["bias"].at[p.bias_index((tile.batch, tile.head), *here)]
                    kd.copy_gmem_to_smem(view, s["bias_smem"].at[slot], s["bias_loaded"].at[slot])
                if name == "v" and (p.ragged or p.cache):
                    beyond = tile.keys - index * t.block_kv
                    kd.when(beyond >= t.block_kv)(partial(fetch, loaded))
                    kd.when(beyond < t.block_kv)(partial(self.fetch_tail, fetch, target, loaded, beyond, s))
                else:
                    fetch(loaded)
                if name == "k" and not queries_first:
                    kd.when(step == 0)(fetch_queries)
            if look is not None:  # the loads of all stages are in flight
                kd.when(step == kd.minimum(tile.count, t.stages) - 1)(look)
            return later, *entries

        state = self.pages_of(tile, 0, s), *([tile.entry] if listed(p) else [])
        end = fill_stages(tile.count, t.stages, (*carry, *state), fill)
        if self.counted:  # the output uses this place, also if there are no keys

            @kd.when(tile.count == 0)
            def _() -> None:
                for i in range(t.consumers):
                    take_place(i)

        return (*end[:2], tiles + 1)

    def query_place(self, tiles: Any, consumer: Any) -> Any:
        """The place in SMEM of a consumer's queries, for a block's tile with that number."""
        return consumer if self.q_places == 1 else kd.rem(tiles, 2) * self.t.consumers + consumer

    def pages_of(self, tile: Any, step: Any, s: dict[str, Any]) -> Any:
        """The pages of a step, looked up a step before they are loaded; None without pages. Lanes hold several pages
        together. Pages beyond the last key are replaced by the page of the last key.
        """
        if not self.p.page:
            return None
        index, _ = self.block_of(tile, kd.minimum(step, kd.maximum(tile.count - 1, 0)), s)
        index, last = kd.maximum(index, 0), kd.maximum(tile.keys - 1, 0)
        part = kd.arange(self.parts) if self.parts > 1 else 0
        if self.chunk == self.p.page:
            pages = kd.minimum(index * self.parts + part, kd.div(last, self.p.page))
        else:
            pages = kd.div(kd.minimum(index * self.t.block_kv + part * self.chunk, last), self.p.page)
        return kd.load(s["page_table"].at[tile.batch], (pages,), mask=step < tile.count)

    def fetch(
        self,
        source: Any,
        tile: Any,
        kv_head: Any,
        first: Any,
        dim: int,
        target: Any,
        loaded: Any,
        pages: Any,
    ) -> None:
        """Load a block of keys or values. A missing page gives zeros."""
        p, t, columns = self.p, self.t, kd.ds(0, dim)
        if not p.page:
            rows = kd.ds(first, t.block_kv)
            kd.copy_gmem_to_smem(source.at[p.key_rows(tile.batch, kv_head, rows, columns)], target, loaded)
            return
        page = pages[0] if self.parts > 1 else pages
        for part, start in enumerate(range(0, t.block_kv, self.chunk)):
            following = pages[part + 1] if part + 1 < self.parts else page  # it arrives while this copy is issued
            inside = 0 if self.chunk == p.page else kd.multiple_of(kd.rem(first + start, p.page), self.chunk)
            rows = kd.ds(inside, self.chunk)
            if self.promise:  # the interpreter reports missing pages
                kd.optimization_barrier(kd.load(source, (page, 0, 0, 0), bounds="promise"))
            view = source.at[p.key_rows(page, kv_head, rows, columns)]
            kd.copy_gmem_to_smem(view, target.at[kd.ds(start, self.chunk)], loaded)
            page = following

    def fetch_tail(self, fetch: Any, target: Any, loaded: Any, count: Any, s: dict[str, Any]) -> None:
        """Load values. The first `count` belong to this sequence. The others may be infinite, so they are replaced by
        zeros.
        """
        fetch(s["tail_loaded"])
        kd.barrier_wait(s["tail_loaded"])
        clear_rows(target, count)
        for _ in range(self.parts):
            kd.barrier_arrive(loaded)

    # --- parts of the kernel ----------------------------------------------------------------------

    def scratch(self) -> dict[str, Any]:
        p, t = self.p, self.t
        columns = self.dim if self.apart else max(self.dim, self.v_dim)
        row = self.dim if self.apart else math.gcd(self.dim, self.v_dim)
        made: dict[str, Any] = {}
        if self.parts > 1:  # before the tiles, whose alignment leaves room: with more SMEM fewer blocks would share it
            made["pages"] = kd.SMEM((self.parts,), kd.int32)  # of a step: in registers they would take one each
        made |= {
            # queries, and then the output: each consumer writes only where it alone has read
            "q_smem": swizzled(p.scored_dtype, self.q_places * t.consumers, ROWS, columns, row=row),
            "k_smem": swizzled(p.scored_dtype, t.stages, t.block_kv, self.dim),
            "v_smem": swizzled(p.dtype, t.stages, t.block_kv, self.v_dim),
            "q_loaded": kd.Barrier(num_barriers=self.q_places * t.consumers),
        }
        for name in "kv":
            made[f"{name}_loaded"] = kd.Barrier(num_arrivals=self.parts, num_barriers=t.stages)
            made[f"{name}_consumed"] = kd.Barrier(num_arrivals=t.consumers, num_barriers=t.stages)
        if self.staged:
            made["bias_smem"] = swizzled(p.score.bias_tiles, t.stages, self.tile, t.block_kv)
            made["bias_loaded"] = kd.Barrier(num_barriers=t.stages)
            made["bias_consumed"] = kd.Barrier(num_arrivals=t.consumers, num_barriers=t.stages)
        if self.counted:
            made["q_consumed"] = kd.Barrier(num_barriers=self.q_places * t.consumers)
            made["places"] = kd.SMEM((2, len(MOVING) + listed(p)), kd.int32)  # a number, and these fields
            made["ticket"] = kd.Barrier(num_arrivals=t.consumers + 1)
        if self.shared is not None:
            made |= self.shared.scratch(t.consumers, self.v_dim)
        if self.apart:
            made["out_smem"] = swizzled(p.dtype, t.consumers, ROWS, self.v_dim)
        if p.ragged or p.cache:
            made["tail_loaded"] = kd.Barrier(num_arrivals=self.parts)
        if t.turns:
            made["turn"] = kd.Barrier(num_barriers=t.consumers)
        return made
