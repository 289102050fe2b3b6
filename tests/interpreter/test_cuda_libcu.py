"""libcu++ and cooperative groups as nvcc 13.0 compiles them: barriers, pipelines, asynchronous copies, scans, wmma."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardError, HazardKind

from .launching import SCHEDULES, launch, load

FILE = "cuda_libcu.ptx"
A = np.random.default_rng(3).integers(0, 1000, 256).astype(np.int32)
pytestmark = pytest.mark.parametrize("schedule", SCHEDULES)


def go(entry, args, schedule, **options):
    return launch(load(FILE), entry, args, schedule=schedule, **options)


@pytest.mark.parametrize("entry", ["barr", "barr_al"])
def test_block_barrier_and_asynchronous_copy(entry, schedule):
    out = np.zeros(256, np.int32)
    go(entry, [A, out], schedule, block=256, outputs=(1,))
    np.testing.assert_array_equal(out, A[::-1])


def test_atomic_references(schedule):
    a, count = np.zeros(2, np.int32), np.zeros(1, np.uint64)
    go("atomref", [a, count], schedule, block=64)
    assert a.tolist() == [192, 63] and count[0] == 64


def test_atomic_references_of_a_blocks_scope_in_two_blocks(schedule):
    with pytest.raises(HazardError, match="scope") as caught:
        go("atomref", [np.zeros(2, np.int32), np.zeros(1, np.uint64)], schedule, block=64, grid=2)
    assert caught.value.kind == HazardKind.RACE_BLOCKS


def test_group_copy(schedule):
    out = np.zeros(64, np.int32)
    go("cgmem", [A, out], schedule, block=64, outputs=(1,), dynamic_smem=256)
    np.testing.assert_array_equal(out, A[np.arange(64) ^ 1])


def test_scans_and_labelled_partitions(schedule):
    out = np.zeros(32, np.int32)
    go("scan", [A, out], schedule, outputs=(1,))
    v = A[:32].astype(np.int64)
    before = np.maximum.accumulate(v)[:-1]
    expected = [v[: i + 1].sum() + before[i - 1] + 1000 * v[(v & 3) == (v[i] & 3)].sum() for i in range(1, 32)]
    assert out[1:].tolist() == expected  # the first lane's exclusive maximum is not defined


def test_two_stage_pipeline(schedule):
    x = np.arange(1024, dtype=np.int32).reshape(256, 4)
    out = np.zeros_like(x)
    go("pipe2", [x, out, 4], schedule, block=64, outputs=(1,))
    expected = x.reshape(4, 64, 4)[:, np.arange(64) ^ 3]
    expected[:, :, 0] += np.arange(4, dtype=np.int32)[:, None]
    np.testing.assert_array_equal(out, expected.reshape(256, 4))


def test_wmma(schedule):
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((2, 16, 16)).astype(np.float16)
    out = np.zeros((16, 16), np.float32)
    go("wm", [a, b, out], schedule)
    assert abs(out - 2 * (a.astype(np.float64) @ b.T.astype(np.float64) + 1)).max() < 1e-4
