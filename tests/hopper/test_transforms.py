"""Transformed SMEM Refs, read and written through registers at any index, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

from .helpers import random, tiles

pytestmark = pytest.mark.tma


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", [kd.float32, kd.bfloat16, kd.int8], ids=str)
def test_copy_in_and_out_is_the_identity(dtype: Any, swizzle: int, rng: Any) -> None:
    """TMA, a load and a store through registers, and TMA agree on where elements lie."""
    columns = 2 * swizzle // dtype.itemsize

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((32, columns), dtype),
        scratch_types=[kd.SMEM((32, columns), dtype, transforms=tiles(dtype, swizzle))] * 2 + [kd.Barrier()],
    )
    def kernel(x: Any, out: Any, one: Any, two: Any, ready: Any) -> None:
        kd.copy_gmem_to_smem(x, one, ready)
        kd.barrier_wait(ready)
        two[...] = one[...]
        kd.commit_smem()
        kd.copy_smem_to_gmem(two, out)
        kd.wait_smem_to_gmem(0)

    x = random(rng, (32, columns), dtype)
    assert np.array_equal(kernel(x, interpret=True), x)


@pytest.mark.parametrize("start", [0, 1, 3, 8, 13])
@pytest.mark.parametrize("column", [0, 1, 5, 32, 37])
def test_unaligned_dynamic_starts(start: int, column: int, rng: Any) -> None:
    """A slice at a start that only the launch knows, against the same slice in NumPy."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((16, 24), kd.float32),
        scratch_types=[kd.SMEM((32, 64), kd.float32, transforms=tiles(kd.float32)), kd.Barrier()],
    )
    def kernel(i: Any, j: Any, x: Any, out: Any, tile: Any, ready: Any) -> None:
        kd.copy_gmem_to_smem(x, tile, ready)
        kd.barrier_wait(ready)
        out[...] = tile[kd.ds(i, 16), kd.ds(j, 24)]

    x = random(rng, (32, 64), kd.float32)
    assert np.array_equal(kernel(start, column, x, interpret=True), x[start : start + 16, column : column + 24])


@pytest.mark.parametrize("dtype", [kd.float16, kd.float32, kd.uint8], ids=str)
def test_views(dtype: Any, rng: Any) -> None:
    """Transposes, single rows and columns, strides, and leading axes with a dynamic index."""
    columns = 128 // dtype.itemsize

    @kd.kernel(
        out_type=[
            kd.ShapeDtypeStruct((columns, 16), dtype),
            kd.ShapeDtypeStruct((columns,), dtype),
            kd.ShapeDtypeStruct((16,), dtype),
            kd.ShapeDtypeStruct((8, columns // 2), dtype),
        ],
        scratch_types=[kd.SMEM((2, 16, columns), dtype, transforms=tiles(dtype))],
    )
    def kernel(i: Any, x: Any, t: Any, row: Any, column: Any, strided: Any, tile: Any) -> None:
        tile[...] = x[...]
        t[...] = tile.at[i].T[...]
        row[...] = tile[i, 5]
        column[...] = tile[i, :, 3]
        strided[...] = tile[1, ::2, ::2]

    x = random(rng, (2, 16, columns), dtype)
    t, row, column, strided = kernel(1, x, interpret=True)
    assert np.array_equal(t, x[1].T) and np.array_equal(row, x[1, 5])
    assert np.array_equal(column, x[1, :, 3]) and np.array_equal(strided, x[1, ::2, ::2])


def test_a_store_at_an_unaligned_place(rng: Any) -> None:
    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((16, 64), kd.bfloat16),
        scratch_types=[kd.SMEM((16, 64), kd.bfloat16, transforms=tiles(kd.bfloat16))],
    )
    def kernel(i: Any, j: Any, x: Any, y: Any, out: Any, tile: Any) -> None:
        tile[...] = x[...]
        tile[kd.ds(i, 5), kd.ds(j, 7)] = y[...]
        out[...] = tile[...]

    x, y = random(rng, (16, 64), kd.bfloat16), random(rng, (5, 7), kd.bfloat16)
    expected = x.copy()
    expected[3:8, 9:16] = y
    assert np.array_equal(kernel(3, 9, x, y, interpret=True), expected)


def test_find_swizzle() -> None:
    assert [kd.find_swizzle(n * 8) for n in (128, 256, 64, 192, 96, 16)] == [128, 128, 64, 64, 32, 16]
    with pytest.raises(kd.Error):
        kd.find_swizzle(24)


def test_gather_scatter_and_atomics(rng: Any) -> None:
    """Elements picked by index arrays lie where the transforms put them."""

    @kd.kernel(
        out_type=[
            kd.ShapeDtypeStruct((5, 64), kd.float32),
            kd.ShapeDtypeStruct((16,), kd.float32),
            kd.ShapeDtypeStruct((16, 64), kd.float32),
        ],
        scratch_types=[kd.SMEM((16, 64), kd.float32, transforms=tiles(kd.float32))],
    )
    def kernel(rows: Any, columns: Any, x: Any, picked: Any, points: Any, out: Any, tile: Any) -> None:
        tile[...] = x[...]
        picked[...] = tile[rows[...]]
        points[...] = tile[kd.arange(16), columns[...]]
        tile[rows[...], :] = kd.zeros((5, 64), kd.float32)
        kd.atomic_add(tile.at[kd.arange(16), columns[...]], 1.0)
        out[...] = tile[...]

    x = random(rng, (16, 64), kd.float32)
    rows, columns = np.array([3, 7, 1, 0, 12], np.int32), (np.arange(16) * 3 + 5).astype(np.int32)
    picked, points, out = kernel(rows, columns, x, interpret=True)
    expected = x.copy()
    expected[rows] = 0
    expected[np.arange(16), columns] += 1
    assert np.array_equal(picked, x[rows]) and np.array_equal(points, x[np.arange(16), columns])
    assert np.array_equal(out, expected)


def test_bitcasts(rng: Any) -> None:
    @kd.kernel(
        out_type=[kd.ShapeDtypeStruct((16, 64), kd.int32), kd.ShapeDtypeStruct((16, 128), kd.int16)],
        scratch_types=[kd.SMEM((16, 64), kd.float32, transforms=tiles(kd.float32))],
    )
    def kernel(x: Any, same: Any, narrow: Any, tile: Any) -> None:
        tile[...] = x[...]
        same[...] = tile.bitcast(kd.int32)[...]
        narrow[...] = tile.bitcast(kd.int16)[...]

    x = random(rng, (16, 64), kd.float32)
    same, narrow = kernel(x, interpret=True)
    assert np.array_equal(same, x.view(np.int32)) and np.array_equal(narrow, x.view(np.int16))


def test_a_bitcast_before_transforms_are_inferred() -> None:
    """The other name would not know of them: refused, never wrong."""

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((64, 64), kd.float32),
        scratch_types=[kd.SMEM((64, 64), kd.bfloat16), kd.ACC((64, 64))],
    )
    def kernel(out: Any, tile: Any, acc: Any) -> None:
        tile.bitcast(kd.int16)
        kd.wgmma(acc, tile, tile)
        out[...] = acc[...]

    with pytest.raises(kd.Error, match="two different layouts"):
        kernel.lower()
