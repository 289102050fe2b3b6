"""Kernels on CUB's primitives of warps and blocks, and on the agents of its device-wide ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case
from .cases_samples import F, R, f32, i32, zeros

V, V5 = i32(512), i32(900)
OUT, TOTAL = zeros(512), zeros(1)


def exclusive(x: Any, *_: Any) -> Any:
    return np.append(0, np.cumsum(x)[:-1]), [x.sum()]


def loaded(x: Any, out: Any, n: int) -> Any:
    return x * 10 + np.arange(n) % 5


def striped(x: Any, out: Any, n: int) -> Any:
    return x * 10 + np.arange(n) % 320 // 64


def merged(k: Any, v: Any) -> Any:
    order = np.argsort(k, kind="stable")
    return k[order], v[order]


def flags(x: Any, *_: Any) -> Any:
    d = x[1:] != x[:-1]
    return np.append(1, d), np.append(d, 1)


def ranks(k: Any, out: Any) -> Any:
    order = np.argsort(k >> 3 & 31, kind="stable")
    found = np.empty(512, int)
    found[order] = np.arange(512)
    return found


def warps(w: int) -> Any:
    def want(x: Any, out: Any) -> Any:
        c = np.cumsum(x.reshape(-1, w), 1)
        found = c * 1000 + c - x.reshape(-1, w)
        found[:, 0] = c[:, -1]
        return found

    return want


def warps12(x: Any, out: Any) -> Any:
    found = np.zeros((4, 32), int)
    found[:, :12] = np.cumsum(x.reshape(4, 32)[:, :12], 1)
    found[:, 0] = found[:, 11]
    return found


def segments(x: Any, flag: Any, out: Any) -> Any:
    found = np.zeros((2, 4, 32), int)
    for w in range(4):
        a, f = x[w * 32 : w * 32 + 32], flag[w * 32 : w * 32 + 32]
        for i in range(32):
            if f[i]:
                j = next((j for j in range(i + 1, 32) if f[j]), 32)
                found[0, w, i] = a[i:j].sum()
            if i == 0 or f[i - 1]:
                j = next((j for j in range(i, 32) if f[j]), 31)
                found[1, w, i] = a[i : j + 1].max()
    return found


def exchanged(x: Any, out: Any) -> Any:
    found = x.reshape(4, 64) + 1000 * (np.arange(64) // 16)
    return found


def threads(x: Any, out: Any) -> Any:
    v = np.sort(x.reshape(-1, 8), 1)
    total = v.sum(1)
    return v[:, 0] + v[:, 7] * 1000 + total * 100000 + ((v <= 50).sum(1) << 1) + (total >> 2 & 7)


def keyed(k: Any, v: Any, *_: Any) -> Any:
    starts = np.flatnonzero(np.append(True, k[1:] != k[:-1]))
    n = len(starts)
    return np.pad(k[starts], (0, 128 - n)), np.pad(np.add.reduceat(v, starts), (0, 128 - n)), [n]


KEYS = R.integers(0, 2**32, 512).astype(np.uint32)
WIDE = R.integers(0, 2**63, 192).astype(np.uint64)
BYTES = R.integers(0, 256, 512).astype(np.uint8)
RUNS = np.sort(i32(256, high=60))
X = f32(1024)
LENGTHS = i32(64, low=1, high=9)

CASES = [
    *(Case(name, [X, zeros(2, dtype=F)], lambda x, o: x.astype(float).reshape(2, 512).sum(1), [1], 2, 128, atol=1e-4)
      for name in ("reduce_raking", "reduce_commutative", "reduce_warps")),
    Case("reduce_odd", [X, zeros(2, dtype=F)], lambda x, o: x.astype(float)[:768].reshape(2, 384).sum(1), [1], 2, 96, atol=1e-4),
    Case("reduce_partial", [i32(100), zeros(2), 100], lambda x, o, n: [x.max(), x.sum()], [1]),
    Case("reduce_argmax", [X, zeros(4)], lambda x, o: x[:512].reshape(4, 128).argmax(1), [1], 4),
    Case("reduce_2d", [V, zeros(1)], lambda x, o: [x[:128].sum()], [1], 1, (16, 4, 2)),
    *(Case(name, [V, OUT, TOTAL], exclusive, [1, 2]) for name in ("scan_raking", "scan_memoize", "scan_warps")),
    Case("scan_prefix", [V, OUT, 512], lambda x, *_: np.cumsum(x), [1]),
    Case("scan_max", [V[:64], zeros(64)], lambda x, o: np.maximum.accumulate(x), [1], 1, 64),
    *(Case(name, [V5, zeros(900), 900], loaded, [1], 3, 64)
      for name in ("load_direct", "load_vectorize", "load_transpose", "load_timesliced")),
    Case("load_warp_transpose", [V5, zeros(900), 900], loaded, [1], 3, 64),
    Case("load_striped", [V5, zeros(900), 900], striped, [1], 3, 64),
    Case("exchange", [V[:256], zeros(256)], lambda x, o: x[::-1], [1], 1, 64),
    Case("radix_sort", [KEYS, np.arange(512, dtype=np.int32), f32(512)],
         lambda k, v, f: (np.sort(k), np.argsort(k, kind="stable"), np.sort(f)[::-1]), [0, 1, 2]),
    Case("radix_sort_bits", [WIDE], lambda k: k[np.argsort(k >> np.uint64(8) & np.uint64(0xFFFF), kind="stable")], [0], 1, 64),
    Case("merge_sort", [i32(320), np.arange(320, dtype=np.int32)], merged, [0, 1], 1, 64),
    *(Case(name, [BYTES, zeros(256, dtype=np.uint32)], lambda x, o: np.bincount(x, minlength=256), [1])
      for name in ("histogram_atomic", "histogram_sort")),
    Case("discontinuity", [RUNS, zeros(256), zeros(256)], flags, [1, 2], 1, 64),
    Case("adjacent", [V[:256], zeros(256)], lambda x, o: np.append(x[0], x[1:] - x[:-1]), [1], 1, 64),
    Case("shuffle", [V[:128], zeros(128), zeros(128)], lambda x, *_: (np.append(-1, x[:-1]), np.roll(x, -7)), [1, 2]),
    Case("run_length", [i32(64), LENGTHS, zeros(int(LENGTHS.sum())), zeros(1)], lambda v, n, *_: (np.repeat(v, n), [n.sum()]), [2, 3], 1, 32),
    Case("radix_rank", [KEYS, OUT], ranks, [1]),
    Case("warp_ops_32", [V[:128], zeros(128)], warps(32), [1]),
    Case("warp_ops_8", [V[:128], zeros(128)], warps(8), [1]),
    Case("warp_ops_12", [V[:128], zeros(128)], warps12, [1]),
    Case("warp_segments", [V[:128], (R.random(128) < 0.2).astype(np.int32), zeros(256)], segments, [2]),
    Case("warp_exchange", [V[:256], zeros(256)], exchanged, [1], 1, 64),
    Case("warp_merge_sort", [V[:256]], lambda x: np.sort(x.reshape(2, 128), 1), [0], 1, 64),
    Case("cache_iterators", [V, OUT, 512], lambda x, *_: 3 * x + x[::-1], [1], 2),
    Case("thread_ops", [V[:256], zeros(32)], threads, [1], 1, 32),
    Case("device_scan_int", [i32(1400), zeros(1400), zeros(4096, dtype=np.uint8), 1400], lambda x, *_: np.cumsum(x), [1], 3,
         before=[("device_scan_init", (2, -1), 1, 128)]),
    Case("device_scan_double", [R.standard_normal(1400), zeros(1400, dtype=np.float64), zeros(4096, dtype=np.uint8), 1400], lambda x, *_: np.cumsum(x), [1], 3,
         before=[("device_scan_init_wide", (2, -1), 1, 128)], atol=1e-12),
    Case("select_if", [V5, zeros(900), zeros(1), 900], None, [2], 8, 128),
    Case("reduce_by_key", [np.sort(i32(128, high=40)), V[:128], zeros(128), zeros(128), zeros(1)], keyed, [2, 3, 4]),
]  # fmt: skip
