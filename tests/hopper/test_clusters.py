"""Clusters: barriers, peers' SMEM, asynchronous stores, multicast; and semaphores between blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter.checks.hazards import HazardError
from tests.schedules import SCHEDULES

from .helpers import random, relative, tiles

pytestmark = [pytest.mark.cluster, pytest.mark.tma]

PAIR: dict[str, Any] = {"grid": (2,), "grid_names": ("g",), "cluster": (2,), "cluster_names": ("c",)}
f32 = kd.float32


def place() -> Any:
    return kd.axis_index("g") * 2 + kd.axis_index("c")


def test_peers_are_read_and_written(interpret: Any, rng: Any) -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((2, 4, 128), f32),
        scratch_types=[kd.SMEM((128,), f32), kd.SMEM((128,), f32), kd.ClusterBarrier("c")],
        **PAIR,
    )
    def kernel(x: Any, out: Any, mine: Any, theirs: Any, met: Any) -> None:
        other = {"c": 1 - kd.axis_index("c")}
        mine[...] = x[place()]
        kd.cluster_ref(theirs, other)[...] = x[place()] * 2.0
        kd.barrier_arrive_and_wait(met)
        out[0, place()] = kd.cluster_ref(mine, other)[...]
        out[1, place()] = theirs[...]

    x = random(rng, (4, 128), f32)
    kernel.lower(x).compile()
    swapped = x[[1, 0, 3, 2]]
    assert np.array_equal(kernel(x, interpret=interpret), np.stack([swapped, 2 * swapped]))


@pytest.mark.parametrize("dtype", [f32, kd.bfloat16], ids=str)
def test_asynchronous_stores(dtype: Any, interpret: Any, rng: Any) -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((4, 8, 64), dtype),
        scratch_types=[
            kd.SMEM(
                (8, 64),
                dtype,
                transforms=(kd.TilingTransform((8, 128 // dtype.itemsize // 2)), kd.SwizzleTransform(64)),
            ),
            kd.Barrier(),
        ],
        **PAIR,
    )
    def kernel(x: Any, out: Any, tile: Any, ready: Any) -> None:
        kd.async_store_smem(x[place()], tile, ready, cluster_dim="c", cluster_idx=1 - kd.axis_index("c"))
        kd.barrier_wait(ready)
        out[place()] = tile[...]

    x = random(rng, (4, 8, 64), dtype)
    kernel.lower(x).compile()
    assert np.array_equal(kernel(x, interpret=interpret), x[[1, 0, 3, 2]])


@pytest.mark.parametrize("dtype", [kd.int32, kd.uint32, kd.int64, kd.uint64], ids=str)
@pytest.mark.sampled(12)
def test_asynchronous_sums(dtype: Any, interpret: Any, rng: Any) -> None:
    """Every block of the cluster, this one too, adds to each block's buffer; a barrier counts both arrivals."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((2, 8, 48), dtype),
        scratch_types=[kd.SMEM((8, 48), dtype), kd.Barrier(2), kd.ClusterBarrier("c")],
        cluster=(2,),
        cluster_names=("c",),
    )
    def kernel(x: Any, start: Any, out: Any, sums: Any, ready: Any, met: Any) -> None:
        me = kd.axis_index("c")
        sums[...] = start[...]
        kd.barrier_arrive_and_wait(met)
        for block in range(2):
            kd.async_store_smem(x[me, block], sums, ready, cluster_dim="c", cluster_idx=block, atomic="add")
        kd.barrier_wait(ready)
        out[me] = sums[...]

    high = np.iinfo(dtype.numpy).max // 4
    x = rng.integers(-high if dtype.is_signed else 0, high, (2, 2, 8, 48)).astype(dtype.numpy)
    start = random(rng, (8, 48), dtype)
    assert "red.async" in kernel.lower(x, start).compile().ptx
    expected = x.astype(object).sum(0) + start.astype(object)
    assert np.array_equal(kernel(x, start, interpret=interpret), expected.astype(dtype.numpy))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_asynchronous_sums_after_what_was_there(schedule: str) -> None:
    """Sums don't race with each other; they do with what the other block stores first."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((2, 64), kd.int32),
        scratch_types=[kd.SMEM((64,), kd.int32), kd.Barrier(2)],
        cluster=(2,),
        cluster_names=("c",),
    )
    def kernel(x: Any, out: Any, sums: Any, ready: Any) -> None:
        sums[...] = x[...]
        for block in range(2):
            kd.async_store_smem(x[...], sums, ready, cluster_dim="c", cluster_idx=block, atomic="add")
        kd.barrier_wait(ready)
        out[kd.axis_index("c")] = sums[...]

    with pytest.raises(HazardError, match=r"race_shared|uninitialised"):
        kernel(np.ones(64, np.int32), interpret=kd.InterpretParams(schedule=schedule))


@pytest.mark.parametrize("dtype", [kd.int32, f32, kd.bfloat16, kd.float64], ids=str)
def test_atomics_on_a_peer(dtype: Any, interpret: Any, rng: Any) -> None:
    """Both blocks add to the first one's buffer, through the cluster's window of SMEM."""

    @kd.kernel(
        out_type=[kd.ShapeDtypeStruct((2, 64), dtype), kd.ShapeDtypeStruct((2,), kd.int32)],
        scratch_types=[kd.SMEM((64,), dtype), kd.SMEM((), kd.int32), kd.ClusterBarrier("c")],
        cluster=(2,),
        cluster_names=("c",),
    )
    def kernel(x: Any, out: Any, tickets: Any, sums: Any, counter: Any, met: Any) -> None:
        me = kd.axis_index("c")
        sums[...] = x[me]
        counter[...] = 0
        kd.barrier_arrive_and_wait(met)
        kd.atomic_add(kd.cluster_ref(sums, {"c": 0}), x[2], scope="cluster")
        tickets[me] = kd.atomic_add(kd.cluster_ref(counter, {"c": 1}), 1, scope="cluster")
        kd.barrier_arrive_and_wait(met)
        out[me] = sums[...]

    x = rng.integers(-9, 10, (3, 64)).astype(dtype.numpy)
    ptx = kernel.lower(x).ptx
    kernel.lower(x).compile()
    atomics = [line for line in ptx.splitlines() if " red." in line or "atom." in line]
    assert atomics and all("shared::cluster" in line for line in atomics)
    out, tickets = kernel(x, interpret=interpret)
    assert np.array_equal(out, np.stack([x[0] + 2 * x[2], x[1]])) and sorted(tickets) == [0, 1]


@pytest.mark.parametrize("axes", [("c",), ("d",), ("c", "d")], ids=str)
def test_multicast(axes: Any, interpret: Any, rng: Any) -> None:
    """Blocks along the axes get one tile, whatever part of it each loads."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((2, 2, 64, 64), kd.bfloat16),
        scratch_types=[
            kd.SMEM((64, 64), kd.bfloat16, transforms=(kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))),
            kd.Barrier(),
        ],
        cluster=(2, 2),
        cluster_names=("c", "d"),
    )
    def kernel(x: Any, out: Any, tile: Any, ready: Any) -> None:
        c, d = kd.axis_index("c"), kd.axis_index("d")
        source = (0 if "c" in axes else c) * 2 + (0 if "d" in axes else d)
        kd.copy_gmem_to_smem(x.at[source], tile, ready, collective_axes=axes)
        kd.barrier_wait(ready)
        out[c, d] = tile[...]

    x = random(rng, (4, 64, 64), kd.bfloat16)
    assert "multicast::cluster" in kernel.lower(x).ptx
    kernel.lower(x).compile()
    expected = np.stack(
        [np.stack([x[(0 if "c" in axes else c) * 2 + (0 if "d" in axes else d)] for d in range(2)]) for c in range(2)]
    )
    assert np.array_equal(kernel(x, interpret=interpret), expected)


@pytest.mark.parametrize("axes", ["c", ("c", "d"), (("c", "d"),)], ids=str)
def test_arrival_counts(axes: Any, interpret: Any) -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((4,), kd.int32),
        cluster=(2, 2),
        cluster_names=("c", "d"),
        scratch_types=[kd.ClusterBarrier(axes, num_arrivals=4)],
    )
    def kernel(out: Any, met: Any) -> None:
        for _ in range(4):
            kd.barrier_arrive(met)
        kd.barrier_wait(met)
        here = kd.axis_index("c") * 2 + kd.axis_index("d")
        out[here] = here

    assert list(kernel(interpret=interpret)) == [0, 1, 2, 3]


def test_semaphores(interpret: Any) -> None:
    """One set a block, one for the grid; zero at each launch."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((3,), kd.int32),
        grid=(2,),
        grid_names=("i",),
        scratch_types=[kd.SemaphoreType.REGULAR],
    )
    def kernel(out: Any, own: Any) -> None:
        shared = kd.get_global(kd.SemaphoreType.REGULAR((10,)))
        i = kd.axis_index("i")

        @kd.when(i == 0)
        def _() -> None:
            out[2] = 17
            kd.semaphore_signal(shared.at[3], 2)

        @kd.when(i == 1)
        def _() -> None:
            kd.semaphore_wait(shared.at[3], 2)
            out[2] = out[2] + 1

        kd.semaphore_signal(own, i + 5)
        out[i] = kd.semaphore_read(own)

    kernel.lower().compile()
    for _ in range(2):
        assert list(kernel(interpret=interpret)) == [5, 6, 18]


def test_several_waiters_take_their_own(interpret: Any) -> None:
    """A semaphore as a lock: whoever holds it sees a count of zero, and nobody else's half-done work."""
    blocks = 6

    @kd.kernel(
        out_type=[kd.ShapeDtypeStruct((1,), kd.int32, init=0), kd.ShapeDtypeStruct((blocks, 2), kd.int32)],
        grid=(blocks,),
        grid_names=("g",),
    )
    def kernel(total: Any, seen: Any) -> None:
        lock, g = kd.get_global(kd.SemaphoreType.REGULAR), kd.axis_index("g")
        kd.when(g == 0)(lambda: kd.semaphore_signal(lock, 2))
        kd.semaphore_wait(lock, 2)
        before = kd.atomic_add(total.at[0], 1)
        seen[g, 0] = kd.semaphore_read(lock)
        seen[g, 1] = kd.atomic_add(total.at[0], 1) - before
        kd.semaphore_signal(lock, 2)

    total, seen = kernel(interpret=interpret)
    assert total[0] == 2 * blocks and (seen == [0, 1]).all()


@pytest.mark.parametrize("way", ["apart", "unread", "copied", "stored"])
def test_barriers_order_what_blocks_pass(way: str, interpret: Any, rng: Any) -> None:
    """A barrier of the cluster orders memory at its scope where a block reads what its peer wrote to GMEM, and only there. Behind
    stores that nothing reads there is a fence, which keeps their order, once.
    """

    @kd.kernel(
        out_type=[kd.ShapeDtypeStruct((4, 128), f32)] * 2,
        scratch_types=[kd.SMEM((128,), f32), kd.SMEM((128,), f32), kd.ClusterBarrier("c")],
        **PAIR,
    )
    def kernel(x: Any, passed: Any, out: Any, tile: Any, theirs: Any, met: Any) -> None:
        tile[...] = x[place()] + 1.0
        kd.commit_smem()
        if way in ("stored", "unread"):
            passed[place()] = tile[...]
        else:
            kd.copy_smem_to_gmem(tile, passed.at[place()])
            kd.wait_smem_to_gmem(0)
        kd.barrier_arrive_and_wait(met)
        peer = kd.axis_index("g") * 2 + 1 - kd.axis_index("c")
        theirs[...] = (x if way in ("apart", "unread") else passed)[peer]
        kd.commit_smem()
        kd.copy_smem_to_gmem(theirs, out.at[place()])
        kd.wait_smem_to_gmem(0)

    x = random(rng, (4, 128), f32)
    ptx = kernel.lower(x).ptx
    assert ("mbarrier.arrive.release.cluster" in ptx) == (way in ("copied", "stored"))
    assert ptx.count("fence.acq_rel.cluster") == (way == "unread")
    passed, out = kernel(x, interpret=interpret)
    assert np.array_equal(passed, x + 1)
    assert np.array_equal(out, (x if way in ("apart", "unread") else x + 1)[[1, 0, 3, 2]])


def test_a_product_of_a_peers_matrix(interpret: Any, rng: Any) -> None:
    """The tensor core reads its own block's SMEM alone: `dot` loads what a peer has."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((2, 64, 64), f32),
        scratch_types=[kd.SMEM((64, 64), kd.bfloat16), kd.ClusterBarrier("c")],
        cluster=(2,),
        cluster_names=("c",),
    )
    def kernel(x: Any, out: Any, tile: Any, met: Any) -> None:
        c = kd.axis_index("c")
        tile[...] = x[c]
        kd.barrier_arrive_and_wait(met)
        peer = kd.cluster_ref(tile, {"c": 1 - c})
        out[c] = kd.dot(peer, peer.T)

    x = random(rng, (2, 64, 64), kd.bfloat16)
    wide = x.astype(np.float64)
    assert relative(kernel(x, interpret=interpret), (wide @ wide.transpose(0, 2, 1))[::-1]) < 1e-6


@pytest.mark.parametrize("use", ["load", "store", "wgmma a", "wgmma b", "async store"])
@pytest.mark.parametrize("view", ["whole", "bitcast"])
def test_what_a_peers_buffer_is_not_for(use: str, view: str) -> None:
    """Engines that reach their own block's SMEM alone would take another place for it: an error at the line."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((64, 64), kd.bfloat16),
        scratch_types=[
            kd.SMEM((64, 64), kd.bfloat16, transforms=tiles(kd.bfloat16)),
            kd.ACC((64, 64)),
            kd.Barrier(),
        ],
        cluster=(2,),
        cluster_names=("c",),
    )
    def kernel(x: Any, out: Any, tile: Any, acc: Any, ready: Any) -> None:
        peer = kd.cluster_ref(tile, {"c": 1})
        if view == "bitcast":
            peer = peer.bitcast(kd.int16).bitcast(kd.bfloat16)
        if use == "load":
            kd.copy_gmem_to_smem(x, peer, ready)
        elif use == "store":
            kd.copy_smem_to_gmem(peer, out)
        elif use == "async store":
            kd.async_store_smem(x[...], peer, ready, cluster_dim="c", cluster_idx=1)
        else:
            kd.wgmma(acc, *((peer, tile) if use == "wgmma a" else (tile, peer)))

    with pytest.raises(kd.Error, match="in another block's SMEM"):
        kernel.lower(kd.ShapeDtypeStruct((64, 64), kd.bfloat16))


@pytest.mark.parametrize("cluster_dim", ["c", ("c",), "d", 0])
@pytest.mark.parametrize("cluster_idx", [0, 0.5, "0", None, 2, "array"])
def test_where_asynchronous_stores_may_go(cluster_dim: Any, cluster_idx: Any) -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((32,), f32),
        scratch_types=[kd.SMEM((32,), f32), kd.Barrier()],
        cluster=(2,),
        cluster_names=("c",),
    )
    def kernel(out: Any, tile: Any, ready: Any) -> None:
        index = kd.arange(2) if cluster_idx == "array" else cluster_idx
        kd.async_store_smem(kd.zeros((32,), f32), tile, ready, cluster_dim=cluster_dim, cluster_idx=index)
        kd.barrier_wait(ready)
        out[...] = tile[...]

    if (cluster_dim, cluster_idx) == ("c", 0):
        kernel.lower()
        return
    with pytest.raises(kd.Error, match="async_store_smem"):
        kernel.lower()


@pytest.mark.cluster
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_one_number_goes_to_an_element_of_another_block(dtype: Any, interpret: Any) -> None:
    """Half a row's sum each: `sums.at[0]` is a Ref of rank 0."""

    @kd.kernel(
        out_type=lambda x: kd.ShapeDtypeStruct((x.shape[0],), x.dtype), grid=lambda x: (x.shape[0],), grid_names=("row",),
        cluster=(2,), cluster_names=("c",), scratch_types=[kd.SMEM((1,), kd.float32 if dtype is np.float32 else kd.int64), kd.Barrier()],
    )  # fmt: skip
    def kernel(x: Any, out: Any, sums: Any, ready: Any) -> None:
        row, me = kd.axis_index("row"), kd.axis_index("c")
        half = kd.sum(x[row, kd.ds(me * 32, 32)])
        kd.async_store_smem(half, sums.at[0], ready, cluster_dim="c", cluster_idx=1 - me)
        kd.barrier_wait(ready)
        kd.when(me == 0)(lambda: out.__setitem__(row, half + sums[0]))

    x = np.random.default_rng(0).integers(-9, 9, (3, 64)).astype(dtype)
    np.testing.assert_array_equal(kernel(x, interpret=interpret), x.sum(1))
