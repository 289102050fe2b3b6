"""Copies whose innermost start TMA can't take, and copies that end with a view: values, instructions, notes, errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

from .helpers import assemble, random, tiles

pytestmark = pytest.mark.tma

f32, bf16, u8 = kd.float32, kd.bfloat16, kd.uint8
Spec = kd.ShapeDtypeStruct


def counts(ptx: str) -> tuple[int, int, int]:
    """(tensor copies, cp.async, proxy fences) in a kernel's PTX."""
    return tuple(len(re.findall(p, ptx)) for p in (r"bulk\.tensor", r"cp\.async\.c[ag]\.", r"fence\.proxy\.async"))  # type: ignore[return-value]


def padded(x: np.ndarray, start: int, size: int) -> np.ndarray:
    """Columns from `start` on, zeros beyond the array."""
    wide = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(64, 400)])
    return wide[..., 64 + start : 64 + start + size]


def halo(
    dtype: Any, size: int, *, static: int | None = None, factor: int = 1, transforms: Any = (), **options: Any
) -> Any:
    """A kernel that loads `size` columns from a start, and stores them plus nothing."""

    def body(x: Any, at: Any, out: Any, tile: Any, ready: Any) -> None:
        start = static if static is not None else kd.multiple_of(at, factor)
        kd.copy_gmem_to_smem(x.at[kd.ds(0, 8), kd.ds(start, size)], tile, ready)
        kd.barrier_wait(ready)
        out[...] = tile[...]

    scratch = [kd.SMEM((8, size), dtype, transforms=transforms), kd.Barrier()]
    return kd.kernel(body, out_type=Spec((8, size), dtype), scratch_types=scratch, **options)


@pytest.mark.parametrize("start", [0, 1, 3, 4, 8, 60, 124, 127, -1, -4])
@pytest.mark.parametrize("dtype", [f32, bf16, u8, kd.float64], ids=str)
@pytest.mark.sampled(14)
def test_any_start(dtype: Any, start: int, interpret: Any, rng: Any) -> None:
    """Known while tracing, and at run time only; inside of the array, across its ends."""
    x = random(rng, (8, 128), dtype)
    want = padded(x, start, 64)
    traced, fixed = halo(dtype, 64), halo(dtype, 64, static=start)
    assert np.array_equal(traced(x, start, interpret=interpret), want)
    assert np.array_equal(fixed(x, start, interpret=interpret), want)
    tensor = start * dtype.itemsize % 16 == 0
    assert (counts(fixed.lower(x, start).ptx)[0] > 0) == tensor
    assert len(fixed.lower(x, start).notes) == (not tensor)


def test_what_is_promised_needs_no_test() -> None:
    x = np.zeros((8, 128), np.float32)
    tested, promised = halo(f32, 64).lower(x, 0), halo(f32, 64, factor=4).lower(x, 0)
    # the lanes' copies are read by lanes, but a tensor copy may come next: they are fenced
    assert counts(tested.ptx) == (1, 4, 1) and counts(promised.ptx) == (1, 0, 0)
    (note,) = tested.notes
    assert "kd.multiple_of(start, 4)" in str(note) and "test at run time" in str(note) and not promised.notes
    never = halo(f32, 64, static=1).lower(x, 0)
    assert counts(never.ptx) == (0, 4, 0) and "the lanes copy it" in str(never.notes[0])
    assemble(halo(f32, 64), x, 0)


def test_pieces_are_as_wide_as_both_sides_allow() -> None:
    """By cp.async of 8 or 4 bytes, else by loads and stores."""
    x = np.zeros((8, 128), np.uint8)
    sizes = [
        set(re.findall(r"cp\.async\.c[ag]\.shared\.global [^;]*, (\d+)", halo(u8, 64, static=s).lower(x, 0).ptx))
        for s in (8, 4, 5)
    ]
    assert sizes == [{"8"}, {"4"}, set()]


@pytest.mark.parametrize("start", [0, 1, 4, 7])
@pytest.mark.parametrize("swizzle", [0, 128])
@pytest.mark.parametrize("use", ["store", "wgmma"])
def test_the_async_proxy_sees_what_lanes_copied(use: str, swizzle: int, start: int, interpret: Any, rng: Any) -> None:
    """The tile is read by a bulk copy or by wgmma: the fence of the lanes' copy is made for it."""
    transforms = tiles(bf16) if swizzle or use == "wgmma" else ()

    def body(x: Any, at: Any, out: Any, tile: Any, ready: Any, acc: Any) -> None:
        kd.copy_gmem_to_smem(x.at[:, kd.ds(at, 64)], tile, ready)
        kd.barrier_wait(ready)
        if use == "store":
            kd.copy_smem_to_gmem(tile, out)
        else:
            kd.wgmma(acc, tile, tile.T)
            out[...] = acc[...].astype(bf16)

    scratch = [kd.SMEM((64, 64), bf16, transforms=transforms), kd.Barrier(), kd.ACC((64, 64))]
    kernel = kd.kernel(body, out_type=Spec((64, 64), bf16), scratch_types=scratch)
    x = np.asarray(rng.integers(-2, 3, (64, 128))).astype(bf16.numpy)
    part = x[:, start : start + 64].astype(np.float32)
    want = part if use == "store" else (part @ part.T).astype(bf16.numpy).astype(np.float32)
    assert np.array_equal(kernel(x, start, interpret=interpret).astype(np.float32), want)


def test_arrivals_stay_as_they_are(interpret: Any, rng: Any) -> None:
    """Two copies and a warpgroup arrive on one barrier, over and over; which of the copies TMA does changes each time."""

    @kd.kernel(
        out_type=Spec((6, 2, 4, 32), f32),
        num_threads=2,
        thread_name="wg",
        scratch_types=[kd.SMEM((2, 4, 32), f32), kd.Barrier(num_arrivals=3), kd.Barrier()],
    )
    def kernel(x: Any, n: Any, out: Any, tiles: Any, full: Any, empty: Any) -> None:
        @kd.when(kd.axis_index("wg") == 1)
        def _() -> None:
            @kd.loop(0, 6)
            def _(i: Any) -> None:
                kd.when(i > 0)(lambda: kd.barrier_wait(empty))
                for t in range(2):
                    start = i * n + 2 * t
                    kd.copy_gmem_to_smem(x.at[:, kd.ds(start, 32)], tiles.at[t], full)
                kd.barrier_arrive(full)

        @kd.when(kd.axis_index("wg") == 0)
        def _() -> None:
            @kd.loop(0, 6)
            def _(i: Any) -> None:
                kd.barrier_wait(full)
                out[i] = tiles[...]
                kd.barrier_arrive(empty)

    x = random(rng, (4, 64), f32)
    want = np.stack([[padded(x, 3 * i + 2 * t, 32) for t in range(2)] for i in range(6)])
    assert np.array_equal(kernel(x, 3, interpret=interpret), want)


@pytest.mark.parametrize("start", [1, 4])
def test_one_warp_copies_for_all(start: int, interpret: Any, rng: Any) -> None:
    @kd.kernel(out_type=Spec((8, 64), f32), scratch_types=[kd.SMEM((8, 64), f32), kd.Barrier()])
    def kernel(x: Any, at: Any, out: Any, tile: Any, ready: Any) -> None:
        @kd.warp_map
        def _(warp: Any) -> None:
            kd.when(warp == 2)(lambda: kd.copy_gmem_to_smem(x.at[:, kd.ds(at, 64)], tile, ready))

        kd.barrier_wait(ready)
        out[...] = tile[...]

    x = random(rng, (8, 128), f32)
    assert np.array_equal(kernel(x, start, interpret=interpret), x[:, start : start + 64])


@pytest.mark.parametrize("go", [False, True])
@pytest.mark.parametrize("start", [1, 4])
def test_predicates(start: int, go: bool, interpret: Any, rng: Any) -> None:
    """With a false one nothing is copied, nothing arrives and there is no group."""

    @kd.kernel(out_type=Spec((8, 128), f32, init=0), scratch_types=[kd.SMEM((8, 64), f32), kd.Barrier()])
    def kernel(x: Any, at: Any, go: Any, out: Any, tile: Any, ready: Any) -> None:
        kd.copy_gmem_to_smem(x.at[:, kd.ds(at, 64)], tile, ready, predicate=go)
        kd.when(go)(lambda: kd.barrier_wait(ready))
        kd.copy_smem_to_gmem(tile, out.at[:, kd.ds(at, 64)], predicate=go)
        kd.wait_smem_to_gmem(0)

    x, want = random(rng, (8, 128), f32), np.zeros((8, 128), np.float32)
    want[:, start : start + 64] = x[:, start : start + 64] * go
    assert np.array_equal(kernel(x, start, go, interpret=interpret), want)


@pytest.mark.parametrize("start", [0, 1, 3, 8, 90, 127, 128])
@pytest.mark.parametrize("dtype", [f32, bf16, u8], ids=str)
@pytest.mark.sampled(10)
def test_stores(dtype: Any, start: int, interpret: Any, rng: Any) -> None:
    """At any start, twice into one buffer behind a wait; elements beyond the end are dropped."""

    def make(static: bool) -> Any:
        def body(x: Any, at: Any, out: Any, tile: Any) -> None:
            for row in range(2):
                kd.wait_smem_to_gmem(0, wait_read_only=True)
                tile[...] = x[row]
                kd.commit_smem()
                kd.copy_smem_to_gmem(tile, out.at[row, :, kd.ds(start if static else at, 64)])
            kd.wait_smem_to_gmem(0)

        out = Spec((2, 8, 128), dtype, init=0)
        return kd.kernel(body, out_type=out, scratch_types=[kd.SMEM((8, 64), dtype)])

    x, want = random(rng, (2, 8, 64), dtype), np.zeros((2, 8, 128), dtype.numpy)
    want[..., start : start + 64] = x[..., : 128 - start]
    for static in (False, True):
        kernel = make(static)
        assert np.array_equal(kernel(x, start, interpret=interpret), want)
        tensor = not static or start * dtype.itemsize % 16 == 0
        assert (counts(kernel.lower(x, start).ptx)[0] > 0) == tensor


def test_lanes_store_what_a_tensor_copy_loads_next(interpret: Any, rng: Any) -> None:
    """Out at an odd start, and in again: the stores of the lanes are fenced for the async proxy."""

    @kd.kernel(
        out_type=(Spec((8, 64), f32), Spec((8, 128), f32, init=0)), scratch_types=[kd.SMEM((8, 64), f32), kd.Barrier()]
    )
    def kernel(x: Any, out: Any, far: Any, tile: Any, ready: Any) -> None:
        tile[...] = x[...]
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile, far.at[:, 1:65])
        kd.wait_smem_to_gmem(0)
        kd.copy_gmem_to_smem(far.at[:, :64], tile, ready)
        kd.barrier_wait(ready)
        out[...] = tile[...]

    x = random(rng, (8, 64), f32)
    out, far = kernel(x, interpret=interpret)
    assert np.array_equal(far, np.pad(x, [(0, 0), (1, 63)])) and np.array_equal(out, far[:, :64])
    assert "fence.proxy.async;" in kernel.lower(x).ptx


@pytest.mark.parametrize(
    ("rows", "columns"), [((0, 16), (0, 128)), ((3, 13), (8, 100)), ((1, 9), (1, 77)), ((2, 12), (5, 128))]
)
@pytest.mark.parametrize("start", [(0, 0), (-2, -4), (5, 60), (9, 3), (30, 200)], ids=str)
def test_loads_end_with_the_view(rows: Any, columns: Any, start: Any, interpret: Any, rng: Any) -> None:
    """The tensor is the part of the array that the view is of; what TMA can't begin at is the lanes' again."""

    @kd.kernel(out_type=Spec((8, 64), f32), scratch_types=[kd.SMEM((8, 64), f32), kd.Barrier()])
    def kernel(x: Any, row: Any, column: Any, out: Any, tile: Any, ready: Any) -> None:
        view = x.at[slice(*rows), slice(*columns)]
        kd.copy_gmem_to_smem(view.at[kd.ds(row, 8), kd.ds(column, 64)], tile, ready)
        kd.barrier_wait(ready)
        out[...] = tile[...]

    x = random(rng, (16, 128), f32)
    part = np.pad(x[slice(*rows), slice(*columns)], [(8, 40), (64, 300)])
    want = part[8 + start[0] : 16 + start[0], 64 + start[1] : 128 + start[1]]
    assert np.array_equal(kernel(x, *start, interpret=interpret), want)


@pytest.mark.parametrize("start", [(0, 0), (3, 16), (6, 3), (20, 90)], ids=str)
@pytest.mark.parametrize("columns", [(0, 100), (8, 100), (5, 77)], ids=str)
def test_stores_end_with_the_view(columns: Any, start: Any, interpret: Any, rng: Any) -> None:
    @kd.kernel(out_type=Spec((16, 128), f32, init=0), scratch_types=[kd.SMEM((8, 64), f32)])
    def kernel(x: Any, row: Any, column: Any, out: Any, tile: Any) -> None:
        tile[...] = x[...]
        kd.commit_smem()
        view = out.at[2:13, slice(*columns)]
        kd.copy_smem_to_gmem(tile, view.at[kd.ds(row, 8), kd.ds(column, 64)])

    x, want = random(rng, (8, 64), f32), np.zeros((16, 128), np.float32)
    part = want[2:13, slice(*columns)]
    place = part[start[0] : start[0] + 8, start[1] : start[1] + 64]
    place[...] = x[: place.shape[0], : place.shape[1]]
    assert np.array_equal(kernel(x, *start, interpret=interpret), want)


@pytest.mark.parametrize(("dtype", "size"), [(f32, 24), (bf16, 48), (u8, 96), (kd.float64, 12)], ids=str)
@pytest.mark.parametrize("over", [1, 2, 3, 7])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.sampled(6)
def test_stores_end_within_16_bytes(dtype: Any, size: int, over: int, known: bool, interpret: Any, rng: Any) -> None:
    """TMA drops whole units of 16 bytes: a store that reaches past such an end is the lanes'."""
    unit = 16 // dtype.itemsize
    end = 2 * unit + size - over

    def body(x: Any, at: Any, out: Any, tile: Any) -> None:
        tile[...] = x[...]
        kd.commit_smem()
        start = 2 * unit if known else kd.multiple_of(at, unit)
        kd.copy_smem_to_gmem(tile, out.at[:, 0:end].at[:, kd.ds(start, size)])
        kd.wait_smem_to_gmem(0)

    out = Spec((4, 8 * size), dtype, init=0)
    kernel = kd.kernel(body, out_type=out, scratch_types=[kd.SMEM((4, size), dtype)])
    x = random(rng, (4, size), dtype)
    want = np.zeros((4, 8 * size), x.dtype)
    want[:, 2 * unit : end] = x[:, : end - 2 * unit]
    assert np.array_equal(kernel(x, 2 * unit, interpret=interpret), want)
    stages = kernel.lower(x, 2 * unit)
    assert (len(stages.notes) == 1) == (end % unit != 0)
    assert (counts(stages.ptx)[0] == 0) == (known and end % unit != 0)


@pytest.mark.parametrize("length", [61, 62, 64])
def test_a_vector_ends_anywhere(length: int, interpret: Any, rng: Any) -> None:
    """What lies behind a vector in memory stays as it is."""

    def body(x: Any, out: Any, tile: Any) -> None:
        tile[...] = x[...]
        kd.commit_smem()
        kd.copy_smem_to_gmem(tile, out.at[kd.ds(0, 64)])
        kd.wait_smem_to_gmem(0)

    kernel = kd.kernel(body, out_type=Spec((length,), f32), scratch_types=[kd.SMEM((64,), f32)])
    x, memory = random(rng, (64,), f32), np.full(64, 7, np.float32)
    kernel(x, out=memory[:length], interpret=interpret)
    assert np.array_equal(memory[:length], x[:length]) and (memory[length:] == 7).all()


def test_a_reduction_ends_with_whole_16_bytes() -> None:
    def body(x: Any, out: Any, tile: Any) -> None:
        tile[...] = x[...]
        kd.copy_smem_to_gmem(tile, out.at[:, 0:61].at[:, kd.ds(0, 64)], reduction_op="add")

    kernel = kd.kernel(body, out_type=Spec((4, 128), f32, init=0), scratch_types=[kd.SMEM((4, 64), f32)])
    with pytest.raises(kd.Error, match="TMA writes whole 16 bytes"):
        kernel.lower(np.zeros((4, 64), np.float32), target="sm_90a")


def test_rows_of_many_elements_are_cut_at_16_bytes(interpret: Any, rng: Any) -> None:
    """A row of 272 bytes is 256 and 16, not twice 136."""

    @kd.kernel(out_type=Spec((4, 272), u8), scratch_types=[kd.SMEM((1, 272), u8), kd.Barrier()])
    def kernel(x: Any, out: Any, tile: Any, ready: Any) -> None:
        for row in range(4):
            kd.copy_gmem_to_smem(x.at[row : row + 1, 16:288], tile, ready)
            kd.barrier_wait(ready)
            out[row] = tile[0]

    x = random(rng, (4, 304), u8)
    assert np.array_equal(kernel(x, interpret=interpret), x[:, 16:288])


def test_starts_far_beyond_any_array(interpret: Any, rng: Any) -> None:
    """A 64-bit start is not cut to the 32 bits of a coordinate: what lies far outside stays outside."""

    @kd.kernel(out_type=Spec((2, 8, 32), f32), scratch_types=[kd.SMEM((8, 32), f32), kd.Barrier()])
    def kernel(x: Any, far: Any, out: Any, tile: Any, ready: Any) -> None:
        for n in range(2):
            row = far * 8 if n else kd.multiple_of(far.astype(kd.int64) << 29, 8)
            kd.copy_gmem_to_smem(x.at[kd.ds(row, 8)], tile, ready)
            kd.barrier_wait(ready)
            out[n] = tile[...]

    x = random(rng, (64, 32), f32)
    for far, first in ((1 << 29, 0), (8, 0), (-(1 << 29), 0), (0, 8)):
        got = kernel(x, np.int32(far), interpret=interpret)
        for n, row in enumerate(((far << 29), far * 8)):
            want = np.pad(x, [(0, 64), (0, 0)])[row : row + 8] if 0 <= row < 64 else np.zeros((8, 32), np.float32)
            assert np.array_equal(got[n], want), (far, n, first)


def test_coordinates_have_31_bits() -> None:
    def kernel(index: Any) -> Any:
        def body(x: Any, i: Any, out: Any, tile: Any, ready: Any) -> None:
            kd.copy_gmem_to_smem(x.at[kd.ds(kd.multiple_of(index(i), 128), 128)], tile, ready)
            kd.barrier_wait(ready)
            out[...] = tile[...]

        made = kd.kernel(body, out_type=Spec((128,), u8), scratch_types=[kd.SMEM((128,), u8), kd.Barrier()])
        return made.lower(Spec((3 * 2**30,), u8), kd.int32(0)).ptx

    assert "bulk.tensor" in kernel(lambda i: i)
    with pytest.raises(kd.Error, match=r"may start beyond 2\*\*31"):
        kernel(lambda i: i.astype(kd.int64) * 128)


@pytest.mark.parametrize("start", [0, 1, 8, 100])
def test_prefetches_start_anywhere(start: int, interpret: Any, rng: Any) -> None:
    @kd.kernel(out_type=Spec((8, 128), bf16))
    def kernel(x: Any, at: Any, out: Any) -> None:
        kd.async_prefetch(x.at[2:5, 8:100].at[:, kd.ds(at, 20)])
        kd.async_prefetch(x.at[kd.ds(at, 3), kd.ds(3, 7)])
        out[...] = x[...]

    x = random(rng, (8, 128), bf16)
    assert np.array_equal(kernel(x, start, interpret=interpret), x)
    assemble(kernel, x, start)
