"""Cooperative groups: tiles, partitions, collectives, blocks of a cluster and of a grid."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case
from .cases_samples import F, R, f32, i32, zeros

V, X = i32(256), f32(256)
OUT = zeros(256)
W: Any = V.reshape(8, 32).astype(int)


def votes(v: Any, out: Any) -> Any:
    t = v.reshape(-1, 8).astype(int)
    bits = 1 << np.arange(8)
    found = (t > 90).any(1) + 2 * (t > 5).all(1) + 4 * ((t > 50) * bits).sum(1)
    match = ((t[:, :, None] % 2 == t[:, None, :] % 2) * bits).sum(2)
    return found[:, None] + 4096 * match + (np.arange(len(t)) % 16)[:, None] * 1000000


def reduces(v: Any, x: Any, out: Any, g: Any) -> Any:
    t8, t32 = v.reshape(-1, 8).astype(int), v.reshape(-1, 32).astype(int)
    f8, f32_ = x.reshape(-1, 8).astype(float), x.reshape(-1, 32).astype(float)
    first = np.repeat(t32.sum(1), 32) + np.repeat(10000 * t8.max(1) + np.bitwise_xor.reduce(t8, 1), 8)
    return first, np.repeat(f8.sum(1), 8) + np.repeat(f32_.min(1), 32)


def scans(v: Any, out: Any) -> Any:
    t = v.reshape(-1, 16).astype(int)
    c = np.cumsum(t, 1)
    return c + 10000 * (c - t)


def coalesced_reduce(v: Any, out: Any) -> Any:
    keep = W % 3 == 0
    rank = np.cumsum(keep, 1) - 1
    return np.where(keep, (W * keep).sum(1, keepdims=True) + 100000 * rank, -1)


def labelled(v: Any, out: Any) -> Any:
    same = W[:, :, None] % 4 == W[:, None, :] % 4
    big = W > 40
    twins = big[:, :, None] == big[:, None, :]
    rank = (twins & np.tri(32, k=-1, dtype=bool)).sum(2)
    return (same * W[:, None]).sum(2) * 100 + same.sum(2) + 1000000 * twins.sum(2) + rank % 2


def big(v: Any, out: Any) -> Any:
    t = v.reshape(-1, 64).astype(int)
    return np.repeat(t.sum(1) + t[:, 3] * 100000 + 10000000 * (t > 98).any(1), 64)


def stencil(a: Any, b: Any, n: int, steps: int) -> Any:
    a, b = a.astype(float), b.astype(float)
    for _ in range(steps):
        b[1:-1] = 0.5 * a[1:-1] + 0.25 * (a[:-2] + a[2:])
        a, b = b, a
    return (a, b) if steps % 2 == 0 else (b, a)


def gradient(m: Any, x: Any, r: Any, p: Any, *_: Any) -> Any:
    x, r, p = x.astype(float), r.astype(float), p.astype(float)
    for _ in range(3):
        q = m @ p
        alpha = r @ r / (p @ q)
        x, s = x + alpha * p, r - alpha * q
        p, r = s + s @ s / (r @ r) * p, s
    return x


S = np.array(R.standard_normal((48, 48)))
SPD = (S @ S.T / 48 + 2 * np.eye(48)).astype(F)
RIGHT = f32(48)

BASIC = [
    *(Case(f"tiles_{t}", [V, zeros(256 // t)], lambda v, o, t=t: v.reshape(-1, t).sum(1), [1], 2) for t in (32, 16, 4, 1)),
    Case("tile_votes", [V, OUT], votes, [1], 2),
    Case("tile_reduces", [V, X, OUT, zeros(256, dtype=F)], reduces, [2, 3], 2, atol=1e-5),
    Case("tile_scans", [V, OUT], scans, [1], 2),
    Case("coalesced", [V, OUT, zeros(1), 250], lambda v, o, c, n: [(v[:n] > 50).sum()], [2], 2),
    Case("coalesced_reduce", [V, OUT], coalesced_reduce, [1], 2),
    Case("labelled", [V, OUT], labelled, [1], 2),
    Case("big_tile", [V, OUT], big, [1], 1, 256),
    Case("block_group", [V, OUT], lambda v, o: v.reshape(2, 128)[:, ::-1], [1], 2, smem=512),
    Case("invoked", [OUT], lambda o: 42 + np.arange(256) // 32 % 4, [0], 2),
    Case("copied", [V, OUT], lambda v, o: v.reshape(2, 128)[:, ::-1], [1], 2, smem=512),
    Case("copied_stages", [f32(256, 4), zeros(256, 4, dtype=F), 4], lambda x, *_: x.reshape(4, 64, 4)[:, ::-1][..., [1, 0, 3, 2]], [1], 1, 64),
    Case("grid_sum", [f32(2000), zeros(4, dtype=F), zeros(1, dtype=F), 2000], lambda x, *_: [x.sum(dtype=float)], [2], 4, 128, atol=1e-3),
    Case("grid_stencil", [X, X.copy(), 250, 3], stencil_ := (lambda a, b, n, s: tuple(np.append(u, v[n:]) for u, v in zip(stencil(a[:n], b[:n], n, s), (a, b), strict=True))), [0, 1], 4, 64, atol=1e-5),
    Case("grid_gradient", [SPD, zeros(48, dtype=F), RIGHT, RIGHT.copy(), zeros(48, dtype=F), zeros(9, dtype=np.float64), 48, 3], gradient, [1], 2, 32, atol=1e-3),
    Case("updates", [zeros(2), V], lambda g, v: [v.sum(), v.max()], [0], 2),
]  # fmt: skip
CLUSTERS = [
    Case("cluster_histogram", [i32(1000, high=256), zeros(256, dtype=np.uint32), 1000, 256], lambda v, *_: np.bincount(v, minlength=256), [1], 8, 64, 4, 256),
    Case("cluster_exchange", [f32(512), zeros(512, dtype=F)], lambda x, o: np.roll(x.reshape(2, 4, 64), -1, 1)[:, :, ::-1], [1], 8, 64, 4),
    Case("cluster_reduce", [f32(1024), zeros(2, dtype=F)], lambda x, o: x.astype(float).reshape(2, 512).sum(1), [1], 16, 64, 8, atol=1e-4),
]  # fmt: skip
CASES = BASIC + CLUSTERS
