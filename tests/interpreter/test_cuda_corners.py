"""Corners of CUDA C++: structs by value, virtual calls, barrier reductions, flags between blocks, early exits."""

from __future__ import annotations

import numpy as np
import pytest

from .launching import SCHEDULES, launch, load

FILE = "cuda_corners.ptx"
A = np.random.default_rng(8).integers(0, 999, 128).astype(np.int32)


def go(entry, args, **options):
    return launch(load(FILE), entry, args, **options)


def test_structs_by_value_through_calls():
    out = np.zeros(64, np.float32)
    go("structcall", [out], block=64, outputs=(0,))

    def make(p, s):
        return p[0] * s, p[1] + s, p[2] - s, [p[3][i] * 2 + i for i in range(3)]

    for t in range(64):
        p = (t, 1, 2, [1, 2, t])
        p = make(make(p, 0.5) if t & 1 else p, 2)
        assert out[t] == np.float32(p[0] + p[1] + p[2] + sum(p[3]))


def test_barrier_reductions():
    out = np.zeros(128, np.int32)
    go("syncred", [A, out], block=128, outputs=(1,))
    assert (out == (A & 1).sum() * 10 + 2 + int((A == 7).any())).all()


def test_virtual_calls():
    out = np.zeros(64, np.int32)
    go("virt", [out], block=64, outputs=(0,))
    assert out.tolist() == [5 * t if t % 3 else 6 for t in range(64)]


def test_vectors_of_bytes():
    x = np.random.default_rng(9).integers(-128, 128, (64, 4)).astype(np.int8)
    wide, bytes_ = np.zeros((64, 4), np.int16), np.zeros((64, 4), np.uint8)
    go("charvec", [x, wide, bytes_], block=64, outputs=(1, 2))
    y = x.astype(np.int32)
    np.testing.assert_array_equal(
        wide, np.stack([y[:, 0] * y[:, 1], y[:, 2] - y[:, 3], y[:, 0] | y[:, 3], ~y[:, 1]], 1)
    )
    expected = np.stack([y[:, 0], y[:, 1], y[:, 2] + 1, y[:, 3] << 1], 1).astype(np.uint8)
    np.testing.assert_array_equal(bytes_, expected)


def test_three_dimensional_blocks_and_grids():
    out = np.zeros(96, np.int32)
    go("block3d", [out], grid=(2, 2, 2), block=(3, 2, 2), outputs=(0,))
    expected = [b * 1000 + x + 10 * y + 100 * z for b in range(8) for z in range(2) for y in range(2) for x in range(3)]
    assert out.tolist() == expected


def test_recursion_with_arrays_in_local_memory():
    out = np.zeros(32, np.int32)
    go("deepk", [out], block=32, outputs=(0,))

    def deep(n, acc):
        local = [n, n + 1, n + 2, n + 3]
        acc[n & 3] += local[(n * 7) & 3]
        return acc[0] if n == 0 else deep(n - 1, local) + acc[n & 3]

    assert out.tolist() == [deep(t % 6, [1, 2, 3, 4]) for t in range(32)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_flag_between_blocks_with_fences(schedule):
    """Each thread fences, the block meets at a barrier, one raises the flag: no race."""
    data, flag, out = np.zeros(64, np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)
    go("fenceflag", [data, flag, out], grid=2, block=64, outputs=(0, 2), schedule=schedule)
    np.testing.assert_array_equal(out, np.arange(64) * 3)


def test_lanes_that_left_early():
    out = np.zeros(100, np.int32)
    go("early", [A[:100].copy(), out, 100], grid=2, block=64, outputs=(1,))
    assert out[99] == A[96:100].sum() and out[0] == A[:32].sum()


def test_maximum_by_partial_shuffles():
    x = np.random.default_rng(1).standard_normal(256).astype(np.float32)
    out = np.zeros(1, np.float32)
    go("shmaxwarp", [x, out], block=256, outputs=(1,))
    assert out[0] == x.max()
