"""The fast grouped product on Hopper: the persistent kernel of one product, over tiles of all groups.

Rows past a group's end are read but not stored. TMA stores whole tiles. TMA can't clip at the end of a group, so lanes store
the last tile of a group from SMEM, under masks. The tiles of a cluster lie side by side in one group, and its blocks load what
they share by multicast; at the end of a group some have no rows, and store nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..blocks import clusters_at_once
from ..product_kernels.epilogue import Tile, finish, join, outputs
from ..product_kernels.fed_scales import FedScales, fed_loads, fed_product, feeds
from ..product_kernels.persistent_loads import ProductOperands
from ..product_kernels.scaled_product import Scales, scaled_product
from ..product_routes.any_rows import at_launch, declared, open_sizes
from ..products.matmul_config import MatmulConfig
from ..products.problem import Problem
from ..stage_product import stage_product
from ..stage_ring import (
    StageRing,
    await_buffer,
    await_release,
    copy_rights,
    fill_stages,
    registers_of,
    released,
    swizzled,
)
from .tiles import RowGroups, put


@dataclass(frozen=True)
class GroupedTiling:
    """The tiles of all groups of the problem `p`, by the configuration `t`, for `count` clusters of blocks.

    `tiles_n`: clusters of tiles along N; `steps`: stages of a tile; `bounds`, `tile_ends`: in a body, the tables of `groups`.
    """

    p: Problem
    t: MatmulConfig
    groups: RowGroups
    tiles_n: Any
    steps: Any
    count: int
    feed: FedScales | None
    bounds: Any = None
    tile_ends: Any = None

    @property
    def width(self) -> int:
        """The columns of the result in a tile."""
        return self.t.tile_n if self.p.gate is None else self.t.tile_n // 2

    @property
    def height(self) -> int:
        """The rows of a cluster's tiles."""
        return self.t.tile_m * self.t.cluster

    @property
    def parts(self) -> int:
        """The parts in which a tile is stored."""
        return self.width // self.t.epilogue_n

    @property
    def buffers(self) -> int:
        """Buffers of a consumer that stores."""
        return min(self.t.epilogue_stages, self.parts)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of a cluster."""
        t = self.t
        return tuple(name for name, size in (("cluster", t.cluster), ("cluster_n", t.cluster_n)) if size > 1)

    @property
    def registers(self) -> tuple[int, int]:
        return registers_of(self.t, self.feed is not None)

    def scratch(self) -> dict[str, Any]:
        """SMEM and barriers of a block."""
        p, t, feed = self.p, self.t, self.feed
        a_shape = (t.tile_k, t.tile_m) if p.a_transposed else (t.tile_m, t.tile_k)
        b_shape = (t.tile_n, t.tile_k) if p.b_transposed else (t.tile_k, t.tile_n)
        arrivals = (2 if p.gate is None else 3) + (feed is not None)
        return {
            "a_smem": swizzled(*a_shape, p.dtype, t.stages),
            "b_smem": swizzled(*b_shape, p.b_dtype, t.stages),
            **({"factors_smem": kd.SMEM((t.stages, feed.length), kd.float32)} if feed else {}),
            "out_smem": swizzled(t.rows, t.epilogue_n, p.out_dtype, t.consumers * self.buffers),
            "loaded": kd.Barrier(num_arrivals=arrivals, num_barriers=t.stages),
            "consumed": released(self.axes, t.consumers, t.stages),
            "ready": kd.Barrier(),
            **self.groups.scratch,
        }

    # --- in a body --------------------------------------------------------------------------------

    def at_launch(self, a: Any, b: Any, bounds: Any, tile_ends: Any) -> GroupedTiling:
        """The tiles with the sizes of the launch."""
        p = at_launch(self.p, a, b)
        return replace(self, p=p, groups=self.groups.at_launch(p.M), bounds=bounds, tile_ends=tile_ends)

    def fill(self, given: Any) -> None:
        """Make the tables of the groups, from their sizes or offsets."""
        self.groups.fill(given, self.bounds, self.tile_ends, self.height, self.tiles_n)

    def total(self) -> Any:
        """The number of clusters of tiles."""
        return self.groups.total(self.tile_ends, self.height, self.tiles_n)

    def place_of(self, index: Any) -> tuple[Any, Any, Any, Any]:
        """(group, first row, the end of its group, tile along N) of this block's tile of cluster of tiles `index`."""
        t = self.t
        group, m, end, n = self.groups.place(index, self.bounds, self.tile_ends, self.height, self.tiles_n, t.group)
        if t.cluster > 1:
            m = m + kd.axis_index("cluster") * t.tile_m
        if t.cluster_n > 1:
            n = n * t.cluster_n + kd.axis_index("cluster_n")
        return group, m, end, n

    def clear(self, out: Any, me: Any) -> None:
        """Let consumer `me` set its share of the rows of no group to zero."""
        t, block = self.t, kd.axis_index("block")
        for axis in self.axes:
            block = block * getattr(t, axis) + kd.axis_index(axis)
        self.groups.clear(out, self.bounds, block * t.consumers + me, self.count * t.blocks * t.consumers)


@cache
def grouped_kernel(problem: Problem, groups: RowGroups, config: MatmulConfig, blocks: int) -> Any:
    """The kernel `(a, b[, b], sizes or offsets, *operands of the steps) -> out`, on `blocks` multiprocessors.

    The problem's M is the number of all rows, and its `b_batch` the number of groups, axis "0" of steps.
    """
    p, t = problem, config
    tiling = _tiling(problem, groups, config, blocks)

    def body(a: Any, *refs: Any, bounds: Any, tile_ends: Any, ready: Any, **buffers: Any) -> None:
        here = tiling.at_launch(a, refs[0], bounds, tile_ends)
        sides = 1 if p.gate is None else 2
        given, (scales, rest) = refs[sides], p.scales_of(refs[sides + 1 :])
        results = outputs(p, rest)
        me = kd.axis_index("wg")
        out_smem, ring = buffers.pop("out_smem"), StageRing(**buffers)

        @kd.when(me == t.consumers)
        def _() -> None:
            here.fill(given)
            kd.barrier_arrive(ready)
            kd.barrier_wait(ready)
            _produce(here, ProductOperands(a, refs[:sides], scales=scales), ring)

        @kd.when(me < t.consumers)
        def _() -> None:
            kd.barrier_wait(ready)
            _consume(here, me, scales, results, ring, out_smem)
            here.clear(results[1], me)

    made = kd.kernel(
        body,
        out_type=p.results(),
        shapes=declared(p, grouped=True),
        scratch_types=tiling.scratch(),
        grid=(tiling.count,),
        grid_names=("block",),
        cluster=tuple(getattr(t, axis) for axis in tiling.axes),
        cluster_names=tiling.axes,
        num_threads=t.consumers + 1,
        thread_name="wg",
        name="grouped_matmul",
    )
    return identified(made, problem, groups, config, blocks) if p.named else made


def _tiling(p: Problem, groups: RowGroups, t: MatmulConfig, blocks: int) -> GroupedTiling:
    width = t.tile_n if p.gate is None else t.tile_n // 2
    tiles_n, steps = kd.cdiv(kd.cdiv(p.N, width), t.cluster_n), kd.cdiv(p.K, t.tile_k)
    count = clusters_at_once(blocks, t.blocks)
    count = count if open_sizes(p) else max(min(groups.most_tiles(t.tile_m * t.cluster, tiles_n), count), 1)
    feed = FedScales(p, t.tile_m, t.tile_n) if feeds(p, t.tile_m) else None
    return GroupedTiling(p, t, groups, tiles_n, steps, count, feed)


def _produce(tiling: GroupedTiling, operands: ProductOperands, ring: StageRing) -> None:
    """Load the stages of all tiles of this block."""
    p, t, width, feed, total = tiling.p, tiling.t, tiling.width, tiling.feed, tiling.total()
    kd.set_max_registers(tiling.registers[0], action="decrease")
    shares_a, shares_b = ("cluster_n" if t.cluster_n > 1 else None), ("cluster" if t.cluster > 1 else None)

    @kd.loop(kd.axis_index("block"), total, step=tiling.count, init_carry=(0, 0))
    def _(index: Any, carry: Any) -> Any:
        group, m, _, n = tiling.place_of(index)

        def fill(step: Any, slot: Any, again: Any, found: list[Any]) -> None:
            await_release(ring.consumed, slot, again)
            k, m_slice, n_slice = kd.ds(step * t.tile_k, t.tile_k), kd.ds(m, t.tile_m), kd.ds(n * width, width)
            full = ring.loaded.at[slot]
            left = operands.left.at[(k, m_slice) if p.a_transposed else (m_slice, k)]
            kd.copy_gmem_to_smem(left, ring.a_smem.at[slot], full, collective_axes=shares_a)
            side = (n_slice, k) if p.b_transposed else (k, n_slice)
            rights = [b.at[(group, *side)] for b in operands.rights]
            copy_rights(rights, ring.b_smem.at[slot], full, p.b_transposed, shares_b)
            if feed is not None:
                feed.store(found, ring.factors_smem.at[slot])
                kd.barrier_arrive(full)

        def load(step: Any) -> list[Any]:
            assert feed is not None
            return feed.loaded(operands.scales, m, n * width, (group,), kd.minimum(step, tiling.steps - 1))

        if feed is not None:
            return 0, fed_loads(tiling.steps, t.stages, carry[1], load, fill)

        def fill_next(step: Any, slot: Any, filled: Any) -> None:
            fill(step, slot, filled >= t.stages, [])

        return fill_stages(tiling.steps, t.stages, carry, fill_next)


def _consume(
    tiling: GroupedTiling, me: Any, scales: tuple[Any, Any], refs: Any, ring: StageRing, out_smem: Any
) -> None:
    """Multiply and store the tiles of consumer `me`."""
    p, t, feed, steps, rows, total = tiling.p, tiling.t, tiling.feed, tiling.steps, tiling.t.rows, tiling.total()
    kd.set_max_registers(tiling.registers[1], action="increase")
    if feed is not None:
        kd.commit_smem()  # orders the other role's stores for the trace, or lanes would meet at each stage's factors

    def left_of(slot: Any) -> Any:
        return ring.left(slot, kd.ds(me * rows, rows), p.a_transposed)

    right_of = partial(ring.right, transposed=p.b_transposed)

    @kd.loop(kd.axis_index("block"), total, step=tiling.count, init_carry=0)
    def _(index: Any, slot: Any) -> Any:
        group, m, end_row, n = tiling.place_of(index)
        m, n = m + me * rows, n * tiling.width

        def multiply(acc: Any) -> Any:
            if feed is not None:
                sums = fed_product(
                    acc, steps, t.stages, left_of, right_of, ring.is_loaded, ring.consumed, feed,
                    ring.factors_smem, me * rows, n, list,
                )  # fmt: skip
                return sums, slot
            if p.scaled:
                own = Scales(p, scales[0], scales[1], m, n, rows, (group,))
                return scaled_product(acc, slot, steps, t.stages, left_of, right_of, ring.loaded, ring.consumed, own, 0)
            return stage_product(acc, slot, steps, t.stages, left_of, right_of, ring.is_loaded, ring.consumed)

        value, slot_after = kd.run_scoped(multiply, kd.ACC((rows, t.tile_n), p.accumulator))
        _store_tile(tiling, value, refs, out_smem, me, group, m, n, end_row)
        return slot_after

    kd.wait_smem_to_gmem(0, wait_read_only=True)  # the copies have read SMEM; the kernel's end waits for writes


def _store_tile(
    tiling: GroupedTiling, value: Any, refs: Any, out_smem: Any, me: Any, group: Any, m: Any, n: Any, end_row: Any
) -> None:
    """Finish and store the sums of consumer `me`: rows from `m` on, before `end_row`, and columns from `n` on."""
    p, t, rows, width, buffers = tiling.p, tiling.t, tiling.t.rows, tiling.width, tiling.buffers
    extra, out, _ = refs
    tile = Tile(kd.ds(m, rows), kd.ds(n, width), (p.M, p.N), (group,))
    whole = m + rows <= end_row

    @kd.when(~whole)
    def _() -> None:
        kd.wait_smem_to_gmem(0, wait_read_only=True)  # its stores are in no commit group

    for number in range(tiling.parts):
        first = number * t.epilogue_n
        own = tile.part(first, t.epilogue_n)
        x = value[:, first : first + t.epilogue_n]
        if p.gate is None:
            x = finish(x, p.all_steps, extra, own)
        else:
            x = join(x, value[:, width + first : width + first + t.epilogue_n], p, extra, own)
        place = out_smem.at[me * buffers + number % buffers]
        if not p.lanes:
            await_buffer(number, tiling.parts, buffers)
        place[...] = x.astype(p.out_dtype)

        def by_lanes(place: Any = place, own: Any = own) -> None:
            lanes = p.lanes or 16 // p.out_dtype.itemsize
            put(out, m, own.n, end_row, kd.load(place, layout=kd.Layout.WG_STRIDED(place.shape, lanes)))

        if p.lanes:
            by_lanes()
            continue
        kd.commit_smem()

        @kd.when(whole)
        def _(place: Any = place, own: Any = own) -> None:
            kd.copy_smem_to_gmem(place, out.at[own.m, own.n])

        kd.when(~whole)(by_lanes)
