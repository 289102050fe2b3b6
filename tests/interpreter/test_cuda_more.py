"""More of CUDA C++ as nvcc 13.0 compiles it: calls, atomics, math, groups, copies, clusters, order between blocks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kernel_dsl.runtime.interpreter import HazardError, HazardKind

from .launching import SCHEDULES, launch, load

FILE = "cuda_more.ptx"


def go(entry: str, args: list, **options):
    return launch(load(FILE), entry, args, **options)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def test_struct_parameter_and_constant_memory():
    fields = [("a", "i4"), ("b", "f4"), ("c", "f8"), ("d", "i1", 5), ("pad", "V3")]
    s = np.zeros((), np.dtype(fields))
    s["a"], s["b"], s["c"], s["d"] = 3, 0.5, 2.25, [1, -2, 3, -4, 5]
    out = np.zeros(32, np.float32)
    go("structp", [s.tobytes(), out], outputs=(1,))
    table = [1, 2, 3, 4, 5, 6, 7, 8]
    assert out.tolist() == [5.75 + int(s["d"][t % 5]) + table[t & 7] for t in range(32)]


def test_single_precision_functions(rng):
    a = (rng.standard_normal(500) * 3).astype(np.float32)
    out = np.zeros(500, np.float32)
    go("mathk", [a, out, 500], grid=2, block=256, outputs=(1,))
    x = a.astype(np.float64)
    erf = np.vectorize(__import__("math").erf)(x)
    expected = np.sin(x) * np.exp(x) + (abs(x) + 1) ** np.float64(np.float32(0.3))
    expected += np.sqrt(abs(x)) / (1 + x * x) + np.log(abs(x) + 1) + np.tanh(x) + erf
    expected += 1 / np.sqrt(abs(x) + 1) + np.fmod(a, np.float32(0.7)) + np.floor(x) + np.rint(x)
    assert (abs(out - expected) / np.maximum(abs(expected), 1)).max() < 3e-6


def test_local_array_indexed_at_run_time(rng):
    a = rng.integers(0, 100, 50).astype(np.int32)
    out = np.zeros(64, np.int32)
    go("localarr", [a, out, 50], block=64, outputs=(1,))
    local = [[int(a[(t + i) % 50]) for i in range(16)] for t in range(64)]
    expected = [sum(local[t][(int(a[i]) ^ t) & 15] * i for i in range(16)) for t in range(64)]
    assert out.tolist() == expected


def test_atomics_of_every_type():
    i = np.array([0, 0, 0, 0, 0, -1, 0, 0], np.int32)
    u, f, d = np.zeros(2, np.uint32), np.zeros(1, np.float32), np.zeros(1)
    wide, h, b = np.zeros(2, np.uint64), np.zeros(2, np.float16), np.zeros(2, ml_dtypes.bfloat16)
    go("atomics", [i, u, f, d, wide, h, b], grid=2, block=64)
    assert i.tolist() == [8128, 127, -127, 0, 127, -128, 7, 9]
    decremented = 0
    for _ in range(128):
        decremented = 50 if decremented == 0 else decremented - 1
    assert u.tolist() == [128 % 101, decremented]
    assert f[0] == 64 and d[0] == 32 and wide.tolist() == [8128, 127]
    assert h.tolist() == [128, 256] and b.astype(np.float32).tolist() == [128, 256]


def test_fp8_conversions(rng):
    a = (rng.standard_normal(64) * 20).astype(np.float32)
    out, back = np.zeros(64, np.uint8), np.zeros(64, np.float32)
    go("fp8k", [a, out, back], block=64, outputs=(1, 2))
    np.testing.assert_array_equal(out, a.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def test_calls_through_a_table_of_functions():
    out = np.zeros(64, np.int32)
    go("indirect", [out], block=64, outputs=(0,))
    assert out.tolist() == [(t * 3, t - 7, t ^ 5)[t % 3] for t in range(64)]


def test_recursion():
    out = np.zeros(64, np.int32)
    go("fibk", [out], block=64, outputs=(0,))
    fib = [0, 1, 1, 2, 3, 5, 8, 13, 21]
    assert out.tolist() == [fib[t % 9] for t in range(64)]


def test_device_assertion():
    out = np.zeros(64, np.int32)
    go("asserts", [out], block=64)
    out[5] = -3
    with pytest.raises(HazardError, match=r"o\[threadIdx.x\]>=0.*\n.*\n.*lane 5") as caught:
        go("asserts", [out], block=64)
    assert caught.value.kind is HazardKind.ASSERTION


def test_pipelined_copies(rng):
    a = rng.standard_normal((128, 4)).astype(np.float32)
    out = np.zeros_like(a)
    for schedule in SCHEDULES:
        go("pipe", [a, out, 0], block=64, outputs=(1,), dynamic_smem=2048, schedule=schedule)
        expected = a[np.arange(128) ^ 1]
        expected[:, 0] += 1
        np.testing.assert_array_equal(out, expected)


def test_64_bit_integers(rng):
    a, b = rng.integers(-(2**62), 2**62, 64), rng.integers(0, 2**63, 64).astype(np.uint64)
    out = np.zeros(64, np.int64)
    go("i64", [a, b, out], block=64, outputs=(2,))
    assert out.tolist() == [_i64(int(x), int(y)) for x, y in zip(a, b, strict=True)]


def _i64(x: int, y: int) -> int:
    y |= 1
    q = y >> 3 | 1
    total = abs(x) // q * (1 if x >= 0 else -1) + abs(x) % 1000003 * (1 if x >= 0 else -1)
    total += y // 7777 + ((x * x) >> 64) + (x >> (y & 63)) + y.bit_count()
    total += 64 - ((x | 1) & (2**64 - 1)).bit_length()
    total &= 2**64 - 1
    return total - 2**64 if total >> 63 else total


def test_switch_table_and_global_variable(rng):
    a = rng.integers(-2, 13, 64).astype(np.int32)
    out = np.zeros(64, np.int32)
    go("swt", [a, out, 0], block=64, outputs=(1,))

    def one(v: int, i: int) -> int:
        table = (10 * i, i * i, ~i, i << 3, i // 3, i % 5, i - 9, 77, i | 64, i ^ 3)
        return (table[v] if 0 <= v < 10 else -1) + 5

    assert out.tolist() == [one(int(a[i]), i) for i in range(64)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_grid_barrier(schedule):
    a, out = np.zeros(512, np.int32), np.zeros(512, np.int32)
    go("gridsync", [a, out], grid=8, block=64, outputs=(0, 1), schedule=schedule)
    np.testing.assert_array_equal(out, ((np.arange(512) + 37) % 512) ** 2)


@pytest.mark.parametrize("seed", range(3))
def test_decoupled_look_back(rng, seed):
    a = rng.integers(0, 9, 1024).astype(np.int32)
    out, flags = np.zeros(1024, np.int32), np.full(32, -1, np.int32)
    go("lookback", [a, out, flags, 0], grid=32, outputs=(1,), seed=seed)
    np.testing.assert_array_equal(out, a.cumsum())


def test_last_block_sums_the_others(rng):
    a = rng.standard_normal(512).astype(np.float32)
    part, count, out = np.zeros(8, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)
    go("lastblock", [a, part, count, out, 8], grid=8, block=64, outputs=(1, 3))
    assert abs(out[0] - a.sum(dtype=np.float64)) < 1e-4


def test_histogram(rng):
    a = rng.integers(0, 256, 5000).astype(np.uint8)
    out = np.zeros(256, np.uint32)
    go("hist", [a, out, 5000], grid=4, block=128)
    np.testing.assert_array_equal(out, np.bincount(a, minlength=256))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_cluster_shared_memory(schedule):
    out = np.zeros(256, np.int32)
    go("clus", [out], grid=4, block=64, outputs=(0,), cluster=(2, 1, 1), schedule=schedule)
    assert out.tolist() == [(b ^ 1) * 100 + t for b in range(4) for t in range(64)]


def test_tiled_matmul(rng):
    a, b = rng.standard_normal((2, 64, 64)).astype(np.float32)
    out = np.zeros((64, 64), np.float32)
    go("sgemm", [a, b, out, 64], grid=(4, 4), block=(16, 16), outputs=(2,))
    assert abs(out - a.astype(np.float64) @ b).max() < 1e-4


def test_printf_formats():
    value = (-5).to_bytes(8, "little", signed=True)
    report = go("prf", [value, np.float32(2.5).tobytes()], block=2)
    assert report.output == "-5  2.50 abc z 0 ff %\n-5  2.50 abc z 1 ff %\n"
