"""Planted bugs in kernels of the language."""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

from .probe import Probe, traced

ROW = kd.SMEM((128,), kd.float32)
X = np.arange(128, dtype=np.float32)
ROWS = np.arange(1024, dtype=np.float32).reshape(8, 128)
H = np.ones((128, 64), np.float16)


def stages(bug: bool) -> Any:
    """A ring of three stages; the consumer hands back the wrong one."""

    @kd.kernel(out_type=lambda x: x, num_threads=2, thread_name="wg", scratch_types={
        "tile": kd.SMEM((3, 128), kd.float32), "full": kd.Barrier(num_barriers=3), "empty": kd.Barrier(num_barriers=3)})  # fmt: skip
    def kernel(x, out, *, tile, full, empty):
        wg = kd.axis_index("wg")

        @kd.when(wg == 0)
        def _():
            @kd.loop(0, 8)
            def _(i):
                @kd.when(i >= 3)
                def _():
                    kd.barrier_wait(empty.at[i % 3])

                kd.copy_gmem_to_smem(x.at[i], tile.at[i % 3], full.at[i % 3])

            @kd.loop(0, 3)
            def _(i):
                kd.barrier_wait(empty.at[(i + 2) % 3])

        @kd.when(wg == 1)
        def _():
            @kd.loop(0, 8)
            def _(i):
                kd.barrier_wait(full.at[i % 3])
                if bug:
                    kd.barrier_arrive(empty.at[i % 3])
                out[i] = tile[i % 3] + 1
                if not bug:
                    kd.barrier_arrive(empty.at[i % 3])

    return kernel


def neighbour(bug: bool) -> Any:
    """Each block of a cluster reads its neighbour's row."""

    @kd.kernel(out_type=lambda x: x, cluster=(4,), cluster_names=("c",), scratch_types={
        "tile": ROW, "ready": kd.ClusterBarrier(("c",))})  # fmt: skip
    def kernel(x, out, *, tile, ready):
        c = kd.axis_index("c")
        tile[...] = x[c] * 2
        if not bug:
            kd.barrier_arrive(ready)
            kd.barrier_wait(ready)
        out[c] = kd.cluster_ref(tile, {"c": (c + 1) % 4})[...]

    return kernel


def scratch_of_all(bug: bool) -> Any:
    """Blocks exchange rows through GMEM."""

    @kd.kernel(out_type=lambda x: x, grid=(2,), grid_names=("b",), scratch_types={
        "g": kd.GMEM((2, 128), kd.float32), "sem": kd.GMEM((2,), kd.int32)})  # fmt: skip
    def kernel(x, out, *, g, sem):
        b = kd.axis_index("b")
        s = kd.get_global(kd.SemaphoreType.REGULAR)
        g[b] = x[b]
        kd.semaphore_signal(s)
        if not bug:
            kd.semaphore_wait(s, 2, decrement=False)
        out[b] = g[1 - b]

    return kernel


def histogram(bug: bool) -> Any:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((128,), kd.int32), grid=(4,), grid_names=("b",), input_output_aliases={1: 0}
    )
    def kernel(x, start, out):
        i = x[kd.axis_index("b")]
        kd.atomic_add(out.at[i], 1, scope="cta" if bug else "gpu")

    return kernel


def ticket(bug: bool) -> Any:
    """The last block to arrive adds what all wrote."""

    out = kd.ShapeDtypeStruct((128,), kd.float32), kd.ShapeDtypeStruct((128,), kd.int32)

    @kd.kernel(out_type=out, grid=(3,), grid_names=("b",), scratch_types={"part": kd.GMEM((3, 128), kd.float32)},
        input_output_aliases={1: 1})  # fmt: skip
    def kernel(x, _, out, count, *, part):
        b = kd.axis_index("b")
        part[b] = x[b]
        got = kd.atomic_add(count.at[0], 1, order="relaxed" if bug else "acq_rel")

        @kd.when(got == 2)
        def _():
            out[...] = part[0] + part[1] + part[2]

    return kernel


def gmem_copy(bug: bool) -> Any:
    """A copy loads what lanes stored to GMEM."""

    @kd.kernel(out_type=lambda x: (x, x), scratch_types={"tile": ROW, "full": kd.Barrier()})
    def kernel(x, out, between, *, tile, full):
        between[...] = x[...] * 3
        if not bug:
            kd.commit_gmem()
        kd.copy_gmem_to_smem(between, tile, full)
        kd.barrier_wait(full)
        out[...] = tile[...]

    return kernel


def two_stores(bug: bool) -> Any:
    """Two copies to rows of the output that overlap."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((3, 128), kd.float32), scratch_types=[kd.SMEM((4, 128), kd.float32)])
    def kernel(x, out, tile):
        tile[...] = x[0:4]
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile.at[0:2], out.at[0:2])
        if not bug:
            kd.wait_smem_to_gmem(0)
        kd.copy_smem_to_gmem(tile.at[2:4], out.at[1:3])
        kd.wait_smem_to_gmem(0)

    return kernel


def reduction(bug: bool) -> Any:
    """A copy that adds, and a read before it is done."""

    @kd.kernel(out_type=lambda x: x, scratch_types=[ROW])
    def kernel(x, out, tile):
        tile[...] = x[...]
        out[...] = x[...]
        kd.commit_smem()
        kd.commit_gmem()
        kd.copy_smem_to_gmem(tile, out, reduction_op="add")
        if not bug:
            kd.wait_smem_to_gmem(0)
        v = out[...]
        kd.wait_smem_to_gmem(0)
        out[...] = v + 1

    return kernel


def accumulators(bug: bool) -> Any:
    """A product's accumulator is read with a product in flight."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((64, 64), kd.float32), scratch_types=[
        kd.SMEM((64, 64), kd.float16), kd.SMEM((64, 64), kd.float16), kd.ACC((64, 64)), kd.Barrier(num_arrivals=2)])  # fmt: skip
    def kernel(a, b, out, left, right, acc, full):
        kd.copy_gmem_to_smem(a.at[0:64], left, full)
        kd.copy_gmem_to_smem(b.at[0:64], right, full)
        kd.barrier_wait(full)
        kd.wgmma(acc, left, right)
        kd.wgmma_wait(0)
        kd.wgmma(acc, left, right)
        if not bug:
            kd.wgmma_wait(0)
        left[...] = kd.full((64, 64), 1, kd.float16)
        kd.wgmma_wait(0)
        out[...] = acc[...]

    return kernel


def half_written(bug: bool) -> Any:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((), kd.float32), scratch_types=[kd.SMEM((256,), kd.float32)])
    def kernel(x, out, tile):
        tile[0:128] = x[...]
        if not bug:
            tile[128:256] = x[...]
        out[...] = kd.sum(tile[...])

    return kernel


def early(bug: bool) -> Any:
    """One warpgroup signals before its store."""

    @kd.kernel(out_type=lambda x: x, num_threads=2, thread_name="wg", scratch_types={"tile": ROW, "told": kd.Barrier()})
    def kernel(x, out, *, tile, told):
        @kd.when(kd.axis_index("wg") == 0)
        def _():
            if bug:
                kd.barrier_arrive(told)
            tile[...] = x[...]
            if not bug:
                kd.barrier_arrive(told)

        @kd.when(kd.axis_index("wg") == 1)
        def _():
            kd.barrier_wait(told)
            out[...] = tile[...]

    return kernel


def columns(bug: bool) -> Any:
    """Blocks write tiles, one column too wide."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((4, 257), kd.float32), grid=(2,), grid_names=("b",))
    def kernel(x, out):
        b = kd.axis_index("b")
        out[:, kd.ds(b * 128, 129 if bug else 128)] = kd.full((4, 129 if bug else 128), 1, kd.float32) * (b + 1)
        del x

    return kernel


COUNTS = np.zeros(128, np.int32)
PROBES: list[Probe] = [
    traced("a ring of the language frees stages early", "race_shared", stages, ROWS),
    traced(
        "a neighbour's row before the cluster barrier",
        "race_shared peer_not_running uninitialised",
        neighbour,
        ROWS[:4],
    ),
    traced(
        "blocks exchange rows without waiting for the semaphore", "race_blocks uninitialised", scratch_of_all, ROWS[:2]
    ),
    traced("atomics of the block's scope", "race_blocks", histogram, np.zeros(4, np.int32), COUNTS),
    traced("the last block's ticket has no order", "race_blocks", ticket, ROWS[:3], COUNTS),
    traced("a copy loads from GMEM what lanes stored", "missing_proxy_fence", gmem_copy, X),
    traced("two copies store overlapping rows", "race_global", two_stores, ROWS),
    traced("a copy that adds is read too early", "race_global read_before_wait", reduction, X),
    traced("an operand is rewritten under the second product", "reused_before_wgmma", accumulators, H, H),
    traced("a sum of a tile that is half written", "uninitialised", half_written, X),
    traced("a warpgroup signals before its store", "race_shared uninitialised", early, X),
    traced("tiles that are one column too wide", "race_blocks", columns, X),
]
