"""Asynchronous copies: boxes, edges, dynamic starts, bulk forms, groups, predicates, reductions, prefetches."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.interpreter.checks.hazards import HazardError

from .helpers import random, tiles

pytestmark = pytest.mark.tma

f32 = kd.float32

SHAPES = [
    ((256,), (64,)),
    ((8192,), (8192,)),
    ((64, 32), (16, 32)),
    ((6, 20, 32), (2, 20, 32)),
    ((3, 4, 8, 16), (1, 2, 8, 16)),
    ((2, 3, 4, 8, 16), (1, 3, 1, 8, 16)),
    ((512, 64), (300, 64)),
    ((512, 40), (300, 40)),
]


@pytest.mark.parametrize(("shape", "block"), SHAPES, ids=str)
@pytest.mark.parametrize("mode", list(kd.OOBFillMode), ids=lambda m: m.value)
@pytest.mark.sampled(28)
def test_blocks(shape: Any, block: Any, mode: Any, interpret: Any, rng: Any) -> None:
    """One to five dimensions, at dynamic starts: the block that NumPy slices."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct(block, kd.float32), scratch_types=[kd.SMEM(block, kd.float32), kd.Barrier()]
    )
    def kernel(start: Any, x: Any, out: Any, tile: Any, ready: Any) -> None:
        first = kd.multiple_of(start, block[0])
        kd.copy_gmem_to_smem(
            x.at[tuple([kd.ds(first, block[0])] + [kd.ds(0, n) for n in block[1:]])], tile, ready, oob_mode=mode
        )
        kd.barrier_wait(ready)
        out[...] = tile[...] + 1.0

    x = random(rng, shape, kd.float32)
    start = 0 if shape[0] < 2 * block[0] else block[0]
    expected = x[tuple([slice(start, start + block[0])] + [slice(0, n) for n in block[1:]])] + 1
    kernel.lower(0, x).compile()
    assert np.array_equal(kernel(start, x, interpret=interpret), expected)


@pytest.mark.parametrize("row", [-8, 0, 8])
def test_edges_are_zeros_and_are_dropped(row: int, interpret: Any, rng: Any) -> None:
    """A tile that leaves the array: loads on all sides, stores at the ends."""
    end = max(row, 0)

    @kd.kernel(
        out_type=[kd.ShapeDtypeStruct((64, 64), kd.bfloat16), kd.ShapeDtypeStruct((40, 72), kd.bfloat16, init=0)],
        scratch_types=[kd.SMEM((64, 64), kd.bfloat16, transforms=tiles(kd.bfloat16)), kd.Barrier()],
    )
    def kernel(x: Any, out: Any, back: Any, tile: Any, ready: Any) -> None:
        kd.copy_gmem_to_smem(x.at[kd.ds(row, 64), kd.ds(32, 64)], tile, ready)
        kd.barrier_wait(ready)
        out[...] = tile[...]
        kd.copy_smem_to_gmem(tile, back.at[kd.ds(end, 64), kd.ds(32, 64)])
        kd.wait_smem_to_gmem(0)

    x = random(rng, (40, 72), kd.bfloat16)
    out, back = kernel(x, interpret=interpret)
    expected = np.zeros((64, 64), x.dtype)
    expected[end - row : 40 - row, :40] = x[end:, 32:]
    kept = np.zeros((40, 72), x.dtype)
    kept[end:, 32:] = expected[: 40 - end, :40]
    assert np.array_equal(out, expected)
    assert np.array_equal(back, kept)


@pytest.mark.parametrize(("place", "words"), [
    (lambda x: x[:, ::2], "stride of 2 elements.*Pass a contiguous copy"),
    (lambda x: x[:, :64].T, "stride of 128 elements.*Pass a contiguous copy"),
    (lambda x: x[::-1, :64], "stride of -512 bytes.*Pass a contiguous copy"),
    (lambda x: np.ones((64, 65), np.float32)[:, :64], "stride of 260 bytes.*Pad the row"),
])  # fmt: skip
def test_arrays_that_tma_cannot_address_are_named(place: Any, words: str) -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((64, 64), f32), scratch_types=[kd.SMEM((64, 64), f32), kd.Barrier(num_arrivals=2)]
    )
    def kernel(first: Any, second: Any, out: Any, tile: Any, ready: Any) -> None:
        for ref in (first, second):
            kd.copy_gmem_to_smem(ref.at[:32], tile.at[:32], ready)
        kd.barrier_wait(ready)
        kd.copy_smem_to_gmem(tile, out)

    good = np.ones((64, 64), np.float32)
    with pytest.raises(ValueError, match=f"(?s)input 'second' of kernel 'kernel' .*test_copy.py.* TMA: .*{words}"):
        kernel(good, place(np.ones((64, 128), np.float32)), interpret=True)


def test_stores_at_negative_starts_are_hazards() -> None:
    """The GPU stops with an illegal instruction; where the start is known the trace says so (a golden error)."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((64, 32), kd.float32, init=0), scratch_types=[kd.SMEM((16, 32), kd.float32)]
    )
    def kernel(row: Any, out: Any, tile: Any) -> None:
        tile[...] = kd.zeros((16, 32), kd.float32)
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile, out.at[kd.ds(row, 16)])
        kd.wait_smem_to_gmem(0)

    kernel(56, interpret=True)
    with pytest.raises(HazardError, match="TMA store at coordinate -8"):
        kernel(-8, interpret=True)


@pytest.mark.parametrize("go", [True, False])
def test_predicates(go: bool, interpret: Any, rng: Any) -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((16, 32), kd.float32, init=0),
        scratch_types=[kd.SMEM((16, 32), kd.float32), kd.Barrier()],
    )
    def kernel(go: Any, x: Any, out: Any, tile: Any, ready: Any) -> None:
        kd.copy_gmem_to_smem(x, tile, ready, predicate=go)
        kd.when(go)(lambda: kd.barrier_wait(ready))
        kd.copy_smem_to_gmem(tile, out, predicate=go)
        kd.wait_smem_to_gmem(0)

    x = random(rng, (16, 32), kd.float32)
    assert np.array_equal(kernel(go, x, interpret=interpret), x if go else np.zeros_like(x))


def test_groups(interpret: Any, rng: Any) -> None:
    """Two groups, one buffer rewritten once its group was read."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((3, 16, 32), kd.float32), scratch_types=[kd.SMEM((2, 16, 32), kd.float32)])
    def kernel(x: Any, out: Any, tile: Any) -> None:
        for i in range(3):
            kd.wait_smem_to_gmem(1, wait_read_only=True)
            tile[i % 2] = x[i]
            kd.commit_smem()
            kd.copy_smem_to_gmem(tile.at[i % 2], out.at[i], commit_group=False)
            kd.commit_smem_to_gmem_group()
        kd.wait_smem_to_gmem(0)

    x = random(rng, (3, 16, 32), kd.float32)
    assert np.array_equal(kernel(x, interpret=interpret), x)


@pytest.mark.parametrize(
    ("word", "dtype"), [("add", kd.float32), ("add", kd.int32), ("add", kd.int64), ("max", kd.int32), ("or", kd.uint32)]
)
def test_reductions(word: str, dtype: Any, interpret: Any, rng: Any) -> None:
    """Two blocks combine into one array."""
    operation = {"add": np.add, "max": np.maximum, "or": np.bitwise_or}[word]

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((16, 32), dtype, init=0),
        grid=(2,),
        scratch_types=[kd.SMEM((16, 32), dtype)],
    )
    def kernel(x: Any, out: Any, tile: Any) -> None:
        tile[...] = x[kd.program_id(0)]
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile, out, reduction_op=word)
        kd.wait_smem_to_gmem(0)

    x = random(rng, (2, 16, 32), dtype)
    expected = operation(operation(np.zeros_like(x[0]), x[0]), x[1])
    assert np.allclose(kernel(x, interpret=interpret), expected)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("with_barrier", [True, False])
def test_cp_async(target: str, with_barrier: bool, interpret: Any, rng: Any) -> None:
    """The same names before Hopper, and copies without a barrier."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((40, 64), kd.bfloat16),
        scratch_types=[kd.SMEM((40, 64), kd.bfloat16, transforms=tiles(kd.bfloat16)), kd.Barrier()],
        compiler_params=kd.CompilerParams(target=target),
    )
    def kernel(x: Any, out: Any, tile: Any, ready: Any) -> None:
        kd.copy_gmem_to_smem(x.at[kd.ds(8, 40)], tile, ready if with_barrier else None)
        if with_barrier:
            kd.barrier_wait(ready)
        else:
            kd.wait_gmem_to_smem(0)
        out[...] = tile[...]

    x = random(rng, (40, 64), kd.bfloat16)
    kernel.lower(x, target=target).compile()
    expected = np.zeros_like(x)
    expected[:32] = x[8:]
    assert np.array_equal(kernel(x, interpret=interpret), expected)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [kd.int8, kd.bfloat16, f32], ids=str)
@pytest.mark.parametrize("strided", [False, True])
def test_small_pieces(target: str, dtype: Any, strided: bool, rng: Any) -> None:
    """What has no aligned pieces of 4 bytes, and arrays with gaps, go by lanes: an odd start, odd rows, the edge."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((8, 9), dtype),
        scratch_types=[kd.SMEM((8, 9), dtype), kd.Barrier()],
        compiler_params=kd.CompilerParams(target=target),
    )
    def kernel(i: Any, x: Any, out: Any, tile: Any, ready: Any) -> None:
        part = x.at[kd.ds(i, 8), kd.ds(i, 9)]
        if target == "sm_80":
            kd.copy_gmem_to_smem(part, tile, ready)
            kd.barrier_wait(ready)
        else:
            kd.copy_gmem_to_smem(part, tile)
            kd.wait_gmem_to_smem(0)
        out[...] = tile[...]

    x = random(rng, (22, 34), dtype)[:: 2 if strided else 1, :17][:11]
    kernel.lower(3, x, target=target).compile()
    expected = np.zeros((8, 9), dtype.numpy)
    expected[:, :9] = x[3:11, 3:12]
    assert np.array_equal(kernel(3, x, interpret=True), expected)


def test_small_pieces_wait_for_memory_together(rng: Any) -> None:
    """Pieces of less than 4 bytes go through registers; each store would wait for its load alone.

    The assembler puts loads behind earlier stores, except where a barrier of the warp is between, and nobody promised that
    the array is constant.
    """

    @kd.kernel(out_type=kd.ShapeDtypeStruct((64, 64), kd.bfloat16), scratch_types=[kd.SMEM((64, 64), kd.bfloat16)])
    def kernel(x: Any, out: Any, tile: Any) -> None:
        kd.copy_gmem_to_smem(x.at[:, kd.ds(1, 64)], tile)
        kd.wait_gmem_to_smem(0)
        out[...] = tile[...]

    x = random(rng, (64, 67), kd.bfloat16)
    words = kernel.lower(x, target="sm_90a").ptx.split()
    seen = [word for word in words if word.startswith(("ld.global", "st.shared", "bar.warp.sync"))]
    runs = [(kind, len(list(group))) for kind, group in groupby(seen)][:3]
    assert runs == [("ld.global.b16", 32), ("bar.warp.sync", 1), ("st.shared.b16", 32)]
    assert np.array_equal(kernel(x, interpret=True), x[:, 1:65])


def test_prefetch_and_hints_assemble() -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((64, 64), kd.float32), scratch_types=[kd.SMEM((64, 64), kd.float32), kd.Barrier()]
    )
    def kernel(x: Any, out: Any, tile: Any, ready: Any) -> None:
        kd.async_prefetch(x)
        kd.copy_gmem_to_smem(x, tile, ready, l2_hint="evict_first")
        kd.barrier_wait(ready)
        kd.copy_smem_to_gmem(tile, out, l2_hint="evict_last")
        kd.wait_smem_to_gmem(0)

    ptx = kernel.lower(kd.ShapeDtypeStruct((64, 64), kd.float32)).ptx
    assert "prefetch.tensor" in ptx and ptx.count("L2::cache_hint") == 2
    kernel.lower(kd.ShapeDtypeStruct((64, 64), kd.float32)).compile()


def test_in_bounds_blocks_go_in_bulk() -> None:
    def ptx(mode: Any) -> str:
        @kd.kernel(
            out_type=kd.ShapeDtypeStruct((256,), kd.float32),
            scratch_types=[kd.SMEM((256,), kd.float32), kd.Barrier()],
        )
        def kernel(x: Any, out: Any, tile: Any, ready: Any) -> None:
            kd.copy_gmem_to_smem(x, tile, ready, oob_mode=mode)
            kd.barrier_wait(ready)
            out[...] = tile[...]

        return kernel.lower(kd.ShapeDtypeStruct((256,), kd.float32)).ptx

    assert "cp.async.bulk.tensor" in ptx(kd.OOBFillMode.ZEROS)
    assert "cp.async.bulk.tensor" not in ptx(kd.OOBFillMode.PROMISE_IN_BOUNDS)
    assert "cp.async.bulk.shared::cluster" in ptx(kd.OOBFillMode.UNDEFINED)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [kd.int8, kd.bfloat16, f32], ids=str)
@pytest.mark.parametrize("length", [9, 10, 12, 13])
def test_no_piece_reaches_beyond_the_end(target: str, dtype: Any, length: int, interpret: Any, rng: Any) -> None:
    """An array that ends within 16 bytes: the rest of the block is zeros, and nothing beyond it is read."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((32,), dtype),
        scratch_types=[kd.SMEM((32,), dtype)],
        compiler_params=kd.CompilerParams(target=target),
    )
    def kernel(x: Any, out: Any, tile: Any) -> None:
        kd.copy_gmem_to_smem(x.at[kd.ds(0, 32)], tile)
        kd.wait_gmem_to_smem(0)
        out[...] = tile[...]

    x = random(rng, (length,), dtype)
    got = kernel(x, interpret=interpret)
    assert np.array_equal(got[:length], x) and not got[length:].any()


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [kd.float16, kd.bfloat16, f32, kd.float64], ids=str)
@pytest.mark.parametrize("with_barrier", [True, False])
def test_nans_beyond_the_edge(target: str, dtype: Any, with_barrier: bool, interpret: Any, rng: Any) -> None:
    """Whichever instruction copies."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((16, 64), dtype),
        scratch_types=[kd.SMEM((16, 64), dtype), kd.Barrier()],
        compiler_params=kd.CompilerParams(target=target),
    )
    def kernel(row: Any, x: Any, out: Any, tile: Any, ready: Any) -> None:
        block = x.at[kd.ds(row, 16)]
        kd.copy_gmem_to_smem(block, tile, ready if with_barrier else None, oob_mode=kd.OOBFillMode.NANS)
        if with_barrier:
            kd.barrier_wait(ready)
        else:
            kd.wait_gmem_to_smem(0)
        out[...] = tile[...]

    x = random(rng, (20, 64), dtype)
    got = kernel(11, x, interpret=interpret)
    assert np.array_equal(got[:9], x[11:]) and np.isnan(got[9:].astype(np.float64)).all()


@pytest.mark.parametrize("rows", [0, 20])
def test_copies_of_nothing(rows: int, interpret: Any, rng: Any) -> None:
    """No bytes: a copy still arrives, and its group still counts. An array without elements has only an outside."""

    @kd.kernel(
        out_type=[kd.ShapeDtypeStruct((16, 32), f32), kd.ShapeDtypeStruct((rows, 32), f32, init=3)],
        scratch_types=[kd.SMEM((16, 32), f32), kd.Barrier(2)],
    )
    def kernel(x: Any, out: Any, same: Any, tile: Any, ready: Any) -> None:
        kd.async_prefetch(x.at[0:0])
        kd.copy_gmem_to_smem(x.at[0:0], tile.at[0:0], ready)
        kd.copy_gmem_to_smem(x.at[kd.ds(rows, 16)], tile, ready)
        kd.barrier_wait(ready)
        kd.copy_smem_to_gmem(tile, same.at[kd.ds(rows, 16)])
        kd.copy_smem_to_gmem(tile.at[0:0], same.at[0:0])
        kd.wait_smem_to_gmem(0)
        out[...] = tile[...] + 1.0

    out, same = kernel(random(rng, (rows, 32), f32), interpret=interpret)
    assert (out == 1).all() and (same == 3).all()


@pytest.mark.parametrize("loaded", [True, False])
def test_an_elected_lane_copies_rows_whose_numbers_were_just_loaded(loaded: bool, interpret: Any, rng: Any) -> None:
    """Copies follow one another, each at a number of its own; without an election ptxas puts each into a loop."""

    @kd.kernel(
        out_type=lambda rows, x: kd.ShapeDtypeStruct((rows.shape[0] * 4, 64), f32),
        grid=lambda rows, x: (rows.shape[0],),
        scratch_types=[kd.SMEM((4, 64), f32), kd.Barrier(num_arrivals=2)],
    )
    def kernel(rows: Any, x: Any, out: Any, tile: Any, ready: Any) -> None:
        block = kd.program_id(0)
        for half in range(2):
            row = rows[block] + half * 2 if loaded else block * 4 + half * 2
            kd.copy_gmem_to_smem(x.at[kd.ds(row, 2)], tile.at[kd.ds(half * 2, 2)], ready, predicate=block >= 0)
        kd.barrier_wait(ready)
        out[kd.ds(block * 4, 4)] = tile[...]

    x = rng.standard_normal((50, 64)).astype(np.float32)
    rows = np.array([3, 46, 0, 17] if loaded else [0, 4, 8, 12], np.int32)
    expected = np.concatenate([x[row : row + 4] for row in rows])
    np.testing.assert_array_equal(kernel(rows, x, interpret=interpret), expected)
    assert ("elect.sync" in kernel.lower(rows, x, target="sm_90a").ptx) == loaded
