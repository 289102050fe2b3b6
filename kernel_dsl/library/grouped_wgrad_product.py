"""The gradients of grouped weights: for each group a.T @ dout over its rows. Their numbers are known only on the GPU.

The tiles are known in advance, but the lengths of their sums are not: the number of stages comes from the table of
rows. The last stage of a group also holds rows of the next one. The warpgroup that loads waits for this stage and sets
these rows to zero in both operands, because they may be infinite. So consumers treat all stages alike.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .grouped_tiles import RowGroups
from .matmul_config import MatmulConfig
from .problem import Problem
from .stage_product import following_slot, stage_product
from .stage_ring import swizzled

GENERAL = (64, 64, 32)  # a tile's rows and columns of the result, and summed rows of a step
GENERAL_WIDE = (64, 64, 16)  # the same for sums of 8 bytes
CUT = 16  # rows of a stage that are set to zero at a time


def _place(index: Any, tiles: tuple[int, int], band: int) -> tuple[Any, Any, Any]:
    """(group, tile along M, tile along N) of tile number `index`."""
    group = kd.div(index, tiles[0] * tiles[1])
    return group, *kd.planar_snake(index - group * (tiles[0] * tiles[1]), tiles, 0, min(band, tiles[0]))


def _shapes(p: Problem, groups: RowGroups) -> dict[int, tuple[Any, ...]] | None:
    """`shapes=` of a kernel for any number of rows."""
    if isinstance(groups.rows, int):
        return None
    left = (groups.rows, None) if p.a_transposed else (None, groups.rows)
    return {0: left, 1: (None, groups.rows) if p.b_transposed else (groups.rows, None)}


@cache
def wgrad_kernel(problem: Problem, groups: RowGroups, config: MatmulConfig, blocks: int) -> Any:
    """The kernel `(a, dout, sizes or offsets) -> out` on Hopper: a (rows, M) or, not `a_transposed`, its transpose; dout
    (rows, N) or, `b_transposed`, its transpose; out (groups, M, N).
    """
    p, t, g = problem, config, groups
    rows = t.rows
    tiles = kd.cdiv(p.M, t.tile_m), kd.cdiv(p.N, t.tile_n)
    total = tiles[0] * tiles[1] * g.count
    count = max(min(total, blocks), 1)
    parts = t.tile_n // t.epilogue_n
    ring = min(t.epilogue_stages, parts)
    producer = t.consumers
    lanes = p.lanes
    a_shape = (t.tile_k, t.tile_m) if p.a_transposed else (t.tile_m, t.tile_k)
    b_shape = (t.tile_n, t.tile_k) if p.b_transposed else (t.tile_k, t.tile_n)
    scratch = {
        "a_smem": swizzled(*a_shape, p.dtype, t.stages),
        "b_smem": swizzled(*b_shape, p.b_dtype, t.stages),
        "out_smem": swizzled(rows, t.epilogue_n, p.out_dtype, t.consumers * ring),
        "loaded": kd.Barrier(num_arrivals=2, num_barriers=t.stages),
        "consumed": kd.Barrier(num_arrivals=t.consumers, num_barriers=t.stages),
        "landed": kd.Barrier(num_arrivals=2),
        "ready": kd.Barrier(),
        "bounds": g.scratch["bounds"],
    }

    def steps_of(bounds: Any, group: Any) -> tuple[Any, Any, Any]:
        """(first row, rows, stages) of a group; a group without rows has a stage of zeros."""
        start = bounds[group]
        size = bounds[group + 1] - start
        return start, size, kd.maximum(kd.div(size + (t.tile_k - 1), t.tile_k), 1)

    def produce(a: Any, b: Any, bounds: Any, landed: Any, buffers: Any) -> None:
        kd.set_max_registers(40, action="decrease")
        a_smem, b_smem, loaded, consumed = (buffers[name] for name in ("a_smem", "b_smem", "loaded", "consumed"))

        def load(k: Any, m: Any, n: Any, slot: Any, full: Any) -> None:
            k, m, n = kd.ds(k, t.tile_k), kd.ds(m * t.tile_m, t.tile_m), kd.ds(n * t.tile_n, t.tile_n)
            kd.copy_gmem_to_smem(a.at[k, m] if p.a_transposed else a.at[m, k], a_smem.at[slot], full)
            kd.copy_gmem_to_smem(b.at[n, k] if p.b_transposed else b.at[k, n], b_smem.at[slot], full)

        def cut(place: Any, axis: int, valid: Any) -> None:
            """Set the rows of a stage from `valid` on to zero."""
            part = (CUT, place.shape[1])

            @kd.loop(kd.div(valid, CUT) if axis == 0 else 0, place.shape[0] // CUT)
            def _(number: Any) -> None:
                first = number * CUT
                past = kd.broadcasted_iota(kd.int32, part, axis) >= (valid - first if axis == 0 else valid)
                kd.store(place, kd.ds(first, CUT), kd.zeros(part, place.dtype), mask=past)

        @kd.loop(kd.axis_index("block"), total, step=count, init_carry=(0, 0))
        def _(index: Any, carry: Any) -> Any:
            group, m, n = _place(index, tiles, t.group)
            start, size, steps = steps_of(bounds, group)

            @kd.loop(0, steps, init_carry=carry)
            def end(step: Any, carry: Any) -> Any:
                slot, filled = carry

                @kd.when(filled >= t.stages)
                def _() -> None:
                    kd.barrier_wait(consumed.at[slot])

                first, valid = start + step * t.tile_k, size - step * t.tile_k
                full = loaded.at[slot]

                @kd.when(valid >= t.tile_k)
                def _() -> None:
                    load(first, m, n, slot, full)

                @kd.when(valid < t.tile_k)
                def _() -> None:
                    load(first, m, n, slot, landed)
                    kd.barrier_wait(landed)
                    cut(a_smem.at[slot], 0 if p.a_transposed else 1, valid)
                    cut(b_smem.at[slot], 1 if p.b_transposed else 0, valid)
                    kd.commit_smem()
                    kd.barrier_arrive(full)
                    kd.barrier_arrive(full)

                return following_slot(slot, t.stages), kd.minimum(filled + 1, t.stages)

            return end

    def consume(me: Any, out: Any, bounds: Any, buffers: Any) -> None:
        kd.set_max_registers(232 if t.consumers == 2 else 240, action="increase")
        a_smem, b_smem, loaded, consumed = (buffers[name] for name in ("a_smem", "b_smem", "loaded", "consumed"))
        own = kd.ds(me * rows, rows)

        def left_of(slot: Any) -> Any:
            return a_smem.at[slot, :, own].T if p.a_transposed else a_smem.at[slot, own]

        def right_of(slot: Any) -> Any:
            return b_smem.at[slot].T if p.b_transposed else b_smem.at[slot]

        @kd.loop(kd.axis_index("block"), total, step=count, init_carry=0)
        def _(index: Any, slot: Any) -> Any:
            group, m, n = _place(index, tiles, t.group)
            _, _, steps = steps_of(bounds, group)

            def multiply(acc: Any) -> Any:
                return stage_product(acc, slot, steps, t.stages, left_of, right_of, loaded.at.__getitem__, consumed)

            value, slot_after = kd.run_scoped(multiply, kd.ACC((rows, t.tile_n), p.accumulator))
            across = kd.ds(m * t.tile_m + me * rows, rows)
            for number in range(parts):
                first = number * t.epilogue_n
                columns = kd.ds(n * t.tile_n + first, t.epilogue_n)
                place = buffers["out_smem"].at[me * ring + number % ring]
                x = value[:, first : first + t.epilogue_n].astype(p.out_dtype)
                if lanes:
                    place[...] = x
                    out[group, across, columns] = kd.load(place, layout=kd.Layout.WG_STRIDED(place.shape, lanes))
                    continue
                # a tile starts with the first buffer, which the tile before may still use
                kd.wait_smem_to_gmem(0 if number == 0 and parts % ring else ring - 1, wait_read_only=True)
                place[...] = x
                kd.commit_smem()
                kd.copy_smem_to_gmem(place, out.at[group, across, columns])
            return slot_after

        kd.wait_smem_to_gmem(0, wait_read_only=True)  # the copies have read SMEM; the kernel's end waits for writes

    def body(a: Any, b: Any, given: Any, out: Any, *, bounds: Any, landed: Any, ready: Any, **buffers: Any) -> None:
        g = groups.at_launch(a.shape[0 if p.a_transposed else 1])
        me = kd.axis_index("wg")

        @kd.when(me == producer)
        def _() -> None:
            g.bound(given, bounds)
            kd.barrier_arrive(ready)
            kd.barrier_wait(ready)
            produce(a, b, bounds, landed, buffers)

        @kd.when(me < producer)
        def _() -> None:
            kd.barrier_wait(ready)
            consume(me, out, bounds, buffers)

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct((g.count, p.M, p.N), p.out_dtype),
        shapes=_shapes(p, groups),
        scratch_types=scratch,
        grid=(count,),
        grid_names=("block",),
        num_threads=t.consumers + 1,
        thread_name="wg",
        name="grouped_matmul_wgrad",
    )
    return identified(made, problem, groups, config, blocks)


@cache
def wgrad_general_kernel(problem: Problem, groups: RowGroups) -> Any:
    """The kernel `(a, dout, sizes or offsets) -> out` for all targets, dtypes and strides: a (rows, M), dout (rows, N)."""
    p, g = problem, groups
    tile_m, tile_n, tile_k = GENERAL if p.accumulator.itemsize == 4 else GENERAL_WIDE
    tiles = kd.cdiv(p.M, tile_m), kd.cdiv(p.N, tile_n)

    def body(a: Any, b: Any, given: Any, out: Any, bounds: Any) -> None:
        if 0 in out.shape:
            return
        g = groups.at_launch(a.shape[0])
        g.bound(given, bounds)
        group, m, n = _place(kd.program_id(0), tiles, 8)
        start, end = bounds[group], bounds[group + 1]
        rows, columns = kd.ds(m * tile_m, tile_m), kd.ds(n * tile_n, tile_n)

        def part(x: Any, step: Any, across: Any, dtype: Any) -> Any:
            first = start + step * tile_k
            shape = (tile_k, across.size)
            mask = kd.broadcasted_iota(kd.int32, shape, 0) + first < end
            return kd.load(x.at[kd.ds(first, tile_k), across], mask=mask).astype(dtype)

        def add(step: Any, acc: Any) -> Any:
            left, right = part(a, step, rows, p.dtype).T, part(b, step, columns, p.b_dtype)
            return kd.mma(acc, left, right) if p.dtype == kd.float64 else kd.dot(left, right, acc=acc)

        steps = kd.div(end - start + (tile_k - 1), tile_k)
        acc = kd.fori_loop(0, steps, add, kd.zeros((tile_m, tile_n), p.accumulator))
        out[group, rows, columns] = acc.astype(p.out_dtype)

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct((g.count, p.M, p.N), p.out_dtype),
        shapes=_shapes(p, groups),
        scratch_types={"bounds": g.scratch["bounds"]},
        grid=(max(tiles[0] * tiles[1] * g.count, 1),),
        name="grouped_matmul_wgrad_general",
    )
    return identified(made, problem, groups)
