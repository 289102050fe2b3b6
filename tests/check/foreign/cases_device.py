"""Kernels of CUB's device-wide algorithms: radix and merge sorts in their steps, reductions, transforms by bulk copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case
from .cases_samples import F, R, f32, u32

N = 1300
KEYS, NUMBERS = u32(N), np.arange(N, dtype=np.uint32)
# the arguments of all launches of a pass of the radix sort, and of a merge sort of two tiles
RADIX = (
    np.zeros(3 * 256, np.int32), np.zeros(1, np.int32), np.zeros(256, np.uint32), np.zeros(256, np.uint32),
    np.zeros(N, np.uint32), KEYS, np.zeros(N, np.uint32), NUMBERS, N, 4, 8, 12,
)  # fmt: skip
M = 1000
FLOATS = f32(M)


def onesweep(*args: Any) -> Any:
    order = np.argsort(KEYS >> 4 & 255, kind="stable")
    return KEYS[order], NUMBERS[order]


def merged(*args: Any) -> Any:
    order = np.argsort(FLOATS, kind="stable")
    return FLOATS[order], order


def floats(n: int) -> Any:
    return np.zeros(n, F)


def ints(n: int) -> Any:
    return np.zeros(n, np.int32)


X, Y = f32(3001), f32(3002)
CASES = [
    Case("radix_onesweep", RADIX, onesweep, (4, 6), 3, 128, before=[
        ("radix_histogram", (3, 5, 8, 9, 11), 2, 128), ("radix_starts", (3,), 1, 256)]),
    Case("merge_merge", (floats(M), ints(M), M, floats(M), ints(M), ints(3), 2, 1, FLOATS, np.arange(M, dtype=np.int32), 3), merged,
         (3, 4), 2, 128, before=[("merge_blocks", (8, 9, 0, 1, 2, 3, 4), 2, 128), ("merge_partition", (0, 3, 2, 10, 5, 6, 7), 1, 128)]),
    Case("reduce_tiles", (R.standard_normal(5000).astype(F), floats(3), 5000), lambda x, out, n: _shares(x), (1,), 3, 128, rtol=1e-4, atol=1e-3),
    Case("transform_plain", (X, X, floats(3001), 3001), lambda a, b, out, n: 2 * a + b, (2,), 6, 128, rtol=1e-6, atol=1e-6),
    Case("transform_bulk", (X, Y, floats(3001), 3001), lambda a, b, out, n: 2 * a + b[1:], (2,), 6, 128, smem=8192, rtol=1e-6, atol=1e-6),
]  # fmt: skip


def _shares(x: Any) -> Any:
    """The blocks take tiles of 1024 in turns."""
    tiles = [x[i : i + 1024].astype(float).sum() for i in range(0, 5000, 1024)]
    return np.array([sum(tiles[i::3]) for i in range(3)])
