"""CUDA C++'s matrix API, 128-bit integers and SIMD intrinsics, as nvcc 13.0 compiles them."""

from __future__ import annotations

import numpy as np
import pytest

from .launching import SCHEDULES, launch, load

PTX = "matrix_api.ptx"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_wmma_gemm(schedule):
    rng = np.random.default_rng(5)
    m, n, k = 48, 32, 64
    a = rng.standard_normal((m, k)).astype(np.float16)
    b = rng.standard_normal((n, k)).astype(np.float16)
    c = np.zeros((m, n), np.float32)
    launch(
        load(PTX), "wmma_gemm", [a, b, c, n, k], grid=(n // 16, m // 16), block=32, outputs=(2,),
        schedule=schedule,
    )  # fmt: skip
    want = 0.5 * (a.astype(np.float64) @ b.astype(np.float64).T)
    np.testing.assert_allclose(c, want, rtol=0, atol=1e-5)


def test_128_bit_arithmetic():
    rng = np.random.default_rng(6)
    x, y = rng.integers(0, 2**64, (2, 64, 2), np.uint64)
    y[::3, 1] = 2**64 - 1
    x[1::4] = y[1::4]
    product, difference = np.zeros_like(x), np.zeros_like(x)
    launch(load(PTX), "wide", [x, y, product, difference], grid=2, block=32, outputs=(2, 3))

    def whole(words):
        return [int(low) | int(high) << 64 for low, high in words]

    for a, b, p, d in zip(whole(x), whole(y), whole(product), whole(difference), strict=True):
        assert p == (a * b + a) % 2**128
        assert d == (a - b) % 2**128


def test_simd_intrinsics():
    rng = np.random.default_rng(7)
    x, y = rng.integers(0, 2**32, (2, 128), np.uint32)
    out = np.zeros((6, 128), np.uint32)
    launch(load(PTX), "packed", [x, y, out, 128], grid=1, block=128, outputs=(2,))
    bytes_x, bytes_y = (v.view(np.uint8).reshape(128, 4) for v in (x, y))
    difference = np.abs(bytes_x.astype(int) - bytes_y)
    np.testing.assert_array_equal(out[0], (bytes_x + bytes_y).view(np.uint32)[:, 0])
    np.testing.assert_array_equal(out[1], difference.sum(1))
    halves = np.maximum(x.view(np.int16), y.view(np.int16))
    np.testing.assert_array_equal(out[2], halves.view(np.uint32))
    np.testing.assert_array_equal(out[3], difference.astype(np.uint8).view(np.uint32)[:, 0])
    signed = (bytes_x.view(np.int8).astype(int) * bytes_y.view(np.int8)).sum(1) + np.arange(128)
    np.testing.assert_array_equal(out[4].view(np.int32), signed)
    np.testing.assert_array_equal(out[5], (x & 0xFFFF) | (y << 16))
