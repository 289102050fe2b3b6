"""Triton's kernels on odd sizes that change their arrays in place, most with fewer elements than lanes.

A block with fewer elements than the program has lanes lies in several warps: each of them loads it, and one stores it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from .triton_kernels import f16, f32

R = np.random.default_rng(17)


@triton.jit
def rope_halves(x, cos, sin, HALF: tl.constexpr, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    here = x + row * 2 * HALF + i
    c, s = tl.load(cos + row * HALF + i, mask=i < HALF), tl.load(sin + row * HALF + i, mask=i < HALF)
    low, high = tl.load(here, mask=i < HALF), tl.load(here + HALF, mask=i < HALF)
    tl.store(here, low * c - high * s, mask=i < HALF)
    tl.store(here + HALF, high * c + low * s, mask=i < HALF)


def _rotary(half: int, block: int, warps: int) -> Any:
    x, angle = f32(3, 2 * half), f32(3, half)
    c, s = np.cos(angle), np.sin(angle)
    low, high = x[:, :half].astype(float), x[:, half:].astype(float)
    want = np.concatenate([low * c - high * s, high * c + low * s], axis=1)
    rope_halves[(3,)](x, c, s, HALF=half, B=block, num_warps=warps)
    return x, want, 1e-5


def rope() -> Any:
    return [
        _rotary(half, block, warps)
        for half, block, warps in ((16, 16, 4), (32, 32, 4), (13, 16, 8), (48, 64, 4), (64, 64, 2))
    ]


@triton.jit
def rope_pairs(x, cos, sin, N: tl.constexpr, B: tl.constexpr):
    """Neighbours are a pair; a program has some heads of one position."""
    head, i = tl.arange(0, 4), tl.arange(0, B)
    here = x + tl.program_id(0) * 4 * N + head[:, None] * N + i[None, :]
    even, odd = tl.split(tl.reshape(tl.load(here), (4, B // 2, 2)))
    j = tl.program_id(0) * (B // 2) + tl.arange(0, B // 2)[None, :]
    c, s = tl.load(cos + j), tl.load(sin + j)
    tl.store(here, tl.reshape(tl.join(even * c - odd * s, odd * c + even * s), (4, B)))


def rope_of_neighbours() -> Any:
    x, angle = f32(2, 4, 8), f32(2, 1, 4)
    c, s = np.cos(angle), np.sin(angle)
    even, odd = x[..., ::2].astype(float), x[..., 1::2].astype(float)
    want = np.stack([even * c - odd * s, odd * c + even * s], axis=-1).reshape(x.shape)
    rope_pairs[(2,)](x, c, s, N=8, B=8)
    return [(x, want, 1e-5)]


@triton.jit
def softmax_in_place(x, n, B: tl.constexpr):
    i = tl.arange(0, B)
    here = x + tl.program_id(0) * n + i
    v = tl.load(here, mask=i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(here, e / tl.sum(e, axis=0), mask=i < n)


def softmax_of_short_rows() -> Any:
    found: list[Any] = []
    for n, block, warps in ((7, 8, 4), (20, 32, 4), (32, 32, 8), (50, 64, 4), (100, 128, 8)):
        x = f32(5, n)
        e = np.exp(x.astype(float))
        softmax_in_place[(5,)](x, n, B=block, num_warps=warps)
        found.append((x, e / e.sum(1, keepdims=True), 1e-6))
    return found


@triton.jit
def norm_in_place(x, w, n, eps, B: tl.constexpr):
    i = tl.arange(0, B)
    here = x + tl.program_id(0) * n + i
    v = tl.load(here, mask=i < n, other=0.0)
    scale = tl.rsqrt(tl.sum(v * v, axis=0) / n + eps)
    tl.store(here, v * scale * tl.load(w + i, mask=i < n), mask=i < n)


def rms_norm() -> Any:
    x, w = f32(6, 17), f32(17)
    want = x / np.sqrt((x.astype(float) ** 2).mean(1, keepdims=True) + 1e-5) * w
    norm_in_place[(6,)](x, w, 17, 1e-5, B=32)
    return [(x, want, 1e-5)]


@triton.jit
def running(x, n, B: tl.constexpr):
    i = tl.arange(0, B)
    here = x + tl.program_id(0) * n + i
    tl.store(here, tl.cumsum(tl.load(here, mask=i < n, other=0.0), axis=0), mask=i < n)


def cumulative_sums() -> Any:
    x = f32(4, 29)
    want = np.cumsum(x.astype(float), axis=1)
    running[(4,)](x, 29, B=32)
    return [(x, want, 1e-5)]


@triton.jit
def sorted_in_place(x, B: tl.constexpr):
    here = x + tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(here)
    tl.debug_barrier()
    tl.store(here, tl.sort(v))


def sorts() -> Any:
    x = f32(3, 16)
    want = np.sort(x, axis=1)
    sorted_in_place[(3,)](x, B=16)
    return [(x, want, 0)]


@triton.jit
def clipped(x, n, low, high, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n)
    tl.store(x + i, tl.minimum(tl.maximum(v, low), high), mask=i < n)


def clips_halves() -> Any:
    x, few = f16(37), f16(3)
    want, less = np.clip(x.astype(float), -0.5, 0.5), np.clip(few.astype(float), -0.5, 0.5)
    clipped[(3,)](x, 37, -0.5, 0.5, B=16)
    clipped[(1,)](few, 3, -0.5, 0.5, B=4, num_warps=8)
    return [(x, want, 1e-6), (few, less, 1e-6)]


@triton.jit
def adam(p, g, m, v, n, lr, b1, b2, eps, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    some = i < n
    grad = tl.load(g + i, mask=some)
    first = b1 * tl.load(m + i, mask=some) + (1 - b1) * grad
    second = b2 * tl.load(v + i, mask=some) + (1 - b2) * grad * grad
    tl.store(m + i, first, mask=some)
    tl.store(v + i, second, mask=some)
    tl.store(p + i, tl.load(p + i, mask=some) - lr * first / (tl.sqrt(second) + eps), mask=some)


def optimiser() -> Any:
    p, g, m, v = (np.abs(f32(45)) for _ in range(4))
    first, second = 0.9 * m + 0.1 * g.astype(float), 0.99 * v + 0.01 * g.astype(float) ** 2
    want = p - 0.1 * first / (np.sqrt(second) + 1e-6)
    adam[(3,)](p, g, m, v, 45, 0.1, 0.9, 0.99, 1e-6, B=16)
    return [(m, first, 1e-5), (v, second, 1e-5), (p, want, 1e-5)]


@triton.jit
def columns_scaled(x, M: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Each column is divided by its sum, in a tile with fewer elements than lanes."""
    i, j = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    here, some = x + i[:, None] * N + j[None, :], (i[:, None] < M) & (j[None, :] < N)
    v = tl.load(here, mask=some, other=0.0)
    tl.store(here, v / tl.sum(v, axis=0)[None, :], mask=some)


def scales() -> Any:
    found: list[Any] = []
    for m, n, rows, columns in ((5, 3, 8, 4), (8, 8, 8, 8), (3, 30, 4, 32)):
        x = np.abs(f32(m, n)) + 1
        want = x / x.astype(float).sum(0)
        columns_scaled[(1,)](x, m, n, ROWS=rows, COLUMNS=columns)
        found.append((x, want, 1e-5))
    return found


@triton.jit
def accumulated(c, a, b, N: tl.constexpr, K: tl.constexpr):
    i, k = tl.arange(0, N), tl.arange(0, K)
    left, right = tl.load(a + i[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + i[None, :])
    here = c + i[:, None] * N + i[None, :]
    tl.store(here, tl.load(here) + tl.dot(left, right))


def product_in_place() -> Any:
    a, b, c = f16(16, 16), f16(16, 16), f32(16, 16)
    want = c + a.astype(float) @ b.astype(float)
    accumulated[(1,)](c, a, b, N=16, K=16, num_warps=8)
    return [(c, want, 1e-3)]


@triton.jit
def steps_in_place(x, n, count, B: tl.constexpr):
    """Some steps of one array, each of which reads what the last one stored."""
    i = tl.arange(0, B)
    for step in range(count):
        v = tl.load(x + i, mask=i < n)
        tl.store(x + i, v * 0.5 + step, mask=i < n)


def steps() -> Any:
    x = f32(11)
    want = x.astype(float)
    for step in range(6):
        want = want * 0.5 + step
    steps_in_place[(1,)](x, 11, 6, B=16)
    return [(x, want, 1e-5)]


@triton.jit
def selected(x, y, n, B: tl.constexpr):
    """Elements change where a mask in memory says so, and the mask changes, too."""
    i = tl.arange(0, B)
    flag, v = tl.load(y + i, mask=i < n, other=0), tl.load(x + i, mask=i < n)
    tl.store(x + i, tl.where(flag > 0, v * 2, v), mask=i < n)
    tl.store(y + i, 1 - flag, mask=i < n)


def selects() -> Any:
    x, y = f32(19), R.integers(0, 2, 19).astype(np.int32)
    want, other = np.where(y > 0, x * 2, x), 1 - y
    selected[(1,)](x, y, 19, B=32)
    return [(x, want, 0), (y, other, 0)]


@triton.jit
def state_step(state, x, dt, out, N: tl.constexpr):
    """One step of a state space model: the state changes in place, and the program sums it."""
    head, i = tl.program_id(0), tl.arange(0, N)
    decay, here = tl.exp(-tl.load(dt + head)), state + head * N + i
    now = tl.load(here) * decay + tl.load(x + head)
    tl.store(here, now)
    tl.store(out + head, tl.sum(now, axis=0))


def state_space() -> Any:
    state, x, dt, out = f32(4, 16), f32(4), np.abs(f32(4)), np.zeros(4, np.float32)
    now = state.astype(float) * np.exp(-dt.astype(float))[:, None] + x[:, None]
    state_step[(4,)](state, x, dt, out, N=16)
    return [(state, now, 1e-5), (out, now.sum(1), 1e-4)]


@triton.jit
def cache_update(cache, new, at, N: tl.constexpr):
    """A program appends a row to its cache, and scales the row before it."""
    b, i = tl.program_id(0), tl.arange(0, N)
    position = tl.load(at + b)
    row = cache + b * 4 * N + position * N + i
    tl.store(row - N, tl.load(row - N) * 0.5)
    tl.store(row, tl.load(new + b * N + i))


def appends() -> Any:
    cache, new, at = f32(3, 4, 8), f32(3, 8), np.array([1, 3, 2], np.int32)
    want = cache.copy()
    for b, position in enumerate(at):
        want[b, position - 1] *= 0.5
        want[b, position] = new[b]
    cache_update[(3,)](cache, new, at, N=8)
    return [(cache, want, 0)]


@triton.jit
def quantised(x, scale, n, B: tl.constexpr):
    """Each row is divided by its largest magnitude, rounded, and multiplied again."""
    row, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * n + i, mask=i < n, other=0.0)
    most = tl.max(tl.abs(v), axis=0) / 127
    tl.store(scale + row, most)
    tl.store(x + row * n + i, tl.floor(v / most + 0.5) * most, mask=i < n)


def fake_quantisation() -> Any:
    x, scale = f32(5, 24), np.zeros(5, np.float32)
    most = np.abs(x).max(1, keepdims=True) / np.float32(127)
    want = np.floor(x / most + np.float32(0.5)) * most.astype(float)
    quantised[(5,)](x, scale, 24, B=32)
    return [(scale, most[:, 0], 1e-6), (x, want, 1e-5)]


EVERYWHERE = (
    rope, rope_of_neighbours, softmax_of_short_rows, rms_norm, cumulative_sums, sorts, clips_halves, optimiser, scales,
    product_in_place, steps, selects, state_space, appends, fake_quantisation,
)  # fmt: skip
HOPPER = ()
