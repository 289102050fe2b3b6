"""The gradients of grouped weights: for each group a.T @ dout over its rows. Their numbers are known only on the GPU.

The tiles are known in advance, but the lengths of their sums are not: the number of stages comes from the table of
rows. The last stage of a group also holds rows of the next one. The warpgroup that loads waits for this stage and sets
these rows to zero in both operands, because they may be infinite. So consumers treat all stages alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..products.matmul_config import MatmulConfig
from ..products.problem import Problem
from ..stage_product import stage_product
from ..stage_ring import StageRing, await_buffer, await_release, fill_stages, registers_of, released, swizzled
from .tiles import RowGroups

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


@dataclass(frozen=True)
class _WgradTiling:
    """The tiles of all groups' gradients, for `count` blocks; `tiles`: their numbers along M and N."""

    p: Problem
    t: MatmulConfig
    tiles: tuple[int, int]
    total: int
    count: int

    @property
    def parts(self) -> int:
        """The parts in which a tile is stored."""
        return self.t.tile_n // self.t.epilogue_n

    @property
    def buffers(self) -> int:
        """Buffers of a consumer that stores."""
        return min(self.t.epilogue_stages, self.parts)

    def each_tile(self, carry: Any) -> Any:
        """A decorator that calls `body(index, carry)` for the tiles of this block."""
        return kd.loop(kd.axis_index("block"), self.total, step=self.count, init_carry=carry)

    def place_of(self, index: Any) -> tuple[Any, Any, Any]:
        """(group, tile along M, tile along N) of a tile."""
        return _place(index, self.tiles, self.t.group)

    def steps_of(self, bounds: Any, group: Any) -> tuple[Any, Any, Any]:
        """(first row, rows, stages) of a group; a group without rows has a stage of zeros."""
        start = bounds[group]
        size = bounds[group + 1] - start
        return start, size, kd.maximum(kd.div(size + (self.t.tile_k - 1), self.t.tile_k), 1)


@cache
def wgrad_kernel(problem: Problem, groups: RowGroups, config: MatmulConfig, blocks: int) -> Any:
    """The kernel `(a, dout, sizes or offsets) -> out` on Hopper: a (rows, M) or, not `a_transposed`, its transpose; dout
    (rows, N) or, `b_transposed`, its transpose; out (groups, M, N).
    """
    p, t = problem, config
    tiles = kd.cdiv(p.M, t.tile_m), kd.cdiv(p.N, t.tile_n)
    total = tiles[0] * tiles[1] * groups.count
    tiling = _WgradTiling(p, t, tiles, total, max(min(total, blocks), 1))
    a_shape = (t.tile_k, t.tile_m) if p.a_transposed else (t.tile_m, t.tile_k)
    b_shape = (t.tile_n, t.tile_k) if p.b_transposed else (t.tile_k, t.tile_n)
    scratch = {
        "a_smem": swizzled(*a_shape, p.dtype, t.stages),
        "b_smem": swizzled(*b_shape, p.b_dtype, t.stages),
        "out_smem": swizzled(t.rows, t.epilogue_n, p.out_dtype, t.consumers * tiling.buffers),
        "loaded": kd.Barrier(num_arrivals=2, num_barriers=t.stages),
        "consumed": released((), t.consumers, t.stages),
        "landed": kd.Barrier(num_arrivals=2),
        "ready": kd.Barrier(),
        "bounds": groups.scratch["bounds"],
    }

    def body(a: Any, b: Any, given: Any, out: Any, *, bounds: Any, landed: Any, ready: Any, **buffers: Any) -> None:
        g = groups.at_launch(a.shape[0 if p.a_transposed else 1])
        me = kd.axis_index("wg")
        out_smem, ring = buffers.pop("out_smem"), StageRing(**buffers)

        @kd.when(me == t.consumers)
        def _() -> None:
            g.bound(given, bounds)
            kd.barrier_arrive(ready)
            kd.barrier_wait(ready)
            _produce(tiling, a, b, bounds, ring, landed)

        @kd.when(me < t.consumers)
        def _() -> None:
            kd.barrier_wait(ready)
            _consume(tiling, me, out, bounds, ring, out_smem)

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct((groups.count, p.M, p.N), p.out_dtype),
        shapes=_shapes(p, groups),
        scratch_types=scratch,
        grid=(tiling.count,),
        grid_names=("block",),
        num_threads=t.consumers + 1,
        thread_name="wg",
        name="grouped_matmul_wgrad",
    )
    return identified(made, problem, groups, config, blocks)


def _produce(tiling: _WgradTiling, a: Any, b: Any, bounds: Any, ring: StageRing, landed: Any) -> None:
    """Load the stages of all tiles of this block, without rows of other groups."""
    p, t = tiling.p, tiling.t
    kd.set_max_registers(40, action="decrease")

    def load(k: Any, m: Any, n: Any, slot: Any, full: Any) -> None:
        k, m, n = kd.ds(k, t.tile_k), kd.ds(m * t.tile_m, t.tile_m), kd.ds(n * t.tile_n, t.tile_n)
        kd.copy_gmem_to_smem(a.at[(k, m) if p.a_transposed else (m, k)], ring.a_smem.at[slot], full)
        kd.copy_gmem_to_smem(b.at[(n, k) if p.b_transposed else (k, n)], ring.b_smem.at[slot], full)

    @tiling.each_tile((0, 0))
    def _(index: Any, carry: Any) -> Any:
        group, m, n = tiling.place_of(index)
        start, size, steps = tiling.steps_of(bounds, group)

        def fill(step: Any, slot: Any, filled: Any) -> None:
            await_release(ring.consumed, slot, filled >= t.stages)
            first, valid = start + step * t.tile_k, size - step * t.tile_k
            full = ring.loaded.at[slot]

            @kd.when(valid >= t.tile_k)
            def _() -> None:
                load(first, m, n, slot, full)

            @kd.when(valid < t.tile_k)
            def _() -> None:
                load(first, m, n, slot, landed)
                kd.barrier_wait(landed)
                _cut(ring.a_smem.at[slot], 0 if p.a_transposed else 1, valid)
                _cut(ring.b_smem.at[slot], 1 if p.b_transposed else 0, valid)
                kd.commit_smem()
                kd.barrier_arrive(full)
                kd.barrier_arrive(full)

        return fill_stages(steps, t.stages, carry, fill)


def _cut(place: Any, axis: int, valid: Any) -> None:
    """Set the rows of a stage from `valid` on to zero."""
    part = (CUT, place.shape[1])

    @kd.loop(kd.div(valid, CUT) if axis == 0 else 0, place.shape[0] // CUT)
    def _(number: Any) -> None:
        first = number * CUT
        past = kd.broadcasted_iota(kd.int32, part, axis) >= (valid - first if axis == 0 else valid)
        kd.store(place, kd.ds(first, CUT), kd.zeros(part, place.dtype), mask=past)


def _consume(tiling: _WgradTiling, me: Any, out: Any, bounds: Any, ring: StageRing, out_smem: Any) -> None:
    """Multiply and store the tiles of consumer `me`."""
    p, t, rows = tiling.p, tiling.t, tiling.t.rows
    kd.set_max_registers(registers_of(t, False)[1], action="increase")
    left_of = partial(ring.left, rows=kd.ds(me * rows, rows), transposed=p.a_transposed)
    right_of = partial(ring.right, transposed=p.b_transposed)

    @tiling.each_tile(0)
    def _(index: Any, slot: Any) -> Any:
        group, m, n = tiling.place_of(index)
        _, _, steps = tiling.steps_of(bounds, group)

        def multiply(acc: Any) -> Any:
            return stage_product(acc, slot, steps, t.stages, left_of, right_of, ring.is_loaded, ring.consumed)

        value, slot_after = kd.run_scoped(multiply, kd.ACC((rows, t.tile_n), p.accumulator))
        _store_tile(tiling, value, out, out_smem, me, group, m * t.tile_m + me * rows, n)
        return slot_after

    kd.wait_smem_to_gmem(0, wait_read_only=True)  # the copies have read SMEM; the kernel's end waits for writes


def _store_tile(tiling: _WgradTiling, value: Any, out: Any, out_smem: Any, me: Any, group: Any, m: Any, n: Any) -> None:
    """Store the sums of consumer `me`: rows from `m` on, of tile `n` along N."""
    p, t, buffers = tiling.p, tiling.t, tiling.buffers
    across = kd.ds(m, t.rows)
    for number in range(tiling.parts):
        first = number * t.epilogue_n
        columns = kd.ds(n * t.tile_n + first, t.epilogue_n)
        place = out_smem.at[me * buffers + number % buffers]
        x = value[:, first : first + t.epilogue_n].astype(p.out_dtype)
        if p.lanes:
            place[...] = x
            out[group, across, columns] = kd.load(place, layout=kd.Layout.WG_STRIDED(place.shape, p.lanes))
            continue
        await_buffer(number, tiling.parts, buffers)
        place[...] = x
        kd.commit_smem()
        kd.copy_smem_to_gmem(place, out.at[group, across, columns])


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
