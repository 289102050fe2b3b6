"""Patterns of libraries in CUDA C++: split-K in turn, stream-K, queues of tiles, look-back, hash tables, rings, roles, clusters."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from .case import Case
from .cases_cute import mapped
from .cases_samples import F, f32, i32, zeros

A, B = f32(16, 64), f32(64, 32)
X = f32(64, 64)
M = (X[:32] @ X[:32].T / 64 + np.eye(32)).astype(F)
KEYS = i32(300, low=1, high=40)
MARK = np.full((3, 3, 64), 0x80000000, np.uint32).view(F)
ROWS, SUMS = f32(16, 96), zeros(16, 32, dtype=F)
LENGTHS = np.array([0, 5, 70, 70, 103, 104])
PLACES, WEIGHTS, DENSE = i32(104, high=50), f32(104), f32(50)
U64 = np.uint64


def power(m: Any, x: Any, y: Any, norm: Any, n: int, steps: int) -> Any:
    x = x.astype(float)
    for _ in range(steps):
        x = m.astype(float) @ x
        x /= np.linalg.norm(x)
    return x


def normed(x: Any, residual: Any, w: Any, y: Any, n: int) -> Any:
    v = x.astype(float) + residual
    return v, v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-6) * w


def spread(x: Any, o: Any) -> Any:
    e = np.exp(x.astype(float).reshape(2, 512))
    return e / e.sum(1, keepdims=True)


def ring(*_: Any) -> Any:
    return (ROWS.reshape(16, 3, 32) * np.array([1, 2, 3])[:, None]).sum(1)


def sparse(starts: Any, columns: Any, values: Any, x: Any, y: Any, n: int) -> Any:
    return [(values[a:b].astype(float) * x[columns[a:b]]).sum() for a, b in itertools.pairwise(starts)]


BASIC = [
    Case("split_k_in_turn", [A, B, zeros(16, 32, dtype=F), zeros(4), 32, 64], lambda a, b, *_: a.astype(float) @ b, [2], (2, 2, 4), 128, atol=1e-4),
    Case("stream_k", [f32(5, 7, 64), f32(7, 64), zeros(5, 64, dtype=F), zeros(4, 64, dtype=F), zeros(4), 5, 7], lambda a, b, *_: (a.astype(float) * b).sum(1), [2], 4, 64, atol=1e-4),
    Case("queue_of_tiles", [i32(9, 64), zeros(9, 64), zeros(1), 9], lambda x, *_: 3 * x + np.arange(9)[:, None], [1], 3, 64),
    Case("look_back_by_warps", [i32(40, 128).astype(np.uint32), zeros(40, 128, dtype=np.uint32), zeros(40, dtype=U64), zeros(1, dtype=np.uint32)], lambda x, *_: np.cumsum(x.reshape(-1)), [1], 40, 128),
    Case("last_block_best", [f32(1000), zeros(1, dtype=F), zeros(1), zeros(4, dtype=F), zeros(4), zeros(1, dtype=np.uint32), 1000], lambda x, *_: ([x.max()], [x.argmax()], [0]), [1, 2, 5], 4, 128),
    Case("hash_found", [KEYS.astype(np.uint32), i32(300), zeros(64, dtype=np.uint32), zeros(64), 300, 64, zeros(40)], lambda k, v, *_: np.bincount(k - 1, v, 40), [6], 1, 40,
         before=[("hash_sums", range(6), 2, 96)]),
    Case("hash_join", [zeros(64, dtype=U64), zeros(64), i32(64, low=1, high=64), zeros(64), 64], lambda k, v, p, *_: 99 + p, [3], 2, 64),
    Case("lamport_sum", [f32(3, 64), MARK, zeros(3, 64, dtype=F)], lambda x, *_: np.tile(x.astype(float).sum(0), (3, 1)), [2], 3, 64, atol=1e-5),
    Case("ring_of_messages", [i32(8, 64), zeros(3, 64), zeros(1, dtype=np.uint32), zeros(1, dtype=np.uint32), zeros(8, 64), 8], lambda x, *_: 2 * x + 2, [4], 2, 64),
    Case("sequence_lock", [zeros(1, dtype=np.uint32), zeros(4, dtype=np.uint32), zeros(4, dtype=np.uint32)], lambda *_: np.arange(4), [2], 2, 32),
    Case("power_iteration", [M, f32(32), zeros(32, dtype=F), zeros(2, dtype=F), 32, 2], power, [1], 3, 64, atol=1e-4),
    Case("pipeline_of_roles", [i32(7, 64), zeros(7, 64), 7], lambda x, *_: x[:, ::-1] + np.arange(7)[:, None], [1], 1, 96),
    Case("barriers_of_buffers", [i32(6, 32), zeros(6, 32), 6], lambda x, *_: 2 * x[:, ::-1], [1], 1, 64),
    Case("staged_groups", [f32(5, 128), zeros(128, dtype=F), 5], lambda x, *_: x.astype(float).sum(0)[::-1], [1], 1, 128, atol=1e-5),
    Case("compacted_sum", [i32(500), zeros(500), zeros(1), 500, zeros(1)], lambda x, *_: ([(x % 3 == 0).sum()], [x[x % 3 == 0].sum()]), [2, 4], 1, 128,
         before=[("compacted", range(4), 4, 128)]),
    Case("rms_norm", [f32(3, 200), f32(3, 200), f32(200), zeros(3, 200, dtype=F), 200], normed, [1, 3], 3, 128, rtol=1e-4, atol=1e-5),
    Case("experts_in_order", [i32(200, high=50), zeros(200), zeros(51), 200, 50], lambda e, *_: (np.sort(e), np.append(0, np.cumsum(np.bincount(e, minlength=50)))), [1, 2], 1, 128),
    Case("stacked", [zeros(1, dtype=np.uint32), zeros(41, dtype=np.uint32), zeros(41, dtype=np.uint32), 40], lambda *_: np.append(0, np.ones(40)), [2], 1, 1,
         before=[("stacks", range(4), 3, 16)]),
    Case("rows_by_length", [LENGTHS.astype(np.int32), PLACES, WEIGHTS, DENSE, zeros(5, dtype=F), 5], sparse, [4], 2, 128, atol=1e-4),
]  # fmt: skip
HOPPER = [
    Case("cluster_softmax", [f32(1024), zeros(1024, dtype=F)], spread, [1], 8, 128, 4, rtol=1e-4, atol=1e-6),
    Case("bulk_scale", [i32(5, 64), zeros(5, 64), 5], lambda x, *_: 5 * x, [1], 1, 64),
    Case("tensor_ring", [mapped(ROWS, (8, 32)), mapped(SUMS, (8, 32)), 3], None, (), 2, 288, behind=[(SUMS, ring)]),
]  # fmt: skip
CASES = BASIC + HOPPER
