"""Kernels on odd sizes and few elements, most of which change their arrays in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case
from .cases_samples import R, f32, i32, zeros

D, F = np.float64, np.float32


def rows(x: Any, w: Any, n: int) -> Any:
    a, b = x.reshape(-1, 2, n)[:, 0].astype(D), x.reshape(-1, 2, n)[:, 1].astype(D)
    return np.stack([a * w - b, b * w + a], axis=1).reshape(x.shape)


def halved(x: Any, out: Any, n: int) -> Any:
    for step in range(3):
        x = x * 0.5 + step
    return x.astype(D)


def smooth(x: Any, n: int) -> Any:
    p = np.pad(x.astype(D), 1, mode="edge")
    return 0.25 * p[:-2] + 0.5 * p[1:-1] + 0.25 * p[2:]


def relaxed(x: Any, n: int, rounds: int) -> Any:
    x = x.astype(D)
    for r in range(2 * rounds):
        at = np.arange(1 + (r & 1), n - 1, 2)
        x[at] = 0.5 * (x[at - 1] + x[at + 1])
    return x


def tree(x: Any, n: int) -> Any:
    x, m = x.astype(D), n
    while m > 1:
        h = (m + 1) // 2
        x[: m // 2] += x[h:m]
        m = h
    return x


def compact(x: Any, count: Any, n: int) -> Any:
    odd = x[x % 2 == 1]
    return np.concatenate([odd, x[len(odd) :]]), np.array([len(odd)])


def factors(a: Any, n: int) -> Any:
    a = a.reshape(n, n).astype(D)
    for k in range(n):
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return a


def lower(a: Any, n: int) -> Any:
    a = a.reshape(n, n).astype(D)
    return np.tril(np.linalg.cholesky(a)) + np.triu(a, 1)


def paths(d: Any, n: int) -> Any:
    d = d.reshape(n, n)
    for k in range(n):
        d = np.minimum(d, d[:, k : k + 1] + d[k : k + 1])
    return d


def transform(x: Any, bits: int) -> Any:
    z = np.fft.fft(x[..., 0].astype(D) + 1j * x[..., 1])
    return np.stack([z.real, z.imag], axis=-1)


def lives(x: Any, m: int, n: int, steps: int) -> Any:
    x = x.reshape(m, n).astype(int)
    for _ in range(steps):
        around = sum(np.roll(x, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) - x
        x = (around == 3) | ((around == 2) & (x == 1))
    return x


def softmax(x: Any, m: int, n: int) -> Any:
    e = np.exp(x.reshape(m, n).astype(D))
    return e / e.sum(1, keepdims=True)


def fours(x: Any, n: int) -> Any:
    x = x.astype(D)
    body = x[: n // 4 * 4].reshape(-1, 4)
    body[...] = np.stack([body[:, 0] + 1, body[:, 1] * 2, -body[:, 2], body[:, 3] - 3], axis=1)
    x[n // 4 * 4 :] *= 10
    return x


def roots(a: Any, b: Any, edges: int) -> Any:
    label = np.arange(40)
    for _ in range(40):
        for u, v in zip(a, b, strict=True):
            label[label == max(label[u], label[v])] = min(label[u], label[v])
    return label


def scanned(x: Any, n: int) -> Any:
    return np.cumsum(x) - x + x.sum()


def warps(x: Any) -> Any:
    v = x[:64].reshape(4, 16)
    most = np.repeat(v.max(1), 16)
    sums = np.cumsum(x[:64].reshape(8, 8), axis=1).reshape(-1)
    both = np.stack([sums, most - x[:64]], axis=1).reshape(8, 16)
    return np.sort(both, axis=1).reshape(-1)


def runs(x: Any, heads: Any, n: int) -> Any:
    before = np.concatenate([x[:1], x[:-1]])
    return np.where(np.arange(n) > 0, x - before, x), np.where(np.arange(n) > 0, x != before, 1)


def eights(x: Any, n: int) -> Any:
    p = np.pad(x.astype(D), (0, -n % 8)).reshape(-1, 8)
    return (p / p.sum(1, keepdims=True)).reshape(-1)[:n]


def some(x: Any, n: int) -> Any:
    x = x.copy()
    for w in range(0, n, 32):
        at = w + np.flatnonzero(x[w : min(w + 32, n)] % 3)
        x[at] = np.cumsum(x[at]) * 100 + np.arange(len(at))
    return x


def turned(x: Any, n: int, rounds: int) -> Any:
    for r in range(rounds):
        x = np.roll(x, -1) + r
    return x


def standard(x: Any, n: int) -> Any:
    s = np.sort(x.reshape(-1, 3), axis=1).astype(D)
    z = (s[:, 0] + 1j * s[:, 1]) ** 2
    return np.stack([z.real, z.imag, s[:, 2]], axis=1)


SPD = (lambda m: (m @ m.T + 11 * np.eye(11)).astype(F))(R.standard_normal((11, 11)))
DISTANCES = np.where(np.eye(15, dtype=bool), 0, R.integers(1, 60, (15, 15))).astype(np.int32)
EDGES = R.integers(0, 40, (2, 25)).astype(np.int32)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
CASES = [
    *(
        Case("wrapped", [f32(n), n], lambda x, n: x.astype(D) ** 2 + 1, [0], block=96, **CLOSE)
        for n in (1, 13, 32, 48, 96)
    ),
    Case("wrapped_rows", [f32(3, 2, 24), f32(24), 24], rows, [0], grid=3, block=128, **CLOSE),
    *(Case("wrapped_shared", [f32(n), np.zeros(n, F), n], halved, [1], block=128, **CLOSE) for n in (7, 32, 50)),
    Case("reversed", [i32(77), 77], lambda x, n: x[::-1], [0], grid=2, block=32),
    Case("rotated", [i32(45), 45, 7], lambda x, n, by: np.roll(x, by), [0], block=64),
    Case("transposed", [f32(17, 17), 17], lambda x, n: x.T, [0], block=96),
    Case("swapped_pairs", [f32(13, 13), 13], lambda x, n: x.T, [0], block=64),
    Case("smoothed", [f32(75), 75], smooth, [0], block=96, **CLOSE),
    Case("red_black", [f32(61), 61, 4], relaxed, [0], block=64, **CLOSE),
    Case("tree_sum", [f32(100), 100], tree, [0], block=64, **CLOSE),
    Case("scan_shuffles", [i32(101), 101], lambda x, n: np.cumsum(x), [0], block=128),
    Case("compacted", [np.abs(i32(90)), zeros(1), 90], compact, [0, 1], block=96),
    Case("lu", [(R.standard_normal((13, 13)) + 13 * np.eye(13)).astype(F), 13], factors, [0], block=64, **CLOSE),
    Case("cholesky", [SPD, 11], lower, [0], block=32, rtol=1e-3, atol=1e-3),
    Case("shortest_paths", [DISTANCES, 15], paths, [0], block=96),
    Case("fft_in_place", [f32(64, 2), 6], transform, [0], block=40, smem=512, **CLOSE),
    Case("life", [R.integers(0, 2, (9, 13)).astype(np.uint8), 9, 13, 4], lives, [0], block=128),
    Case("softmax_warps", [f32(7, 45), 7, 45], softmax, [0], grid=2, block=128, **CLOSE),
    Case(
        "axpby_halves",
        [f32(51).astype(np.float16), f32(51).astype(np.float16), 51],
        lambda x, y, n: 2 * x.astype(D) + y,
        [0],
        block=32,
        rtol=1e-2,
        atol=1e-2,
    ),
    Case("vector_tail", [f32(55), 55], fours, [0], block=32, **CLOSE),
    Case(
        "flattened",
        [np.arange(40, dtype=np.int32), 40, EDGES[0], EDGES[1], 25],
        lambda p, n, a, b, e: roots(a, b, e),
        [0],
        block=64,
        before=[("labels", [2, 3, 0, 4], 1, 32)],
    ),
    Case("cub_scan", [i32(77), 77], scanned, [0], block=96),
    Case("cub_sort", [i32(150), 150], lambda x, n: np.sort(x), [0], block=64),
    Case("cub_sums", [f32(45), 45], lambda x, n: x - x.mean(dtype=D), [0], block=128, **CLOSE),
    Case("cub_warps", [i32(128)], warps, [0], block=64),
    Case("cub_runs", [i32(50, high=3), zeros(50), 50], runs, [0, 1], block=64),
    Case("tiles_of_eight", [np.abs(f32(43)) + 1, 43], eights, [0], block=64, **CLOSE),
    Case("some_lanes", [np.abs(i32(70)) % 50, 70], some, [0], block=96),
    Case("copied", [i32(51), zeros(51), 51], lambda x, out, n: x[::-1] * 2, [1], block=64),
    Case("barrier_of_some", [i32(90), 90, 3], turned, [0], block=128),
    Case("largest", [zeros(1), i32(100), 100], lambda b, x, n: max(0, x.max()), [0], grid=3, block=48),
    Case("standard_types", [f32(33, 3), 33], standard, [0], block=64, **CLOSE),
]
