"""Random products whose number of rows changes from call to call: kernels for any number take every layout, width and dtype."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd

from .counting import counted, none_before

DTYPES = (ml_dtypes.bfloat16, np.float16, np.float32, ml_dtypes.float8_e4m3fn, np.int8, np.float64)
MOST = 1 << 26  # elements of an array
BOUNDS = {
    2: 8e-3,
    4: 1e-5,
    8: 1e-12,
    1: 4e-2,
}  # the greatest error of a result, by its bytes; that of float8 is bfloat16


def side(some: random.Random) -> int:
    """Short and long ones, of which many are odd."""
    return some.choice(
        [some.randrange(1, 300), some.randrange(1, 3000), 8 * some.randrange(1, 1000), some.randrange(1, 20000)]
    )


def lying(x: Any, turned: bool, shifted: bool) -> Any:
    """The same numbers by rows or by columns, at an odd address if `shifted`."""
    whole = np.ascontiguousarray(x.swapaxes(-1, -2) if turned else x)
    if shifted:
        whole = np.concatenate([np.zeros(1, x.dtype), whole.reshape(-1)])[1:].reshape(whole.shape)
    return whole.swapaxes(-1, -2) if turned else whole


@pytest.mark.parametrize("seed", range(300))
@pytest.mark.sampled(15)
def test_other_rows_trace(seed: int) -> None:
    """Nothing runs."""
    some = random.Random(seed)
    dtype, turned, shifted = some.choice(DTYPES), [some.random() < 0.5 for _ in "ab"], some.random() < 0.2
    batch = some.choice([(), (), (), (3,)])
    n, k, rows = MOST, 2, [1]
    while max(n * k, max(rows) * max(n, k)) > MOST:
        n, k, rows = side(some), side(some), [side(some) for _ in range(3)]
    with counted(), none_before():
        b = lying(np.zeros((*batch, k, n), dtype), turned[1], shifted)
        for m in rows:
            kd.library.matmul(lying(np.zeros((*batch, m, k), dtype), turned[0], shifted), b, interpret=True)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.sampled(8)
def test_other_rows_are_right(seed: int) -> None:
    """Of tiles whose two warpgroups store rows of odd widths, and addresses, through SMEM."""
    some, rng = random.Random(seed), np.random.default_rng(seed)
    dtype, turned, shifted = (
        some.choice(DTYPES[:2] * 3 + DTYPES),
        [some.random() < 0.5 for _ in "ab"],
        some.random() < 0.2,
    )
    n, k, rows = 2 * some.randrange(100, 140) + 1, some.randrange(8, 80), [some.randrange(900, 2500) for _ in range(2)]
    with none_before():
        exact = rng.integers(-3, 4, (k, n))
        b = lying(exact.astype(dtype), turned[1], shifted)
        for m in rows:
            a = rng.integers(-3, 4, (m, k))
            got = kd.library.matmul(lying(a.astype(dtype), turned[0], shifted), b, interpret=True)
            want = a.astype(np.float64) @ exact
            error = np.abs(np.asarray(got, np.float64) - want).max() / np.abs(want).max()
            assert error <= BOUNDS[got.dtype.itemsize], (m, got.dtype)
