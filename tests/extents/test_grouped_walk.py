"""Random grouped products and their gradients whose rows change from call to call, against float64."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd

from .counting import none_before

DTYPES = (ml_dtypes.bfloat16, np.float16, np.float32)
BOUND = 8e-3  # of the greatest element


def parts_of(some: random.Random, rows: int, count: int) -> Any:
    """Sizes of groups, some of which are empty; now and then they leave rows at the end."""
    cuts = [0, *sorted(some.randrange(rows + 1) for _ in range(count - 1)), rows]
    sizes = np.diff(cuts).astype(np.int32)
    if some.random() < 0.2:
        sizes[-1] //= 2
    return sizes


@pytest.mark.parametrize(("n", "k"), [(130, 64), (33, 64), (64, 33)])
def test_one_row_comes_after_several(n: int, k: int) -> None:
    """TMA stores it, but not several rows of such a width."""
    product, b = type(kd.library.grouped_matmul)(), np.ones((2, k, n), ml_dtypes.bfloat16)
    with none_before():
        for rows in (40, 1, 7, 1):
            a, sizes = np.ones((rows, k), ml_dtypes.bfloat16), np.array([rows, 0], np.int32)
            assert np.all(np.asarray(product(a, b, sizes, interpret=True), np.float32) == k)


@pytest.mark.parametrize("seed", range(160))
@pytest.mark.sampled(40)
def test_groups_of_other_rows_are_right(seed: int) -> None:
    """Of a single row and of none, too, and of widths that TMA takes for one row alone."""
    some, rng = random.Random(seed), np.random.default_rng(seed)
    product, gradient = type(kd.library.grouped_matmul)(), type(kd.library.grouped_matmul_wgrad)()
    dtype, count = some.choice(DTYPES), some.choice([1, 2, 3, 5])
    n, k = some.choice([8, 24, 64, 72, 130, 33]), some.choice([8, 16, 40, 64, 200, 33])
    with none_before():
        for _ in range(3):
            rows = some.choice([0, 1, 1, some.randrange(1, 50), some.randrange(1, 300)])
            sizes = parts_of(some, rows, count)
            ends = np.cumsum(sizes)
            a, b, dout = (rng.integers(-3, 4, shape) for shape in ((rows, k), (count, k, n), (rows, n)))
            out, db = np.zeros((rows, n)), np.zeros((count, k, n))
            for group, (end, size) in enumerate(zip(ends, sizes, strict=True)):
                own = slice(end - size, end)
                out[own], db[group] = a[own] @ b[group], a[own].T @ dout[own]
            a, b, dout = (x.astype(dtype) for x in (a, b, dout))
            pairs = [(product(a, b, sizes, interpret=True), out), (gradient(a, dout, sizes, interpret=True), db)]
            for got, want in pairs:
                assert got.shape == want.shape
                error = np.abs(got.astype(np.float64) - want).max(initial=0)
                assert error <= BOUND * np.abs(want).max(initial=1), (dtype, count, n, k, rows)
