"""Running sums, products and maxima in every way that a layout can spread their axis, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

SHAPES = [(1,), (7,), (1000,), (4096,), (3, 5), (64, 96), (5, 600), (33, 7, 9), (2, 1, 300)]


def _running(function: Any, axis: int) -> Any:
    @kd.kernel(out_type=lambda x: x)
    def run(x: Any, out: Any) -> None:
        out[...] = function(x[...], axis=axis).astype(x.dtype)

    return run


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.sampled(4)
def test_integers_are_exact(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, shape).astype(np.int32)
    for axis in range(len(shape)):
        assert np.array_equal(_running(kd.cumsum, axis)(x), np.cumsum(x, axis, dtype=np.int32))
        assert np.array_equal(_running(kd.cummax, axis)(x), np.maximum.accumulate(x, axis))


@pytest.mark.parametrize("vector", [1, 2, 8])
@pytest.mark.parametrize("lanes_first", [True, False])
def test_digits_in_any_order(vector: int, lanes_first: bool) -> None:
    """Register digits below, between and above those of lanes and warps."""
    size = 128 * vector * 3
    if lanes_first:
        lanes = tuple((0, vector << i) for i in range(5))
        layout = kd.Layout(1, ((0, 3, 128 * vector), (0, vector, 1)), lanes, ((0, 32 * vector), (0, 64 * vector)))
    else:  # registers between lanes and warps, and three of them
        lanes = tuple((0, vector << i) for i in range(5))
        warps = ((0, 96 * vector), (0, 192 * vector))
        layout = kd.Layout(1, ((0, 3, 32 * vector), (0, vector, 1)), lanes, warps)

    @kd.kernel(out_type=lambda x: x)
    def run(x: Any, out: Any) -> None:
        out[...] = kd.cumsum(kd.load(x, layout=layout))

    x = np.random.default_rng(1).integers(-99, 99, size).astype(np.int32)
    assert np.array_equal(run(x), np.cumsum(x, dtype=np.int32))


def test_floats() -> None:
    """Products of numbers near 1, and maxima with a NaN on the way, which stays."""
    rng = np.random.default_rng(2)
    x = rng.uniform(0.9, 1.1, (5, 300)).astype(np.float32)
    assert np.allclose(_running(kd.cumprod, 1)(x), np.cumprod(x.astype(np.float64), 1), rtol=1e-5)
    x[2, 100] = np.nan
    assert np.array_equal(_running(kd.cummax, 1)(x), np.maximum.accumulate(x, 1), equal_nan=True)
    zeros = np.full((3,), -0.0, np.float32)
    assert np.signbit(_running(kd.cumsum, 0)(zeros)).all()
