"""Kernels of CUB's device-wide algorithms: radix and merge sorts in their steps, reductions, transforms by bulk copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case
from .cases_samples import F, R, f32, i32, u32

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


def downsweep(*args: Any) -> Any:
    order = np.argsort(KEYS >> 3 & 31, kind="stable")
    return KEYS[order], NUMBERS[order]


def uniques(keys: Any, values: Any, keys_out: Any, values_out: Any, count: Any, *rest: Any) -> Any:
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    keys_out[: len(first)], values_out[: len(first)] = keys[first], values[first]
    return keys_out, values_out, np.array([len(first)])


def parts(x: Any, small: Any, large: Any, others: Any, counts: Any, *rest: Any) -> Any:
    low, high = x < 30, x >= 70
    for out, some in ((small, low), (large, high)):
        out[: some.sum()] = x[some]
    others[: (~low & ~high).sum()] = x[~low & ~high]
    return small, large, others, np.array([low.sum(), high.sum()])


def runs(x: Any, offsets: Any, lengths: Any, count: Any, *rest: Any) -> Any:
    """Runs of two and more."""
    first = np.flatnonzero(np.append(True, x[1:] != x[:-1]))
    size = np.diff(np.append(first, len(x)))
    first, size = first[size > 1], size[size > 1]
    offsets[: len(first)], lengths[: len(first)] = first, size
    return offsets, lengths, np.array([len(first)])


def states() -> Any:
    return np.zeros(8192, np.uint8)


SORTED = np.sort(i32(N, high=400))
X, Y = f32(3001), f32(3002)
CASES = [
    Case("radix_onesweep", RADIX, onesweep, (4, 6), 3, 128, before=[
        ("radix_histogram", (3, 5, 8, 9, 11), 2, 128), ("radix_starts", (3,), 1, 256)]),
    Case("radix_downsweep", (np.zeros(N, np.uint32), KEYS, np.zeros(N, np.uint32), NUMBERS, np.zeros(96, np.uint32), N, 3), downsweep, (0, 2), 3, 128,
         before=[("radix_upsweep", (1, 4, 5, 6), 3, 128), ("radix_spine", (4,), 1, 96)]),
    Case("unique_by_key", (SORTED, f32(N), ints(N), floats(N), ints(1), states(), N, 3), uniques, (2, 3, 4), 3, 128, before=[("states_init", (5, 7), 1, 128)]),
    Case("partition_three", (i32(N), ints(N), ints(N), ints(N), ints(2), states(), N, 3), parts, (1, 2, 3, 4), 3, 128, before=[("partition_init", (5, 7), 1, 128)]),
    Case("run_lengths", (SORTED, ints(N), ints(N), ints(1), states(), N, 4), runs, (1, 2, 3), 4, 96, before=[("runs_init", (4, 6), 1, 128)]),
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
