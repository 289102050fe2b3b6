"""Roles, rings and locks in CUDA C++: cuda::ptx, cuda::pipeline, cooperative groups, clusters, counters, mma in inline PTX."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case
from .cases_samples import F, R, f32, i32, zeros

U32, U64 = np.uint32, np.uint64
TILES, ROW, WORDS = f32(9, 128), f32(640), i32(10, 128)
HALVES = R.standard_normal((16, 64)).astype(np.float16), R.standard_normal((8, 64)).astype(np.float16)


def stats(x: Any, out: Any, n: int) -> Any:
    return np.concatenate([[x.astype(float).sum()], np.cumsum(x[:256].astype(float).reshape(-1, 8), 1).reshape(-1)])


def staged(x: Any, *_: Any) -> Any:
    return sum(x[c][(np.arange(128) * 7 + c) % 128] for c in range(10))


def softmax(x: Any, *_: Any) -> Any:
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def digits(*_: Any) -> Any:
    total = 0
    for i in range(9):
        total = total * 3 + i * i
    return [total]


def means(x: Any, *_: Any) -> Any:
    x = x.astype(float)
    for _step in range(4):
        x = (x + np.roll(x, -1)) / 2
    return x


CASES = [
    Case("ptx_ring", [TILES, zeros(128, dtype=F), 9], lambda x, *_: x.astype(float).sum(0)[::-1], [1], block=160, atol=1e-5),
    Case("ptx_store", [ROW[:512], zeros(512, dtype=F)], lambda x, _: 2 * x, grid=1, block=256),
    Case("cg_stats", [TILES.reshape(-1), zeros(257, dtype=F), 1152], stats, [1], 1, 256, atol=1e-4),
    Case("pipe_unified", [WORDS, zeros(128), 10], staged, [1]),
    Case("dsmem_softmax", [f32(2, 512), zeros(2, 512, dtype=F), 512], softmax, [1], 8, atol=1e-6),
    Case("splitk", [f32(5, 256), f32(256), zeros(5, 4, dtype=F), zeros(5, dtype=U32), zeros(5, dtype=F), 5, 256],
         lambda a, b, *_: (a.astype(float) @ b, zeros(5)), [4, 3], (5, 4), 32, atol=1e-4),
    Case("lookback", [i32(1000, low=-50), zeros(1000), zeros(8, dtype=U64), zeros(1, dtype=U32), 1000], lambda x, *_: np.cumsum(x), [1], 8),
    Case("persistent", [ROW, zeros(640, dtype=F), zeros(1, dtype=U32), 10], lambda x, *_: x * np.repeat(np.arange(10, dtype=F), 64), [1], 3, 64),
    Case("mutex_list", [zeros(1), zeros(1), zeros(16)], lambda *_: ([0], [8]), [0, 1], 4, 64),
    Case("spsc", [zeros(1), zeros(1), zeros(4), zeros(1), 9], digits, [3], 2, 32),
    Case("rwlock", [zeros(1), zeros(2), i32(4)], lambda *_: ([0], [2, 2], [0] * 4), [0, 1, 2], 6, 32),
    Case("mma_gemm", [*HALVES, zeros(16, 8, dtype=F)], lambda a, b, _: a.astype(float) @ b.astype(float).T, [2], 1, 32, atol=1e-3),
    Case("cg_grid", [f32(300), zeros(300, dtype=F), 300], means, [0], 3, 64, atol=1e-6),
]  # fmt: skip
