"""More planted bugs in kernels of the language: rings, counts, groups of copies, clusters, semaphores, scopes."""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

from .probe import Probe, traced

F = kd.float32
X = np.arange(128, dtype=np.float32)
ROWS = np.arange(1024, dtype=np.float32).reshape(8, 128)
H = (np.arange(64 * 64) % 7).astype(np.float16).reshape(64, 64)
ROW = kd.SMEM((128,), F)
ONE = kd.ShapeDtypeStruct((128,), F)


def counted(bug: bool) -> Any:
    """Two copies complete on a barrier that counts one, or three."""

    @kd.kernel(
        out_type=ONE, scratch_types={"tile": kd.SMEM((2, 128), F), "full": kd.Barrier(num_arrivals=3 if bug else 2)}
    )
    def kernel(x, out, *, tile, full):
        kd.copy_gmem_to_smem(x.at[0], tile.at[0], full)
        kd.copy_gmem_to_smem(x.at[1], tile.at[1], full)
        kd.barrier_wait(full)
        out[...] = tile[0] + tile[1]

    return kernel


def overlapping(bug: bool) -> Any:
    """Two copies into rows of one tile that overlap by a row."""

    @kd.kernel(out_type=ONE, scratch_types={"tile": kd.SMEM((4, 128), F), "full": kd.Barrier(num_arrivals=2)})
    def kernel(x, out, *, tile, full):
        kd.copy_gmem_to_smem(x.at[0:2], tile.at[0:2], full)
        kd.copy_gmem_to_smem(x.at[4:6], tile.at[1:3] if bug else tile.at[2:4], full)
        kd.barrier_wait(full)
        out[...] = tile[0] + tile[2]

    return kernel


def one_group_left(bug: bool) -> Any:
    """A tile is written again while the newer of two stores reads it."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((3, 128), F), scratch_types=[kd.SMEM((2, 128), F)])
    def kernel(x, out, tile):
        tile[...] = x[0:2]
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile.at[0], out.at[0])
        kd.copy_smem_to_gmem(tile.at[1], out.at[1])
        kd.wait_smem_to_gmem(1 if bug else 0, wait_read_only=True)
        tile[1] = x[2]
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile.at[1], out.at[2])
        kd.wait_smem_to_gmem(0)

    return kernel


def read_only_wait(bug: bool) -> Any:
    """What a store wrote is read when only its source has been."""

    @kd.kernel(out_type=lambda x: (x, x), scratch_types=[ROW])
    def kernel(x, between, out, tile):
        tile[...] = x[...] * 2
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile, between)
        kd.wait_smem_to_gmem(0, wait_read_only=bug)
        out[...] = between[...]
        kd.wait_smem_to_gmem(0)

    return kernel


def two_roles(bug: bool) -> Any:
    """Two warpgroups write halves of a row of which each stores the whole."""

    @kd.kernel(out_type=lambda x: x, num_threads=2, thread_name="wg", scratch_types={
        "tile": kd.SMEM((2, 128), F), "met": kd.Barrier(num_arrivals=2)})  # fmt: skip
    def kernel(x, out, *, tile, met):
        wg = kd.axis_index("wg")
        tile[wg] = x[wg]
        kd.commit_smem()
        if not bug:
            kd.barrier_arrive_and_wait(met)

        @kd.when(wg == 0)
        def _():
            kd.copy_smem_to_gmem(tile, out)
            kd.wait_smem_to_gmem(0)

    return kernel


def no_commit(bug: bool) -> Any:
    """A tile is filled by a copy, changed by lanes, and stored without a commit."""

    @kd.kernel(out_type=lambda x: x, scratch_types={"tile": ROW, "full": kd.Barrier()})
    def kernel(x, out, *, tile, full):
        kd.copy_gmem_to_smem(x, tile, full)
        kd.barrier_wait(full)
        tile[...] = tile[...] * 3
        if not bug:
            kd.commit_smem()
        kd.copy_smem_to_gmem(tile, out)
        kd.wait_smem_to_gmem(0)

    return kernel


def unawaited(bug: bool) -> Any:
    """The last copy of a ring is prefetched, and nobody waits for it."""

    @kd.kernel(out_type=ONE, scratch_types={"tile": kd.SMEM((2, 128), F), "full": kd.Barrier(num_barriers=2)})
    def kernel(x, out, *, tile, full):
        kd.copy_gmem_to_smem(x.at[0], tile.at[0], full.at[0])
        kd.copy_gmem_to_smem(x.at[1], tile.at[1], full.at[1])
        kd.barrier_wait(full.at[0])
        value = tile[0]
        if not bug:
            kd.barrier_wait(full.at[1])
        out[...] = value

    return kernel


def ring_of_products(bug: bool) -> Any:
    """A warpgroup frees a stage when the product that reads it has only been issued."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((64, 64), F), num_threads=2, thread_name="wg", scratch_types={
        "left": kd.SMEM((64, 64), kd.float16), "right": kd.SMEM((64, 64), kd.float16),
        "full": kd.Barrier(num_arrivals=2), "empty": kd.Barrier()})  # fmt: skip
    def kernel(a, b, out, *, left, right, full, empty):
        wg = kd.axis_index("wg")

        @kd.when(wg == 0)
        def _():
            @kd.loop(0, 3)
            def _(i):
                @kd.when(i > 0)
                def _():
                    kd.barrier_wait(empty)

                kd.copy_gmem_to_smem(a, left, full)
                kd.copy_gmem_to_smem(b, right, full)

            kd.barrier_wait(empty)

        @kd.when(wg == 1)
        def _():
            def body(acc):
                @kd.loop(0, 3)
                def _(i):
                    kd.barrier_wait(full)
                    kd.wgmma(acc, left, right)
                    if bug:
                        kd.barrier_arrive(empty)
                    kd.wgmma_wait(0)
                    if not bug:
                        kd.barrier_arrive(empty)

                return acc[...]

            out[...] = kd.run_scoped(body, kd.ACC((64, 64)))

    return kernel


def scope_of_a_count(bug: bool) -> Any:
    """Blocks take the largest value by an atomic of their block's scope."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((4,), kd.int32), grid=(3,), grid_names=("b",), input_output_aliases={0: 0})
    def kernel(start, out):
        kd.atomic_max(out.at[0], kd.axis_index("b"), scope="cta" if bug else "gpu")

    return kernel


def plain_reader(bug: bool) -> Any:
    """A block reads what others still add to."""

    @kd.kernel(out_type=(kd.ShapeDtypeStruct((1,), kd.int32), kd.ShapeDtypeStruct((3,), kd.int32)), grid=(3,),
        grid_names=("b",), input_output_aliases={0: 0})  # fmt: skip
    def kernel(start, total, seen):
        b = kd.axis_index("b")
        got = kd.atomic_add(total.at[0], 1)
        seen[b] = total[0] if bug else got

    return kernel


def signal_before(bug: bool) -> Any:
    """A block signals before it has stored its row."""

    @kd.kernel(out_type=lambda x: x, grid=(2,), grid_names=("b",), scratch_types={"g": kd.GMEM((2, 128), F)})
    def kernel(x, out, *, g):
        b = kd.axis_index("b")
        s = kd.get_global(kd.SemaphoreType.REGULAR)
        if bug:
            kd.semaphore_signal(s)
        g[b] = x[b]
        if not bug:
            kd.semaphore_signal(s)
        kd.semaphore_wait(s, 2, decrement=False)
        out[b] = g[1 - b]

    return kernel


def waits_for_one(bug: bool) -> Any:
    """Three blocks exchange rows, and each waits for two of three signals."""

    @kd.kernel(out_type=lambda x: x, grid=(3,), grid_names=("b",), scratch_types={"g": kd.GMEM((3, 128), F)})
    def kernel(x, out, *, g):
        b = kd.axis_index("b")
        s = kd.get_global(kd.SemaphoreType.REGULAR)
        g[b] = x[b]
        kd.semaphore_signal(s)
        kd.semaphore_wait(s, 2 if bug else 3, decrement=False)
        out[b] = g[(b + 1) % 3] + g[(b + 2) % 3]

    return kernel


def multicast(bug: bool) -> Any:
    """A row for both blocks of a cluster is loaded again before the neighbour has read it."""

    @kd.kernel(out_type=lambda x: x, cluster=(2,), cluster_names=("c",), scratch_types={
        "tile": ROW, "full": kd.Barrier(), "met": kd.ClusterBarrier(("c",))})  # fmt: skip
    def kernel(x, out, *, tile, full, met):
        c = kd.axis_index("c")
        kd.copy_gmem_to_smem(x.at[0], tile, full, collective_axes="c")
        kd.barrier_wait(full)
        first = tile[...]
        if not bug:
            kd.barrier_arrive(met)
            kd.barrier_wait(met)
        kd.copy_gmem_to_smem(x.at[1], tile, full, collective_axes="c")
        kd.barrier_wait(full)
        out[c] = first + tile[...]

    return kernel


def unset(bug: bool) -> Any:
    """Instructions of one's own leave a result unset."""

    @kd.kernel(out_type=lambda x: x)
    def kernel(x, out):
        text = "" if bug else "mov.b32 $0, $1;"
        out[...] = kd.inline_ptx(
            "{ .reg .pred p; setp.eq.u32 p, 1, 0; @p mov.b32 $0, $1; " + text + " }", x[...], out_type=F
        )

    return kernel


PROBES: list[Probe] = [
    traced("a barrier counts three copies where two come", "deadlock", counted, ROWS),
    traced("copies into rows that overlap", "race_shared", overlapping, ROWS),
    traced("a tile is written while the newer store reads it", "reused_before_read", one_group_left, ROWS),
    traced("a result is read when its source has been", "read_before_wait race_global", read_only_wait, X),
    traced("one warpgroup stores what both write", "race_shared uninitialised", two_roles, ROWS[:2]),
    traced("a tile changed in place is stored without a commit", "missing_proxy_fence", no_commit, X),
    traced("a prefetch that nobody waits for", "unawaited_copy", unawaited, ROWS),
    traced("a stage is freed under its product", "reused_before_wgmma race_shared", ring_of_products, H, H),
    traced("a maximum of a block's scope", "race_blocks", scope_of_a_count, np.zeros(4, np.int32)),
    traced("a plain read beside other blocks' atomics", "race_blocks", plain_reader, np.zeros(1, np.int32)),
    traced("a signal before the store", "race_blocks uninitialised", signal_before, ROWS[:2]),
    traced(
        "a wait for fewer signals than there are blocks",
        "race_blocks uninitialised",
        waits_for_one,
        ROWS[:3],
        every=False,
    ),
    traced("a multicast over what the neighbour reads", "race_shared", multicast, ROWS[:2]),
    traced("a result that own instructions leave unset", "uninitialised", unset, X),
]
