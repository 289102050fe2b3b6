"""kd.ldexp against numpy.ldexp, which rounds once: overflow, subnormal results, exponents of every integer dtype."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from tests.ops.harness import run


def numbers(dtype: np.dtype) -> np.ndarray:
    rng = np.random.default_rng(3)
    info = ml_dtypes.finfo(dtype)
    edges = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan]
    edges += [float(info.max), float(info.smallest_subnormal), float(info.smallest_normal)]
    return np.concatenate([np.array(edges), rng.standard_normal(86)]).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_against_numpy(dtype: type) -> None:
    x = numbers(np.dtype(dtype))
    bits = 1100 if dtype == np.float64 else 160
    powers = np.concatenate([np.arange(-bits, bits, bits // 16), [2**31 - 1, -(2**31), 2 * bits, -2 * bits]])
    grid, n = (a.ravel() for a in np.meshgrid(x, powers.astype(np.int32)))
    with np.errstate(all="ignore"):
        # Narrow formats have float64 results that are exact, or beyond their range.
        want = np.ldexp(grid.astype(np.float64) if dtype != np.float32 else grid, n).astype(dtype)
    got = run(kd.ldexp, grid, n)
    bad = ~((got == want) | ((got != got) & (want != want))) | (np.signbit(got) != np.signbit(want)) & (want == want)
    assert not bad.any(), [(grid[i], n[i], got[i], want[i]) for i in np.flatnonzero(bad)[:4]]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.int64, np.uint64])
def test_exponents_of_every_integer_dtype(dtype: type) -> None:
    info = np.iinfo(dtype)
    n = np.array([0, 1, 3, 100, info.max, info.max // 2, info.min, max(info.min, -3)], dtype)
    x = np.full(n.shape, 0.75, np.float32)
    clipped = np.array([min(max(int(v), -1000), 1000) for v in n])
    with np.errstate(over="ignore"):
        want = np.ldexp(x, clipped)
    np.testing.assert_array_equal(run(kd.ldexp, x, n), want)


def test_scalars_and_integers() -> None:
    x = np.arange(-4, 4, dtype=np.int32)
    np.testing.assert_array_equal(run(lambda a: kd.ldexp(a, 3), x), np.ldexp(x.astype(np.float32), 3))
    rows = np.ones((4, 8), np.float32)
    n = np.arange(8, dtype=np.int32)
    np.testing.assert_array_equal(run(kd.ldexp, rows, n), np.ldexp(rows, n))
