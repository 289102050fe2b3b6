"""Ordinary CUDA C++ as nvcc 13.0 compiles it, against NumPy."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from .launching import SCHEDULES, launch, load

BASICS = "cuda_basics.ptx"


@pytest.mark.parametrize("n", [1, 31, 1000, 4096])
def test_vector_add(rng, n):
    a, b = rng.standard_normal((2, n), np.float32)
    c = np.zeros(n, np.float32)
    launch(load(BASICS), "vecadd", [a, b, c, n], grid=-(-n // 256), block=256, outputs=(2,))
    np.testing.assert_array_equal(c, a + b)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_reduction_through_shared_memory_and_atomics(rng, schedule):
    a = rng.standard_normal(10000, np.float32)
    out = np.zeros(1, np.float32)
    launch(load(BASICS), "reduce", [a, out, a.size], grid=8, block=256, schedule=schedule, seed=3)
    assert abs(out[0] - a.sum(dtype=np.float64)) < 1e-3


def test_shuffle_reduction(rng):
    a = rng.standard_normal((16, 256), np.float32)
    out = np.zeros(16, np.float32)
    launch(load(BASICS), "shfl", [a, out, 0], grid=16, block=256, outputs=(1,))
    np.testing.assert_allclose(out, a.sum(1, dtype=np.float64), rtol=1e-4, atol=1e-5)


def test_transpose_through_shared_memory(rng):
    a = rng.standard_normal((96, 96), np.float32)
    out = np.zeros_like(a)
    launch(load(BASICS), "transpose", [a, out, 96], grid=(3, 3), block=(32, 8), outputs=(1,))
    np.testing.assert_array_equal(out, a.T)


def test_device_function_call_in_diverged_lanes():
    out = np.zeros(64, np.int32)
    launch(load(BASICS), "fk", [out], block=64, outputs=(0,))
    assert out.tolist() == [math.factorial(i % 10) for i in range(64)]


def test_switch_and_64_bit_division(rng):
    a = rng.integers(-10000, 10000, 1000).astype(np.int32)
    out = np.zeros(1000, np.int64)
    launch(load(BASICS), "sw", [a, out, 1000], grid=8, block=128, outputs=(1,))
    np.testing.assert_array_equal(out, [_switch(int(v)) for v in a])


def _switch(v: int) -> int:
    case = int(math.fmod(v, 9))
    truncated = int(abs(v) // 7) * (1 if v >= 0 else -1)
    divisor = v | 1
    quotient = (1000000007 * 1000) // abs(divisor) * (1 if divisor > 0 else -1)
    table = [v * 3, truncated, v * v % 1234567, v ^ 55, quotient, v << 3, v - 1, (v & 0xFFFFFFFF).bit_count()]
    return table[case] if 0 <= case < 8 else -1


def test_printf():
    report = launch(load(BASICS), "pr", [3], block=3)
    assert report.output == "".join(f"hello {i} 1.500000\n" for i in range(3))


def test_half_and_bfloat16(rng):
    h = rng.standard_normal(65).astype(np.float16)
    b = rng.standard_normal(65).astype(ml_dtypes.bfloat16)
    out = np.zeros(64, np.float32)
    launch(load(BASICS), "half_k", [h, b, out], block=64, outputs=(2,))
    x = h[:64].astype(np.float64)
    expected = (x * x + x).astype(np.float16).astype(np.float32) + (b[:64] + b[1:]).astype(np.float32)
    np.testing.assert_array_equal(out, expected)


def test_cooperative_groups():
    out = np.zeros(129, np.int32)
    launch(load(BASICS), "cgk", [out], block=128)
    assert out[0] == sum(range(128)) and (out[1:] == 32).all()
