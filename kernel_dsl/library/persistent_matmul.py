"""The fast matrix product on Hopper: persistent, warp-specialised, TMA in and out.

One warpgroup loads tiles into a ring of SMEM stages; the others multiply. Each block walks its share of the output
tiles in an order that reuses L2. Accumulators go through SMEM to GMEM by TMA, while the loads of the next tile are
already in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import kernel_dsl as kd

from ..errors import BadCallValue
from ..kernel import identified
from ..trace import at_own_lines
from .mixed_product import widened_product

Epilogue = Callable[[Any], Any]


def activated(activation: Epilogue, x: Any) -> Any:
    """`activation(x)`, elementwise. Raises `BadCallValue` for a result of another shape, or none."""
    result = at_own_lines(activation, x)
    if getattr(result, "shape", None) != x.shape:
        what = f"the activation made {result!r} of {x!r}"
        hint = "a function of each element: what it sees is a part of the product"
        raise BadCallValue(kernel="matmul", what=what, hint=hint)
    return result


@dataclass(frozen=True)
class MatmulConfig:
    """Sizes of the matmul kernel. `group`: (clusters of) tiles of M that go together in L2.

    `consumers` share `tile_m` evenly, or with `ping_pong` have a whole tile each, in turns: one stores while the other
    multiplies. `cluster`: blocks along M that share each tile of B by multicast, `cluster_n`: along N, sharing A.
    `epilogue_n`: columns a store moves at a time. `a_hint`, `b_hint`, `out_hint`: what L2 does with what was moved, as
    `l2_hint` of copies. `swapped`: the transposed product is computed, and `tile_m`, `cluster` are along N: for a thin a.
    """

    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 64
    stages: int = 4
    consumers: int = 2
    group: int = 8
    cluster: int = 1
    epilogue_n: int = 64
    epilogue_stages: int = 2
    ping_pong: bool = False
    cluster_n: int = 1
    a_hint: str | None = None
    b_hint: str | None = None
    out_hint: str | None = None
    swapped: bool = False

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return self.cluster * self.cluster_n

    @property
    def rows(self) -> int:
        """Rows of the result that one consumer has at a time."""
        return self.tile_m if self.ping_pong else self.tile_m // self.consumers


@dataclass(frozen=True)
class Problem:
    """What is multiplied: a is (M, K), or (K, M) where `a_transposed`; b is (K, N), or (N, K) where `b_transposed`."""

    M: int
    N: int
    K: int
    dtype: Any
    b_dtype: Any
    out_dtype: Any
    a_transposed: bool = False
    b_transposed: bool = False
    bias: bool = False
    accumulate: bool = False

    @property
    def swapped(self) -> Problem:
        """The same products as out.T = b.T a.T, over the same arrays."""
        p = self
        sides = {"dtype": p.b_dtype, "b_dtype": p.dtype}
        return replace(p, M=p.N, N=p.M, a_transposed=not p.b_transposed, b_transposed=not p.a_transposed, **sides)


def _smem(rows: int, columns: int, dtype: Any, stages: int) -> Any:
    """Stages of a tile whose rows are contiguous, in the widest swizzle."""
    swizzle = kd.find_swizzle(columns * dtype.bits)
    tile = (8, swizzle // dtype.itemsize)
    return kd.SMEM((stages, rows, columns), dtype, transforms=(kd.TilingTransform(tile), kd.SwizzleTransform(swizzle)))


@cache
def matmul_kernel(problem: Problem, config: MatmulConfig, blocks: int, activation: Epilogue | None = None) -> Any:
    """The kernel `(a, b[, bias][, c]) -> out` for a problem, on `blocks` multiprocessors."""
    p, t = problem.swapped if config.swapped else problem, config
    rows = t.rows
    # in clusters of tiles
    tiles_m, tiles_n = kd.cdiv(kd.cdiv(p.M, t.tile_m), t.cluster), kd.cdiv(kd.cdiv(p.N, t.tile_n), t.cluster_n)
    steps = kd.cdiv(p.K, t.tile_k)
    mixed = p.dtype.is_integer and p.b_dtype.is_float
    accumulator = kd.int32 if p.dtype.is_integer and not mixed else kd.float32
    a_shape = (t.tile_k, t.tile_m) if p.a_transposed else (t.tile_m, t.tile_k)
    b_shape = (t.tile_n, t.tile_k) if p.b_transposed else (t.tile_k, t.tile_n)
    clusters = max(min(tiles_m * tiles_n, blocks // t.blocks), 1)
    producer = t.consumers
    turns = t.consumers if t.ping_pong else 1  # consumers that work on different tiles
    releases = t.consumers // turns  # of a stage
    axes = tuple(name for name, size in (("cluster", t.cluster), ("cluster_n", t.cluster_n)) if size > 1)
    parts = t.tile_n // t.epilogue_n  # of a tile, on its way out
    ring = min(t.epilogue_stages, parts)
    out_shape = (t.epilogue_n, rows) if t.swapped else (rows, t.epilogue_n)
    scratch = {
        "a_smem": _smem(*a_shape, p.dtype, t.stages),
        "b_smem": _smem(*b_shape, p.b_dtype, t.stages),
        "out_smem": _smem(*out_shape, p.out_dtype, t.consumers * ring),
        # one for each consumer with tiles of its own: a waiter must see every phase
        "loaded": kd.Barrier(num_arrivals=2, num_barriers=turns * t.stages),
        "consumed": kd.ClusterBarrier(collective_axes=axes, num_arrivals=releases, num_barriers=t.stages)
        if axes
        else kd.Barrier(num_arrivals=releases, num_barriers=t.stages),
    }

    def tile_of(index: Any) -> tuple[Any, Any]:
        m, n = kd.planar_snake(index, (tiles_m, tiles_n), 0, min(t.group, tiles_m))
        if t.cluster > 1:
            m = m * t.cluster + kd.axis_index("cluster")
        if t.cluster_n > 1:
            n = n * t.cluster_n + kd.axis_index("cluster_n")
        return m * t.tile_m, n * t.tile_n

    def next_slot(slot: Any) -> Any:
        return kd.where(slot == t.stages - 1, 0, slot + 1)

    def skip_others(slot: Any) -> Any:
        """The slot after the tiles of the other consumers."""
        ahead = (turns - 1) * steps % t.stages
        return kd.where(slot >= t.stages - ahead, slot - (t.stages - ahead), slot + ahead) if ahead else slot

    def produce(a: Any, b: Any, a_smem: Any, b_smem: Any, loaded: Any, consumed: Any) -> None:
        kd.set_max_registers(24 if t.ping_pong else 40, action="decrease")
        first = kd.axis_index("block")

        @kd.loop(first, tiles_m * tiles_n, step=clusters, init_carry=(0, 0, 0))
        def _(index: Any, carry: Any) -> Any:
            m, n = tile_of(index)
            *carry, turn = carry

            @kd.loop(0, steps, init_carry=tuple(carry))
            def end(step: Any, carry: Any) -> Any:
                slot, count = carry

                @kd.when(count >= t.stages)
                def _() -> None:
                    kd.barrier_wait(consumed.at[slot])

                k = kd.ds(step * t.tile_k, t.tile_k)
                m_slice, n_slice = kd.ds(m, t.tile_m), kd.ds(n, t.tile_n)
                a_tile = a.at[k, m_slice] if p.a_transposed else a.at[m_slice, k]
                b_tile = b.at[n_slice, k] if p.b_transposed else b.at[k, n_slice]
                full = loaded.at[turn * t.stages + slot]
                shares_a, shares_b = ("cluster_n" if t.cluster_n > 1 else None), ("cluster" if t.cluster > 1 else None)
                kd.copy_gmem_to_smem(a_tile, a_smem.at[slot], full, collective_axes=shares_a, l2_hint=t.a_hint)
                kd.copy_gmem_to_smem(b_tile, b_smem.at[slot], full, collective_axes=shares_b, l2_hint=t.b_hint)
                return next_slot(slot), kd.minimum(count + 1, t.stages)

            return *end, kd.where(turn == turns - 1, 0, turn + 1) if turns > 1 else turn

    def consume(
        me: Any, extra: tuple[Any, ...], out: Any, a_smem: Any, b_smem: Any, out_smem: Any, loaded: Any, consumed: Any
    ) -> None:
        kd.set_max_registers(232 if t.consumers == 2 and not t.ping_pong else 240, action="increase")
        turn, part = (me, 0) if t.ping_pong else (0, me)
        first = kd.axis_index("block") + turn * clusters

        @kd.loop(first, tiles_m * tiles_n, step=turns * clusters, init_carry=turn * (steps % t.stages))
        def _(index: Any, slot: Any) -> Any:
            m, n = tile_of(index)

            def multiply(acc: Any) -> Any:
                @kd.loop(0, steps, init_carry=(slot, slot))
                def end(step: Any, carry: Any) -> Any:
                    slot, before = carry
                    kd.barrier_wait(loaded.at[turn * t.stages + slot])
                    a_block = a_smem.at[slot]
                    a_rows = kd.ds(part * rows, rows)
                    a_block = a_block.at[:, a_rows].T if p.a_transposed else a_block.at[a_rows]
                    b_block = b_smem.at[slot].T if p.b_transposed else b_smem.at[slot]
                    kd.wgmma(acc, a_block, b_block)
                    kd.wgmma_wait(1)
                    kd.barrier_arrive(consumed.at[before], predicate=step > 0)
                    return next_slot(slot), slot

                slot_after, last = end
                value = acc[...]
                kd.barrier_arrive(consumed.at[last])
                return value, slot_after

            def multiply_widened(acc: Any) -> Any:
                def left(slot: Any) -> Any:
                    return a_smem.at[slot].at[kd.ds(part * rows, rows)]

                def right(slot: Any) -> Any:
                    return b_smem.at[slot].T if p.b_transposed else b_smem.at[slot]

                return widened_product(acc, slot, steps, t.stages, left, right, loaded, consumed)

            value, slot_after = kd.run_scoped(
                multiply_widened if mixed else multiply, kd.ACC((rows, t.tile_n), accumulator)
            )
            store_tile(value, extra, out, out_smem, me, m + part * rows, n)
            return skip_others(slot_after)

        kd.wait_smem_to_gmem(0, wait_read_only=True)  # SMEM outlives the copies; the kernel's end waits for the rest

    def store_tile(value: Any, extra: tuple[Any, ...], out: Any, out_smem: Any, me: Any, m: Any, n: Any) -> None:
        for part in range(parts):
            x = value[:, part * t.epilogue_n : (part + 1) * t.epilogue_n]
            across, columns = kd.ds(m, rows), kd.ds(n + part * t.epilogue_n, t.epilogue_n)
            rest = list(extra)
            if p.bias:
                x = plus(x, kd.load(rest.pop(0), (across, None) if t.swapped else (None, columns)))
            if p.accumulate:
                c = rest.pop(0)
                x = plus(x, kd.load(c.T if t.swapped else c, (across, columns)))
            if activation is not None:
                x = activated(activation, x)
            # a tile starts with the first buffer, which the tile before may have used last
            kd.wait_smem_to_gmem(0 if part == 0 and parts % ring else ring - 1, wait_read_only=True)
            place = out_smem.at[me * ring + part % ring]
            filled = place.T if t.swapped else place
            filled[...] = x.astype(p.out_dtype)
            kd.commit_smem()
            where = (columns, across) if t.swapped else (across, columns)
            kd.copy_smem_to_gmem(place, out.at[where], l2_hint=t.out_hint)

    def body(a: Any, b: Any, *refs: Any, **buffers: Any) -> None:
        *extra, out = refs
        left, right = (b, a) if t.swapped else (a, b)
        me = kd.axis_index("wg")
        out_smem = buffers.pop("out_smem")

        @kd.when(me == producer)
        def _() -> None:
            produce(left, right, **buffers)

        @kd.when(me < producer)
        def _() -> None:
            consume(me, tuple(extra), out, out_smem=out_smem, **buffers)

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct((problem.M, problem.N), p.out_dtype),
        scratch_types=scratch,
        grid=(clusters,),
        grid_names=("block",),
        cluster=tuple(size for size in (t.cluster, t.cluster_n) if size > 1),
        cluster_names=axes,
        num_threads=t.consumers + 1,
        thread_name="wg",
        name="matmul",
    )
    return made if activation is not None else identified(made, problem, config, blocks)


def plus(x: Any, y: Any) -> Any:
    """Sums `x` plus a bias or addend: in the dtype of the sums, but a float is not cut down to an integer, nor 64 bits to 32."""
    if not x.dtype.is_float and (y.dtype.is_float or y.dtype.itemsize == 8):
        large = 8 in (x.dtype.itemsize, y.dtype.itemsize)
        x = x.astype((kd.float64 if large else kd.float32) if y.dtype.is_float else y.dtype)
    return x + y.astype(x.dtype)
