"""The fast grouped product on Hopper: the persistent kernel of one product, over tiles of all groups.

Rows past a group's end are read but not stored. TMA stores whole tiles. TMA can't clip at the end of a group, so lanes store
the last tile of a group from SMEM, under masks. The tiles of a cluster lie side by side in one group, and its blocks load what
they share by multicast; at the end of a group some have no rows, and store nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .any_rows import at_launch, declared, open_sizes
from .blocks import clusters_at_once
from .epilogue import Tile, finish, join, outputs
from .fed_scales import FedScales, fed_loads, fed_product, feeds
from .grouped_tiles import RowGroups, put
from .matmul_config import MatmulConfig
from .problem import Problem
from .scaled_product import Scales, scaled_product
from .stage_product import following_slot, stage_product
from .stage_ring import registers_of, swizzled


@cache
def grouped_kernel(problem: Problem, groups: RowGroups, config: MatmulConfig, blocks: int) -> Any:
    """The kernel `(a, b[, b], sizes or offsets, *operands of the steps) -> out`, on `blocks` multiprocessors.

    The problem's M is the number of all rows, and its `b_batch` the number of groups, axis "0" of steps.
    """
    p, t, g = problem, config, groups
    rows = t.rows
    width = t.tile_n if p.gate is None else t.tile_n // 2  # columns of the result
    height = t.tile_m * t.cluster  # rows of a cluster's tiles
    tiles_n, steps = kd.cdiv(kd.cdiv(p.N, width), t.cluster_n), kd.cdiv(p.K, t.tile_k)
    count = clusters_at_once(blocks, t.blocks)
    count = count if open_sizes(p) else max(min(g.most_tiles(height, tiles_n), count), 1)
    axes = tuple(name for name, size in (("cluster", t.cluster), ("cluster_n", t.cluster_n)) if size > 1)
    shares_a, shares_b = ("cluster_n" if t.cluster_n > 1 else None), ("cluster" if t.cluster > 1 else None)
    parts = width // t.epilogue_n
    ring = min(t.epilogue_stages, parts)
    producer = t.consumers
    lanes = p.lanes or 16 // p.out_dtype.itemsize
    a_shape = (t.tile_k, t.tile_m) if p.a_transposed else (t.tile_m, t.tile_k)
    b_shape = (t.tile_n, t.tile_k) if p.b_transposed else (t.tile_k, t.tile_n)
    feed = FedScales(p, t.tile_m, t.tile_n) if feeds(p, t.tile_m) else None
    scratch = {
        "a_smem": swizzled(*a_shape, p.dtype, t.stages),
        "b_smem": swizzled(*b_shape, p.b_dtype, t.stages),
        **({"factors_smem": kd.SMEM((t.stages, feed.length), kd.float32)} if feed else {}),
        "out_smem": swizzled(rows, t.epilogue_n, p.out_dtype, t.consumers * ring),
        "loaded": kd.Barrier(num_arrivals=(2 if p.gate is None else 3) + (feed is not None), num_barriers=t.stages),
        "consumed": kd.ClusterBarrier(collective_axes=axes, num_arrivals=t.consumers, num_barriers=t.stages)
        if axes
        else kd.Barrier(num_arrivals=t.consumers, num_barriers=t.stages),
        "ready": kd.Barrier(),
        **g.scratch,
    }

    def produce(a: Any, rights: Any, scales: Any, place_of: Any, total: Any, buffers: Any) -> None:
        kd.set_max_registers(registers_of(t, feed is not None)[0], action="decrease")
        a_smem, b_smem, loaded, consumed = (buffers[name] for name in ("a_smem", "b_smem", "loaded", "consumed"))

        @kd.loop(kd.axis_index("block"), total, step=count, init_carry=(0, 0))
        def _(index: Any, carry: Any) -> Any:
            group, m, _, n = place_of(index)

            def fill(step: Any, slot: Any, again: Any, found: list[Any]) -> None:
                @kd.when(again)
                def _() -> None:
                    kd.barrier_wait(consumed.at[slot])

                k, m_slice, n_slice = kd.ds(step * t.tile_k, t.tile_k), kd.ds(m, t.tile_m), kd.ds(n * width, width)
                full = loaded.at[slot]
                left = a.at[k, m_slice] if p.a_transposed else a.at[m_slice, k]
                kd.copy_gmem_to_smem(left, a_smem.at[slot], full, collective_axes=shares_a)
                for number, b in enumerate(rights):
                    place = b_smem.at[slot]
                    if len(rights) > 1:
                        half = slice(number * width, (number + 1) * width)
                        place = place.at[half] if p.b_transposed else place.at[:, half]
                    source = b.at[group, n_slice, k] if p.b_transposed else b.at[group, k, n_slice]
                    kd.copy_gmem_to_smem(source, place, full, collective_axes=shares_b)
                if feed is not None:
                    feed.store(found, buffers["factors_smem"].at[slot])
                    kd.barrier_arrive(full)

            def load(step: Any) -> list[Any]:
                assert feed is not None
                return feed.loaded(scales, m, n * width, (group,), kd.minimum(step, steps - 1))

            if feed is not None:
                return 0, fed_loads(steps, t.stages, carry[1], load, fill)

            @kd.loop(0, steps, init_carry=carry)
            def end(step: Any, carry: Any) -> Any:
                slot, filled = carry
                fill(step, slot, filled >= t.stages, [])
                return following_slot(slot, t.stages), kd.minimum(filled + 1, t.stages)

            return end

    def consume(me: Any, scales: Any, refs: Any, place_of: Any, total: Any, buffers: Any) -> None:
        kd.set_max_registers(registers_of(t, feed is not None)[1], action="increase")
        if feed is not None:
            kd.commit_smem()  # orders the other role's stores for the trace, or lanes would meet at each stage's factors
        a_smem, b_smem, loaded, consumed = (buffers[name] for name in ("a_smem", "b_smem", "loaded", "consumed"))

        def left_of(slot: Any) -> Any:
            own = kd.ds(me * rows, rows)
            return a_smem.at[slot, :, own].T if p.a_transposed else a_smem.at[slot, own]

        def right_of(slot: Any) -> Any:
            return b_smem.at[slot].T if p.b_transposed else b_smem.at[slot]

        @kd.loop(kd.axis_index("block"), total, step=count, init_carry=0)
        def _(index: Any, slot: Any) -> Any:
            group, m, end_row, n = place_of(index)
            m, n = m + me * rows, n * width

            def multiply(acc: Any) -> Any:
                if feed is not None:
                    sums = fed_product(
                        acc, steps, t.stages, left_of, right_of, loaded.at.__getitem__, consumed, feed,
                        buffers["factors_smem"], me * rows, n, list,
                    )  # fmt: skip
                    return sums, slot
                if p.scaled:
                    own = Scales(p, scales[0], scales[1], m, n, rows, (group,))
                    return scaled_product(acc, slot, steps, t.stages, left_of, right_of, loaded, consumed, own, 0)
                return stage_product(acc, slot, steps, t.stages, left_of, right_of, loaded.at.__getitem__, consumed)

            value, slot_after = kd.run_scoped(multiply, kd.ACC((rows, t.tile_n), p.accumulator))
            store_tile(value, refs, buffers["out_smem"], me, group, m, n, end_row)
            return slot_after

        kd.wait_smem_to_gmem(0, wait_read_only=True)  # the copies have read SMEM; the kernel's end waits for writes

    def store_tile(value: Any, refs: Any, out_smem: Any, me: Any, group: Any, m: Any, n: Any, end_row: Any) -> None:
        extra, out, _ = refs
        tile = Tile(kd.ds(m, rows), kd.ds(n, width), (p.M, p.N), (group,))
        whole = m + rows <= end_row

        @kd.when(~whole)
        def _() -> None:
            kd.wait_smem_to_gmem(0, wait_read_only=True)  # its stores are in no commit group

        for number in range(parts):
            first = number * t.epilogue_n
            own = tile.part(first, t.epilogue_n)
            x = value[:, first : first + t.epilogue_n]
            if p.gate is None:
                x = finish(x, p.all_steps, extra, own)
            else:
                x = join(x, value[:, width + first : width + first + t.epilogue_n], p, extra, own)
            place = out_smem.at[me * ring + number % ring]
            if not p.lanes:
                # a tile starts with the first buffer, which the tile before may still use
                kd.wait_smem_to_gmem(0 if number == 0 and parts % ring else ring - 1, wait_read_only=True)
            place[...] = x.astype(p.out_dtype)

            def by_lanes(place: Any = place, own: Any = own) -> None:
                moved = kd.load(place, layout=kd.Layout.WG_STRIDED(place.shape, lanes))
                put(out, m, own.n, end_row, moved)

            if p.lanes:
                by_lanes()
                continue
            kd.commit_smem()

            @kd.when(whole)
            def _(place: Any = place, own: Any = own) -> None:
                kd.copy_smem_to_gmem(place, out.at[own.m, own.n])

            kd.when(~whole)(by_lanes)

    def body(a: Any, *refs: Any, bounds: Any, tile_ends: Any, ready: Any, **buffers: Any) -> None:
        nonlocal p, g
        p = at_launch(problem, a, refs[0])
        g = groups.at_launch(p.M)
        sides = 1 if p.gate is None else 2
        rights, given, (scales, rest) = refs[:sides], refs[sides], p.scales_of(refs[sides + 1 :])
        results = outputs(p, rest)
        me = kd.axis_index("wg")

        def place_of(index: Any) -> Any:
            group, m, end, n = g.place(index, bounds, tile_ends, height, tiles_n, t.group)
            if t.cluster > 1:
                m = m + kd.axis_index("cluster") * t.tile_m
            if t.cluster_n > 1:
                n = n * t.cluster_n + kd.axis_index("cluster_n")
            return group, m, end, n

        @kd.when(me == producer)
        def _() -> None:
            g.fill(given, bounds, tile_ends, height, tiles_n)
            kd.barrier_arrive(ready)
            kd.barrier_wait(ready)
            produce(a, rights, scales, place_of, g.total(tile_ends, height, tiles_n), buffers)

        @kd.when(me < producer)
        def _() -> None:
            kd.barrier_wait(ready)
            consume(me, scales, results, place_of, g.total(tile_ends, height, tiles_n), buffers)
            block = kd.axis_index("block")
            for axis in axes:
                block = block * getattr(t, axis) + kd.axis_index(axis)
            g.clear(results[1], bounds, block * t.consumers + me, count * t.blocks * t.consumers)

    made = kd.kernel(
        body,
        out_type=p.results(),
        shapes=declared(p, grouped=True),
        scratch_types=scratch,
        grid=(count,),
        grid_names=("block",),
        cluster=tuple(getattr(t, axis) for axis in axes),
        cluster_names=axes,
        num_threads=t.consumers + 1,
        thread_name="wg",
        name="grouped_matmul",
    )
    return identified(made, problem, groups, config, blocks) if p.named else made
