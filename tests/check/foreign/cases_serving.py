"""Kernels in the ways of libraries that train and serve models: norms, caches, sampling, experts, weights of 4 bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .case import Case
from .cases_samples import F, R, f32, i32, u32

D, H, B16 = np.float64, np.float16, ml_dtypes.bfloat16


def halves(*shape: int) -> Any:
    return R.standard_normal(shape).astype(H)


def floats(*shape: int) -> Any:
    return np.zeros(shape, F)


def bf16s(*shape: int) -> Any:
    return R.standard_normal(shape).astype(B16)


def layernorm_rows(out: Any, mean: Any, rstd: Any, x: Any, w: Any, b: Any, n: int, c: int) -> Any:
    x = x.astype(D)
    m, s = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5)
    return (x - m[:, None]) * s[:, None] * w + b, m, s


def fused_residual(residual: Any, normed: Any, a: Any, w: Any, c: int) -> Any:
    v = residual.astype(D) + a.astype(D)
    return v, v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-6) * w


def softmax_causal(out: Any, x: Any, scale: float, n: int, t: int) -> Any:
    x = np.where(np.tri(t, dtype=bool), x.astype(D) * scale, -np.inf)
    e = np.exp(x - x.max(2, keepdims=True))
    return e / e.sum(2, keepdims=True)


def turned(x: Any, positions: Any, table: Any, neox: int) -> Any:
    half = x.shape[2] // 2
    c, s = (table[positions].astype(D)[:, None, part] for part in (slice(half), slice(half, None)))
    x = x.astype(D)
    at = (slice(half), slice(half, None)) if neox else (slice(0, None, 2), slice(1, None, 2))
    a, b, y = x[..., at[0]], x[..., at[1]], x.copy()
    y[..., at[0]], y[..., at[1]] = a * c - b * s, b * c + a * s
    return y


def rotary(positions: Any, q: Any, k: Any, table: Any, dim: int, qh: int, kh: int, neox: int) -> Any:
    return turned(q, positions, table, neox), turned(k, positions, table, neox)


def cache_write(key: Any, value: Any, kc: Any, vc: Any, slots: Any, heads: int, dim: int, size: int) -> Any:
    for t, slot in enumerate(slots.tolist()):
        if slot >= 0:
            kc[slot // size, :, :, slot % size] = key[t].reshape(heads, dim // 8, 8)
            vc[slot // size, :, :, slot % size] = value[t]
    return kc, vc


def paged_attention(out: Any, q: Any, kc: Any, vc: Any, tables: Any, lengths: Any, pages: int) -> Any:
    out = out.astype(D)
    for s, n in enumerate(lengths):
        for h in range(q.shape[1]):
            k, v = (c[tables[s], h].reshape(-1, 64)[:n].astype(D) for c in (kc, vc))
            p = np.exp(k @ q[s, h].astype(D) / 8)
            out[s, h] = p / p.sum() @ v
    return out


def split_decode(q: Any, k: Any, v: Any, parts: Any, stats: Any, arrived: Any, out: Any, t: int, splits: int) -> Any:
    p = np.exp(np.einsum("htd,hd->ht", k.astype(D), q.astype(D)))
    return np.einsum("ht,htd->hd", p / p.sum(1, keepdims=True), v.astype(D)), 0 * arrived


def align_experts(ids: Any, sorted_: Any, of: Any, total: Any, n: int, experts: int, size: int) -> Any:
    at = 0
    for e in range(experts):
        mine = np.flatnonzero(ids == e)
        sorted_[at : at + len(mine)] = mine
        blocks = -(-len(mine) // size)
        of[at // size : at // size + blocks] = e
        at += blocks * size
    return sorted_, of, np.array([at])


def route_topk(logits: Any, weights: Any, picks: Any, tokens: int, k: int) -> Any:
    p = np.exp(logits.astype(D))
    p /= p.sum(1, keepdims=True)
    at = np.argsort(-p, 1, kind="stable")[:, :k]
    return np.take_along_axis(p, at, 1), at


def sample_top_p(probs: Any, draws: Any, out: Any, p: float, vocabulary: int, rounds: int) -> Any:
    for row, mine in enumerate(probs):
        pivot, q = F(-1), F(1)
        for n in range(rounds):
            kept = np.where(mine > pivot, mine, 0).astype(D)
            token = int(np.argmax(np.cumsum(kept) > float(draws[n, row]) * float(q)))
            pivot = max(pivot, mine[token])
            q = np.where(mine > pivot, mine, 0).astype(D).sum()
            if q < p:
                break
        out[row] = token
    return out


def dequant_gemv(w: Any, scale: Any, x: Any, y: Any, words: int) -> Any:
    shifts = np.array([0, 16, 4, 20, 8, 24, 12, 28], np.uint32)
    q = (w[..., None] >> shifts & 15).astype(D).reshape(len(w), -1) - 8
    return (q * scale[:, :1].astype(D)) @ x.reshape(-1).astype(D)


def striped_product(a: Any, b: Any, c: Any, locks: Any, k: int, parts: int) -> Any:
    return a.astype(D) @ b.astype(D), locks


def suppress_masks(boxes: Any, masks: Any, n: int, most: float) -> Any:
    low, high = np.maximum(boxes[:, None, :2], boxes[None, :, :2]), np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    both = np.maximum(high - low, F(0)).prod(2)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    hit = (both > F(most) * (area[:, None] + area - both)) & (np.arange(n)[:, None] < np.arange(n))
    return (np.pad(hit, ((0, 0), (0, -n % 64))).reshape(n, -1, 64) << np.arange(64, dtype=np.uint64)).sum(
        2, dtype=np.uint64
    )


def suppress_gather(masks: Any, keep: Any, n: int) -> Any:
    gone = np.zeros(masks.shape[1] * 64, bool)
    for i in range(n):
        keep[i] = not gone[i]
        if keep[i]:
            gone |= (
                np.repeat(masks[i], 64) >> np.tile(np.arange(64, dtype=np.uint64), masks.shape[1]) & np.uint64(1) != 0
            )
    return keep


def embedding_grad(ids: Any, grads: Any, table: Any, pairs: int, n: int) -> Any:
    table = table.astype(D)
    np.add.at(table, ids, grads.astype(D))
    return table


def bias_grad(bias: Any, dout: Any, scratch: Any, flag: Any, rows: int, c: int) -> Any:
    return bias + dout.astype(D).sum(0), scratch, flag


def noise(n: int, seed: int) -> Any:
    z = np.uint32(seed) + np.arange(n, dtype=np.uint32) * np.uint32(198491317) + np.uint32(1)
    for shift, factor in ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB)):
        z = (z ^ z >> np.uint32(shift)) * np.uint32(factor)
    return z ^ z >> np.uint32(14)


def adamw(
    w: Any,
    master: Any,
    g: Any,
    m: Any,
    v: Any,
    n: int,
    lr: float,
    b1: float,
    b2: float,
    c1: float,
    c2: float,
    seed: int,
) -> Any:
    g = g.astype(D)
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    made = master - lr * (m / c1 / (np.sqrt(v / c2) + 1e-8) + 0.1 * master.astype(D))
    return made, m, v


def cell_bounds(hashes: Any, begin: Any, end: Any, n: int) -> Any:
    cells = np.arange(len(begin))
    first, last = np.searchsorted(hashes, cells), np.searchsorted(hashes, cells, "right")
    return np.where(first < last, first, begin), np.where(first < last, last, end)


def conjugate_gradients(x: Any, r: Any, p: Any, ap: Any, dots: Any, n: int, steps: int) -> Any:
    a = 2.5 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    return np.linalg.solve(a, r.astype(D))


def lattice(spot: Any, out: Any, steps: int, up: float, rate: float, strike: float) -> Any:
    s, up = spot.astype(D)[:, None], float(F(up))
    p, d = (np.exp(rate) - 1 / up) / (up - 1 / up), np.exp(-rate)
    value = np.maximum(strike - s * up ** (2.0 * np.arange(steps + 1) - steps), 0)
    for n in range(steps, 0, -1):
        value = d * (p * value[:, 1:] + (1 - p) * value[:, :-1])
        value = np.maximum(value, strike - s * up ** (2.0 * np.arange(n) - (n - 1)))
    return value[:, 0]


def onesweep(keys: Any, out: Any, starts: Any, state: Any, ticket: Any, shift: int) -> Any:
    return keys[np.argsort(keys >> shift & 15, kind="stable")]


def smith_waterman(a: Any, b: Any, best: Any, n: int) -> Any:
    h = np.zeros((n + 1, n + 1), int)
    for i in range(n):
        for j in range(n):
            h[i + 1, j + 1] = max(0, h[i, j] + (3 if a[i] == b[j] else -2), h[i, j + 1] - 1, h[i + 1, j] - 1)
    return np.array([h.max()])


X, T = f32(13, 200), 48
TABLES = np.stack([R.permutation(12)[:6] for _ in range(3)]).astype(np.int32)
PROBS = R.random((3, 300)).astype(F) ** 8
PROBS /= PROBS.sum(1, keepdims=True)
IDS = i32(150, low=0, high=6)
KEYS = u32(640)
DIGITS = KEYS >> 4 & 15
STARTS = np.searchsorted(np.sort(DIGITS), np.arange(16)).astype(np.uint32)
CORNERS = R.random((150, 2)).astype(F) * 4
BOXES = np.concatenate([CORNERS, CORNERS + R.random((150, 2)).astype(F) + F(0.5)], 1)
MASKS = suppress_masks(BOXES, None, 150, 0.3)
POSITIONS = i32(5, low=0, high=40)
HASHES = np.sort(i32(300, low=0, high=50)).astype(np.uint32)
SLOTS = np.where(np.arange(9) % 4 == 3, -1, R.permutation(4 * 8)[:9])
MASTER = f32(300)
TEXTS = [R.integers(0, 4, 60).astype(np.int8) for _ in range(2)]

CASES = [
    Case("layernorm_rows", (floats(13, 200), floats(13), floats(13), X, f32(200), f32(200), 13, 200), layernorm_rows, (0, 1, 2), 4, 128, rtol=1e-4, atol=1e-5),
    Case("fused_residual", (bf16s(5, 300), np.zeros((5, 300), B16), bf16s(5, 300), f32(300), 300), fused_residual, (0, 1), 5, 128, smem=1200, rtol=1e-2, atol=1e-2),
    Case("softmax_causal", (floats(2, T, T), f32(2, T, T), 0.3, 2, T), softmax_causal, (0,), 24, 128, rtol=1e-4, atol=1e-6),
    *(Case("rotary", (POSITIONS, halves(5, 4, 32), halves(5, 2, 32), halves(40, 32), 32, 4, 2, n), rotary, (1, 2), 5, 96, rtol=5e-3, atol=5e-3) for n in (0, 1)),
    Case("cache_write", (halves(9, 2, 16), halves(9, 2, 16), np.zeros((4, 2, 2, 8, 8), H), np.zeros((4, 2, 16, 8), H), SLOTS, 2, 16, 8), cache_write, (2, 3), 9, 64),
    Case("paged_attention", (floats(3, 2, 64), f32(3, 2, 64), f32(12, 2, 16, 64), f32(12, 2, 16, 64), TABLES, np.array([96, 33, 1], np.int32), 6), paged_attention, (0,), (2, 3), 128, smem=2048, rtol=1e-4, atol=1e-5),
    Case("split_decode", (0.2 * f32(2, 64), f32(2, 320, 64), f32(2, 320, 64), floats(10, 64), floats(10, 2), np.zeros(2, np.uint32), floats(2, 64), 320, 5), split_decode, (6, 5), (5, 2), 64, rtol=1e-4, atol=1e-5),
    Case("align_experts", (IDS, np.full(400, -1, np.int32), np.full(100, -1, np.int32), np.zeros(1, np.int32), 150, 6, 16), align_experts, (1, 2, 3), 1, 32, smem=4 * (33 * 6 + 7)),
    Case("route_topk", (f32(50, 32), floats(50, 4), np.zeros((50, 4), np.int32), 50, 4), route_topk, (1, 2), 4, 128, rtol=1e-5, atol=1e-6),
    Case("sample_top_p", (PROBS, R.random((20, 3)).astype(F), np.zeros(3, np.int32), 0.7, 300, 20), sample_top_p, (2,), 3, 128),
    Case("dequant_gemv", (u32(12, 40), halves(12, 2), halves(40, 4, 2), floats(12), 40), dequant_gemv, (3,), 3, 128, rtol=2e-2, atol=0.3),
    Case("striped_product", (halves(16, 192), halves(192, 64), floats(16, 64), np.zeros(1, np.int32), 192, 4), striped_product, (2, 3), 4, 128, rtol=1e-4, atol=1e-4),
    Case("suppress_masks", (BOXES, np.zeros((150, 3), np.uint64), 150, 0.3), suppress_masks, (1,), (3, 3), 64),
    Case("suppress_gather", (MASKS, np.zeros(150, bool), 150), suppress_gather, (1,), 1, 64, smem=24),
    Case("embedding_grad", (i32(60, low=0, high=5), halves(60, 8, 2), np.zeros((5, 8, 2), H), 8, 60), embedding_grad, (2,), 2, 128, rtol=2e-2, atol=3e-2),
    Case("bias_grad", (f32(64), f32(100, 64), floats(64), np.zeros(2, np.uint32), 100, 64), bias_grad, (0, 2, 3), (2, 5), (32, 8), rtol=1e-4, atol=1e-4),
    Case("adamw", (MASTER.astype(B16), MASTER, bf16s(300), 0.1 * f32(300), abs(f32(300)), 300, 1e-3, 0.9, 0.99, 0.1, 0.01, 7), adamw, (1, 3, 4), 3, 128, rtol=1e-5, atol=1e-6),
    Case("cell_bounds", (HASHES, np.full(50, 999, np.uint32), np.full(50, 999, np.uint32), 300), cell_bounds, (1, 2), 5, 64, smem=4 * 65),
    Case("conjugate_gradients", (floats(160), f32(160), floats(160), floats(160), np.zeros(61), 160, 30), conjugate_gradients, (0,), 2, 64, rtol=1e-4, atol=1e-4),
    Case("lattice", (np.array([30, 36, 50], F), floats(3), 60, 1.03, 0.001, 40.0), lattice, (1,), 3, 64, rtol=1e-3, atol=1e-3),
    Case("onesweep", (KEYS, np.zeros(640, np.uint32), STARTS, np.zeros(5 * 16, np.uint32), np.zeros(1, np.uint32), 4), onesweep, (1,), 5, 128),
    Case("smith_waterman", (*TEXTS, np.zeros(1, np.int32), 60), smith_waterman, (2,), 1, 64, smem=4 * 183),
]  # fmt: skip
