"""Gathers of rows: neighbours along a slice are loaded by one instruction where their index values are the same."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

Spec = kd.ShapeDtypeStruct
DEVICES = [pytest.param(True, id="interpreter"), pytest.param(False, id="cuda", marks=pytest.mark.gpu)]
f32, u8 = kd.float32, kd.uint8
ROWS = 32  # of a gather: a warpgroup has 4 lanes for each


def loads(kernel: Any, *args: Any) -> set[str]:
    """The loads of x and of the rows' numbers, which have 4 bytes each."""
    return set(re.findall(r"ld\.global\.nc\.((?:v\d\.)?b\d+)", kernel.lower(*args, target="sm_90a").ptx))


def expected(x: Any, rows: Any, columns: Any, fill: float | None) -> Any:
    """The elements; those beyond x, and of masked rows, are the fill."""
    padded = np.full((x.shape[0] + 1, x.shape[1] + 64), fill or 0, x.dtype)
    padded[:-1, : x.shape[1]] = x
    kept = np.where((rows >= 0) & (rows < x.shape[0]), rows, x.shape[0])
    made = padded[kept][:, columns]
    if fill is not None:
        made[29:] = fill
    return made


# dtype, columns of x, the first column, how many, elements of a lane, the width of the loads
CASES = [
    (f32, 64, 0, 64, 4, "v4.b32"),
    (f32, 64, 32, 32, 4, "v4.b32"),
    (f32, 64, 16, 32, 2, "v2.b32"),
    (f32, 66, 0, 32, 4, "v2.b32"),  # rows begin at multiples of 8 bytes
    (f32, 65, 0, 32, 4, "b32"),
    (f32, 64, 2, 32, 4, "v2.b32"),
    (f32, 64, 1, 32, 4, "b32"),
    (kd.bfloat16, 128, 0, 128, 8, "v4.b32"),
    (u8, 64, 0, 64, 16, "v4.b32"),
]


@pytest.mark.parametrize("fill", [None, 7.0], ids=str)
@pytest.mark.parametrize(("dtype", "size", "first", "width", "vector", "form"), CASES, ids=str)
@pytest.mark.parametrize("interpret", DEVICES)
def test_rows_are_loaded_by_vectors(
    dtype: Any, size: int, first: int, width: int, vector: int, form: str, fill: Any, interpret: bool, rng: Any
) -> None:
    x = rng.integers(0, 100, (50, size)).astype(dtype.numpy)
    rows = rng.permutation(50)[:ROWS].astype(np.int32)
    rows[[3, 17]] = 50, -1  # rows that do not exist
    options = {} if fill is None else {"fill": fill if dtype != u8 else 7}

    @kd.kernel(out_type=Spec((ROWS, width), dtype), num_threads=1, thread_name="wg")
    def kernel(x: Any, rows: Any, out: Any) -> None:
        layout = kd.Layout.WG_STRIDED((ROWS, width), vector)
        row = kd.layout_cast(kd.arange(ROWS), layout.reduce((1,), keepdims=False))
        mask = None if fill is None else (row < 29)[:, None]
        out[...] = kd.load(x, (kd.load(rows, (row,)), kd.ds(first, width)), layout=layout, mask=mask, **options)

    assert loads(kernel, x, rows) == {"b32", form}
    got = kernel(x, rows, interpret=interpret)
    np.testing.assert_array_equal(got, expected(x, rows, slice(first, first + width), fill))


@pytest.mark.parametrize("start", [0, 4, 40])
@pytest.mark.parametrize("interpret", DEVICES)
def test_a_slice_that_may_leave_the_array(start: int, interpret: bool, rng: Any) -> None:
    """Its end may cut through a vector, so elements are loaded one by one."""
    x, rows = rng.integers(0, 100, (50, 62)).astype(np.float32), rng.permutation(50)[:ROWS].astype(np.int32)

    @kd.kernel(out_type=Spec((ROWS, 32), f32), num_threads=1, thread_name="wg")
    def kernel(x: Any, rows: Any, start: Any, out: Any) -> None:
        layout = kd.Layout.WG_STRIDED((ROWS, 32), 4)
        row = kd.layout_cast(kd.arange(ROWS), layout.reduce((1,), keepdims=False))
        out[...] = kd.load(x, (kd.load(rows, (row,)), kd.ds(start[0], 32)), layout=layout)

    args = x, rows, np.array([start], np.int32)
    assert loads(kernel, *args) == {"b32"}
    np.testing.assert_array_equal(kernel(*args, interpret=interpret), expected(x, rows, slice(start, start + 32), None))


@pytest.mark.parametrize("interpret", DEVICES)
def test_elements_of_other_rows_are_loaded_one_by_one(interpret: bool, rng: Any) -> None:
    """The index values differ along the slice's neighbours: here they have the result's shape."""
    x, rows = rng.integers(0, 100, (50, 64)).astype(np.float32), rng.integers(0, 50, (ROWS, 64)).astype(np.int32)

    @kd.kernel(out_type=Spec((ROWS, 64), f32), num_threads=1, thread_name="wg")
    def kernel(x: Any, rows: Any, out: Any) -> None:
        layout = kd.Layout.WG_STRIDED((ROWS, 64), 4)
        column = kd.layout_cast(kd.broadcasted_iota(kd.int32, (ROWS, 64), 1), layout)
        out[...] = kd.load(x, (kd.load(rows, layout=layout), column))

    assert "v4.b32" in loads(kernel, x, rows)  # of the numbers
    np.testing.assert_array_equal(kernel(x, rows, interpret=interpret), x[rows, np.arange(64)])
