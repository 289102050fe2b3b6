"""How blocks of attention with every option take tiles of queries."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import kernel_dsl as kd

from .opened import SMALLEST, TILES, at_launch, most_of, takes_number
from .pages import loaded_together
from .problem import ScoredProblem, ScorePlace
from .scored_config import (
    FEW,
    bias_by_key,
    blocks_of,
    bytes_of,
    computed,
    lanes_of,
    listed,
    scored_together,
    swizzled,
    tiles_of,
)
from .scored_shared import SharedTiles, shared_tiles
from .sizes import HALF, ROWS, SMEM_BYTES, AttentionConfig

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
    """The common parts of the roles."""

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
        # what products take of these, which lie in SMEM as its swizzles want
        self.depth: int = lanes_of(p.dim, p.scored_dtype)
        self.columns: int = lanes_of(p.v_dim)
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
    def most_steps(self) -> int:
        """A bound of a tile's steps, which have 16 keys or more."""
        return self.most // 16 + 1

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
            bounds = {"head": self.p.heads - 1, "number": self.most // SMALLEST}
            bounds |= dict.fromkeys(("begin", "count"), self.most_steps) | dict.fromkeys(("queries", "keys"), self.most)

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
            number = self.tiles - 1 - kd.axis_index("tile")
            if p.opened:  # sums and products of a launch's numbers have no bounds, and page numbers would take 64 bits
                head, number = kd.clip(head, 0, TILES), kd.clip(number, 0, self.most // SMALLEST)
            place = ScorePlace.of(p, head, number, s)
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
        if p.opened and p.page:
            begin, end = kd.clip(begin, 0, self.most_steps), kd.clip(end, 0, self.most_steps)
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
            made |= self.shared.scratch(t.consumers, self.columns)
        if self.apart:
            made["out_smem"] = swizzled(p.dtype, t.consumers, ROWS, self.v_dim)
        if p.ragged or p.cache:
            made["tail_loaded"] = kd.Barrier(num_arrivals=self.parts)
        if t.turns:
            made["turn"] = kd.Barrier(num_barriers=t.consumers)
        return made
