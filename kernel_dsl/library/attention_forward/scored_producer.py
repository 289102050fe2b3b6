"""The producer of attention with every option: it loads queries, keys, values and the bias of its block's tiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import kernel_dsl as kd

from ..stage_ring import await_release, fill_stages
from .problem import clear_rows
from .scored_config import listed
from .scored_tiles import ScoredTile, ScoredTiles
from .sizes import ROWS


class ScoredProducer(ScoredTiles):
    """The producer: a warpgroup that loads the tiles of its block."""

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
                for i in range(t.consumers):  # else consumers might release a place twice before it is taken
                    kd.barrier_arrive(s["q_loaded"].at[take_place(i)])

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
        # compared for one page a step, where that takes no time and a promise costs registers
        bounds = "promise" if self.parts > 1 else None
        return kd.load(s["page_table"].at[tile.batch], (pages,), mask=step < tile.count, bounds=bounds)

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
