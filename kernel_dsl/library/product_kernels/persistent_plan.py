"""What the kernel of Hopper's fast product follows from: its tiles, its SMEM, and which tiles a block computes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import kernel_dsl as kd
from kernel_dsl.dataclass import changed
from kernel_dsl.layouts import meta_step

from ..activations import Function
from ..blocks import clusters_at_once, spread, steps_of, tile_of
from ..first_sizes import is_open, most_of
from ..product_routes.any_rows import at_launch
from ..products.matmul_config import MatmulConfig
from ..products.problem import EpilogueStep, Problem
from ..stage_ring import registers_of, released, swizzled
from .fed_scales import FedScales, feeds
from .low_tiles import LowTiles, check_low_tiles
from .streamed_tiles import OneTile, StreamedTiles, WholeTiles, check_streams, pieces_of
from .whole_lines import pitch, short_part, stores_lines


@dataclass(frozen=True)
class ProductPlan:
    """The product `p` by the configuration `t`, on `clusters` clusters of blocks.

    `problem`: as it was asked for. `p` is its transpose if `t.swapped`; in a body `p`, `shape`, the whole result's, and the
    numbers have the sizes of the launch. `tiles_m`, `tiles_n`, `total`: clusters of tiles along M, along N, and of all products;
    `steps`: stages of a part of K. `end_steps`: the steps on sums.

    `alone`: whether a cluster has all tiles along M, along N, so that no extent of a launch is needed to find a tile; `single`:
    whether each tile has a block of its own, because they all run at once, or with a batch may do so. `lines`: whether lanes
    store whole lines. `skipped`: tiles that no block computes, the first ones.
    """

    problem: Problem
    p: Problem
    t: MatmulConfig
    shape: tuple[Any, ...]
    steps: Any
    tiles_m: Any
    tiles_n: Any
    total: Any
    clusters: int
    end_steps: tuple[EpilogueStep, ...]
    alone: tuple[bool, bool]
    single: bool
    lines: bool
    low: LowTiles | None
    feed: FedScales | None
    skipped: Any = 0

    # --- sizes ------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """The columns of the result in a tile."""
        return self.t.tile_n if self.p.gate is None else self.t.tile_n // 2

    @property
    def turns(self) -> int:
        """The number of consumers with different tiles."""
        return self.t.consumers if self.t.ping_pong else 1

    @property
    def parts(self) -> int:
        """The parts in which a tile is stored."""
        return self.width // self.t.epilogue_n

    @property
    def stores(self) -> int:
        return self.parts * (3 if self.p.keeps else 1)

    @property
    def buffers(self) -> int:
        """Buffers of a consumer that stores by TMA."""
        return min(self.t.epilogue_stages, self.stores)

    @property
    def held(self) -> int:
        """The elements of K for each stored element of a."""
        return 2 if self.p.int4 or self.p.sparse else 1

    @property
    def marks(self) -> int:
        """Rows of a sparse side's metadata in a stage."""
        return self.t.tile_k // meta_step(self.p.dtype) if self.p.sparse else 0

    @property
    def registers(self) -> tuple[int, int]:
        return registers_of(self.t, self.feed is not None)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of a cluster."""
        t = self.t
        return tuple(name for name, size in (("cluster", t.cluster), ("cluster_n", t.cluster_n)) if size > 1)

    @property
    def grid_names(self) -> tuple[str, ...]:
        """The axes of the grid. Neighbours along the last one start together."""
        return ("outer", "across", "block") if self.single else ("block",)

    def grid_of(self, a: Any, b: Any, *_: Any) -> tuple[int, ...]:
        """The grid of a launch."""
        here = at_launch(self.problem, a, b)
        tiles_m, tiles_n, count = _clusters_of(here.swapped if self.t.swapped else here, self.t, self.width, self.alone)
        if self.single:
            return count // (tiles_m * tiles_n), tiles_n, tiles_m
        return (max(min(count, self.clusters), 1),)

    def scratch(self) -> dict[str, Any]:
        """SMEM and barriers of a block, and GMEM for pieces of tiles."""
        p, t, feed, marks = self.p, self.t, self.feed, self.marks
        a_shape = (t.tile_k, t.tile_m) if p.a_transposed else (t.tile_m, t.tile_k // self.held)
        b_shape = (t.tile_n, t.tile_k) if p.b_transposed else (t.tile_k, t.tile_n)
        out_shape = (t.epilogue_n, t.rows) if t.swapped else (t.rows, t.epilogue_n)
        factors = (1 + p.int4_zeros) if p.int4 else 0  # rows of scales and zeros that come with a stage
        arrivals = (2 if p.gate is None else 3) + factors + p.sparse + (feed is not None)
        made = {"a_smem": swizzled(*a_shape, p.dtype, t.stages), "b_smem": swizzled(*b_shape, p.b_dtype, t.stages)}
        if self.lines:
            made["out_smem"] = kd.SMEM((t.consumers, t.rows // 2, pitch(t.epilogue_n, p.out_dtype)), p.out_dtype)
        elif not p.softmax or p.exponentials:
            made["out_smem"] = swizzled(*out_shape, p.out_dtype, t.consumers * self.buffers)
        # one barrier for each consumer with its own tiles, because a waiter must see every phase
        made["loaded"] = kd.Barrier(num_arrivals=arrivals, num_barriers=self.turns * t.stages)
        made["consumed"] = released(self.axes, t.consumers // self.turns, t.stages)
        if p.mxfp4:
            made["factors_smem"] = kd.SMEM((t.stages, 2, t.tile_m), kd.uint8)
        elif factors:
            made["factors_smem"] = kd.SMEM((factors, t.stages, t.tile_m), kd.float32)
        elif marks:
            made["factors_smem"] = kd.SMEM((t.stages, marks, 2 * t.tile_m), kd.uint32)
        elif feed:
            made["factors_smem"] = kd.SMEM((t.stages, feed.length), kd.float32)
        if t.streamed:
            made["pieces"] = pieces_of(t, self.clusters, p.wide)
        return made

    # --- in a body --------------------------------------------------------------------------------

    def at_launch(self, a: Any, b: Any) -> ProductPlan:
        """The plan with the sizes of the launch."""
        here = at_launch(self.problem, a, b)
        p, shape = here.swapped if self.t.swapped else here, (*here.batch, here.M, here.N)
        tiles_m, tiles_n, total = _clusters_of(p, self.t, self.width, self.alone)
        steps = steps_of(p, self.t.tile_k)
        return replace(self, p=p, shape=shape, tiles_m=tiles_m, tiles_n=tiles_n, total=total, steps=steps)

    def skipping(self, flag: Any) -> ProductPlan:
        """The plan without tiles if the flag is 0. Blocks begin behind the last tile then, so that no loop keeps the flag."""
        total = _clusters_of(self.p, self.t, self.width, self.alone)[2]
        return replace(self, skipped=kd.where(flag[...] != 0, 0, total))

    def place_of(self, index: Any) -> tuple[Any, Any, Any, tuple[Any, ...]]:
        """(first row, first column, part of K, batch indices) of this block's tile of cluster of tiles `index`."""
        p, t = self.p, self.t
        if self.single:
            # blocks that share a tile of b run side by side: with tiles along M on the first axis, products took 1.2 of the time
            m, n = kd.axis_index("block"), kd.axis_index("across")
            *batch, part = spread(kd.axis_index("outer"), (*p.batch, p.parts))  # no division by the batch
        elif self.low is not None:
            m, n = self.low.place(index)
            return m, n * self.width, 0, ()
        else:
            m, n, part, batch = tile_of(index, p, (self.tiles_m, self.tiles_n), t.group)
        if t.cluster > 1:
            m = m * t.cluster + kd.axis_index("cluster")
        if t.cluster_n > 1:
            n = n * t.cluster_n + kd.axis_index("cluster_n")
        return m * t.tile_m, n * self.width, part, tuple(batch)

    def work_of(self, turn: Any = None) -> Any:
        """The work of this block, or of the consumers whose turn is `turn`."""
        if self.single:
            return OneTile(self.steps)
        first = kd.axis_index("block")
        if self.p.exponentials:
            first = first + self.skipped
        if self.t.streamed:
            return StreamedTiles(self.total, self.steps, self.clusters, first)
        if turn is None:
            return WholeTiles(self.total, self.steps, self.clusters, first)
        return WholeTiles(self.total, self.steps, self.turns * self.clusters, first + turn * self.clusters)

    def after_others(self, slot: Any) -> Any:
        """The slot after the tiles of the other consumers."""
        if self.turns == 1:
            return slot
        stages = self.t.stages
        ahead = (self.turns - 1) * self.steps % stages
        if not isinstance(ahead, int):
            return kd.rem(slot + ahead, stages)
        return kd.where(slot >= stages - ahead, slot - (stages - ahead), slot + ahead) if ahead else slot


def plan_of(problem: Problem, config: MatmulConfig, blocks: int, activation: Function | None) -> ProductPlan:
    """The plan of a product on `blocks` multiprocessors, with a last step `activation`."""
    p, t = problem.swapped if config.swapped else problem, config
    if t.swapped and p.lanes:
        t = changed(t, epilogue_n=short_part(t.epilogue_n, t.rows, p))
    check_streams(p, t)
    check_low_tiles(p, t)
    width = t.tile_n if p.gate is None else t.tile_n // 2
    sizes = (p.M, t.tile_m * t.cluster), (p.N, width * t.cluster_n)
    alone = is_open(p.M) and most_of(p.M) <= sizes[0][1], is_open(p.N) and most_of(p.N) <= sizes[1][1]
    at_once = clusters_at_once(blocks, t.blocks)
    # the clusters along each extent, whose greatest number of a Dim leaves one for each of the others
    counts = [(n, -(-most_of(n) // most)) for n, most in sizes] + [(n, most_of(n)) for n in (p.parts, *p.batch)]
    fixed, changing = ([count for n, count in counts if is_open(n) is dims] for dims in (False, True))
    single = not (t.streamed or t.ping_pong or p.exponentials) and is_open(p.M, p.N)
    single = single and max(changing) * prod(fixed) <= at_once
    tiles_m, tiles_n, total = _clusters_of(p, t, width, alone)
    known = isinstance(total, int)
    return ProductPlan(
        problem,
        p,
        t,
        shape=(*p.batch, problem.M, problem.N),
        steps=steps_of(p, t.tile_k),
        tiles_m=tiles_m,
        tiles_n=tiles_n,
        total=total,
        clusters=max(min(total, at_once), 1) if known and not t.streamed else at_once,
        end_steps=(*p.all_steps, *(() if activation is None else (EpilogueStep("activation", function=activation),))),
        alone=alone,
        single=single and not known,
        lines=stores_lines(p, t) and activation is None,
        low=LowTiles(t, t.high_tiles(p.M), tiles_n) if t.low_tiles else None,
        feed=FedScales(p, t.tile_m, t.tile_n) if feeds(p, t.tile_m) else None,
    )


def _clusters_of(p: Problem, t: MatmulConfig, width: int, alone: tuple[bool, bool]) -> tuple[Any, Any, Any]:
    """The numbers of clusters of tiles along M, along N, and of all products."""
    tiles_m = 1 if alone[0] else kd.cdiv(kd.cdiv(p.M, t.tile_m), t.cluster)
    tiles_m = t.high_tiles(p.M) + t.low_tiles if t.low_tiles else tiles_m
    tiles_n = 1 if alone[1] else kd.cdiv(kd.cdiv(p.N, width), t.cluster_n)
    return tiles_m, tiles_n, tiles_m * tiles_n * prod((*((p.parts,) if p.parts > 1 else ()), *p.batch))
