"""Kernels of the kinds that Triton's tutorials teach with. `LAUNCHES`: functions that launch one and give pairs (result, wanted, tolerance)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import triton
import triton.language as tl

R = np.random.default_rng(5)


def f32(*shape: int) -> Any:
    return R.standard_normal(shape).astype(np.float32)


def f16(*shape: int) -> Any:
    return f32(*shape).astype(np.float16)


@triton.jit
def softmax_rows(out, x, rows, n, B: tl.constexpr, stages: tl.constexpr):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=stages):
        i = tl.arange(0, B)
        v = tl.load(x + row * n + i, mask=i < n, other=-float("inf"))
        e = tl.exp(v - tl.max(v, axis=0))
        tl.store(out + row * n + i, e / tl.sum(e, axis=0), mask=i < n)


def softmax() -> Any:
    x = f32(13, 200)
    out = np.zeros_like(x)
    softmax_rows[(4,)](out, x, 13, 200, B=256, stages=3)
    e = np.exp(x.astype(float))
    return [(out, e / e.sum(1, keepdims=True), 1e-6)]


@triton.jit
def dropped(x, out, n, p, seed, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n)
    keep = tl.rand(seed, i) > p
    tl.store(out + i, tl.where(keep, v / (1 - p), 0.0), mask=i < n)


def dropout() -> Any:
    x = f32(1000)
    out, again = np.zeros_like(x), np.zeros_like(x)
    dropped[(4,)](x, out, 1000, 0.25, 123, B=256)
    dropped[(8,)](x, again, 1000, 0.25, 123, B=128)
    assert 0.15 < (out == 0).mean() < 0.35
    return [(out, np.where(out != 0, x / 0.75, 0), 1e-5), (again, out, 0)]


@triton.jit
def norm_forward(x, y, w, b, means, rstds, n, eps, B: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([B], tl.float32)
    for at in range(0, n, B):
        i = at + tl.arange(0, B)
        total += tl.load(x + row * n + i, mask=i < n, other=0.0)
    mean = tl.sum(total, axis=0) / n
    total = tl.zeros([B], tl.float32)
    for at in range(0, n, B):
        i = at + tl.arange(0, B)
        v = tl.where(i < n, tl.load(x + row * n + i, mask=i < n, other=0.0) - mean, 0.0)
        total += v * v
    rstd = 1 / tl.sqrt(tl.sum(total, axis=0) / n + eps)
    tl.store(means + row, mean)
    tl.store(rstds + row, rstd)
    for at in range(0, n, B):
        i = at + tl.arange(0, B)
        m = i < n
        v = (tl.load(x + row * n + i, mask=m) - mean) * rstd
        tl.store(y + row * n + i, v * tl.load(w + i, mask=m) + tl.load(b + i, mask=m), mask=m)


@triton.jit
def norm_backward(dx, dy, dw, db, x, w, means, rstds, locks, n, G: tl.constexpr, B: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, B)
    m = i < n
    group = row % G
    v = tl.load(x + row * n + i, mask=m, other=0).to(tl.float32)
    g = tl.load(dy + row * n + i, mask=m, other=0).to(tl.float32)
    rstd = tl.load(rstds + row)
    xhat = (v - tl.load(means + row)) * rstd
    wdy = tl.load(w + i, mask=m, other=0) * g
    xhat, wdy = tl.where(m, xhat, 0.0), tl.where(m, wdy, 0.0)
    c1, c2 = tl.sum(xhat * wdy, axis=0) / n, tl.sum(wdy, axis=0) / n
    tl.store(dx + row * n + i, (wdy - (xhat * c1 + c2)) * rstd, mask=m)
    pw, pb = g * xhat, g
    while tl.atomic_cas(locks + group, 0, 1) == 1:
        pass
    count = tl.load(locks + G + group)
    if count == 0:
        tl.atomic_xchg(locks + G + group, 1)
    else:
        pw += tl.load(dw + group * n + i, mask=m)
        pb += tl.load(db + group * n + i, mask=m)
    tl.store(dw + group * n + i, pw, mask=m)
    tl.store(db + group * n + i, pb, mask=m)
    tl.debug_barrier()
    tl.atomic_xchg(locks + group, 0)


def layer_norm() -> Any:
    n, rows, groups = 96, 8, 2
    x, w, b, dy = f32(rows, n), f32(n), f32(n), f32(rows, n)
    y, dx, means, rstds = np.zeros_like(x), np.zeros_like(x), np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    norm_forward[(rows,)](x, y, w, b, means, rstds, n, 1e-5, B=64)
    dw, db, locks = np.zeros((groups, n), np.float32), np.zeros((groups, n), np.float32), np.zeros(2 * groups, np.int32)
    norm_backward[(rows,)](dx, dy, dw, db, x, w, means, rstds, locks, n, G=groups, B=128)
    d = x.astype(float)
    rstd = 1 / np.sqrt(d.var(1, keepdims=True) + 1e-5)
    xhat = (d - d.mean(1, keepdims=True)) * rstd
    wdy = w * dy.astype(float)
    want = (wdy - (xhat * (xhat * wdy).mean(1, keepdims=True) + wdy.mean(1, keepdims=True))) * rstd
    return [
        (y, xhat * w + b, 1e-4),
        (dx, want, 1e-4),
        (dw.sum(0), (dy * xhat).sum(0), 1e-3),
        (db.sum(0), dy.sum(0), 1e-3),
    ]


@triton.jit
def swizzled(
    a, b, c, M, N, K, act: tl.constexpr, M_: tl.constexpr, N_: tl.constexpr, K_: tl.constexpr, G: tl.constexpr
):
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, M_), tl.cdiv(N, N_)
    group = pid // (G * columns)
    first = group * G
    size = min(rows - first, G)
    row = first + (pid % (G * columns)) % size
    column = (pid % (G * columns)) // size
    i, j, k = (row * M_ + tl.arange(0, M_)) % M, (column * N_ + tl.arange(0, N_)) % N, tl.arange(0, K_)
    pa, pb = a + i[:, None] * K + k[None, :], b + k[:, None] * N + j[None, :]
    total = tl.zeros((M_, N_), tl.float32)
    for at in range(tl.cdiv(K, K_)):
        left = tl.load(pa, mask=k[None, :] < K - at * K_, other=0.0)
        right = tl.load(pb, mask=k[:, None] < K - at * K_, other=0.0)
        total = tl.dot(left, right, total)
        pa += K_
        pb += K_ * N
    if act == "leaky":
        total = tl.where(total >= 0, total, 0.01 * total)
    i, j = row * M_ + tl.arange(0, M_), column * N_ + tl.arange(0, N_)
    tl.store(c + i[:, None] * N + j[None, :], total.to(tl.float16), mask=(i[:, None] < M) & (j[None, :] < N))


def matmul() -> Any:
    a, b = f16(112, 80), f16(80, 96)
    c = np.zeros((112, 96), np.float16)
    swizzled[(4,)](a, b, c, 112, 96, 80, act="leaky", M_=64, N_=64, K_=32, G=2, num_stages=3, num_warps=4)
    want = a.astype(float) @ b.astype(float)
    return [(c, np.where(want >= 0, want, 0.01 * want), 3e-2)]


@triton.jit
def persistent(
    a, b, c, M, N, K, M_: tl.constexpr, N_: tl.constexpr, K_: tl.constexpr, W: tl.constexpr, F: tl.constexpr
):
    da = tl.make_tensor_descriptor(a, [M, K], [K, 1], [M_, K_])
    db = tl.make_tensor_descriptor(b, [N, K], [K, 1], [N_, K_])
    dc = tl.make_tensor_descriptor(c, [M, N], [N, 1], [M_, N_])
    columns = tl.cdiv(N, N_)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, M_) * columns, tl.num_programs(0), flatten=F, warp_specialize=W):
        i, j = tile // columns * M_, tile % columns * N_
        total = tl.zeros((M_, N_), tl.float32)
        for k in range(0, K, K_):
            total = tl.dot(da.load([i, k]), db.load([j, k]).T, total)
        dc.store([i, j], total.to(tl.float16))


def allocator(size: int, alignment: int, stream: Any) -> Any:
    return Buffer(size)


class Buffer:
    """Memory for descriptors, as Triton's allocator gives it."""

    def __init__(self, size: int) -> None:
        self.array = np.zeros(size, np.uint8)
        self.__array_interface__ = self.array.__array_interface__

    def data_ptr(self) -> int:
        return self.array.ctypes.data


def tma_matmul(specialised: bool = False, flat: bool = False, **more: Any) -> Any:
    triton.set_allocator(allocator)
    a, b = f16(256, 128), f16(128, 128)
    c = np.zeros((256, 128), np.float16)
    persistent[(3,)](a, b, c, 256, 128, 128, M_=128, N_=64, K_=64, W=specialised, F=flat, **{"num_stages": 3, **more})
    return [(c, a.astype(float) @ b.astype(float).T, 3e-2)]


def tma_flat() -> Any:
    return tma_matmul(flat=True)


def tma_eight_warps() -> Any:
    return tma_matmul(num_warps=8)


def tma_specialised() -> Any:
    return tma_matmul(True)


@triton.jit
def attend(q, k, v, o, lse, n, scale, D: tl.constexpr, M_: tl.constexpr, N_: tl.constexpr, CAUSAL: tl.constexpr):
    start = tl.program_id(0) * M_
    base = tl.program_id(1) * n * D
    i, d = start + tl.arange(0, M_), tl.arange(0, D)
    queries = tl.load(q + base + i[:, None] * D + d[None, :])
    top = tl.full([M_], -float("inf"), tl.float32)
    total = tl.zeros([M_], tl.float32)
    acc = tl.zeros([M_, D], tl.float32)
    for at in range(0, (start + M_) if CAUSAL else n, N_):
        j = at + tl.arange(0, N_)
        keys = tl.load(k + base + j[None, :] * D + d[:, None])
        s = tl.dot(queries, keys) * scale
        if CAUSAL:
            s = tl.where(i[:, None] >= j[None, :], s, -1e6)
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.math.exp2(s - new[:, None])
        shrink = tl.math.exp2(top - new)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(p.to(tl.float16), tl.load(v + base + j[:, None] * D + d[None, :]), acc)
        top = new
    tl.store(lse + tl.program_id(1) * n + i, top + tl.math.log2(total))
    tl.store(o + base + i[:, None] * D + d[None, :], (acc / total[:, None]).to(tl.float16))


def attention(causal: bool = False) -> Any:
    q, k, v = f16(2, 128, 64), f16(2, 128, 64), f16(2, 128, 64)
    o, lse = np.zeros_like(q), np.zeros((2, 128), np.float32)
    attend[(2, 2)](q, k, v, o, lse, 128, 0.125 * 1.44269504, D=64, M_=64, N_=32, CAUSAL=causal, num_stages=2)
    s = q.astype(float) @ k.astype(float).transpose(0, 2, 1) * 0.125
    if causal:
        s = np.where(np.tri(128, dtype=bool), s, -np.inf)
    e = np.exp(s)
    return [(o, e / e.sum(2, keepdims=True) @ v.astype(float), 2e-3), (lse, np.log2(e.sum(2)), 1e-2)]


def attention_causal() -> Any:
    return attention(True)


@triton.jit
def attend_tma(q, k, v, o, n, scale, D: tl.constexpr, M_: tl.constexpr, N_: tl.constexpr, W: tl.constexpr):
    dq = tl.make_tensor_descriptor(q, [n, D], [D, 1], [M_, D])
    dk = tl.make_tensor_descriptor(k, [n, D], [D, 1], [N_, D])
    dv = tl.make_tensor_descriptor(v, [n, D], [D, 1], [N_, D])
    do = tl.make_tensor_descriptor(o, [n, D], [D, 1], [M_, D])
    start = tl.program_id(0) * M_
    queries = dq.load([start, 0])
    top = tl.full([M_], -float("inf"), tl.float32)
    total = tl.zeros([M_], tl.float32)
    acc = tl.zeros([M_, D], tl.float32)
    for at in tl.range(0, n, N_, warp_specialize=W):
        s = tl.dot(queries, dk.load([at, 0]).T) * scale
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.math.exp2(s - new[:, None])
        shrink = tl.math.exp2(top - new)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.float16), dv.load([at, 0]), acc * shrink[:, None])
        top = new
    do.store([start, 0], (acc / total[:, None]).to(tl.float16))


def attention_tma(specialised: bool = False) -> Any:
    triton.set_allocator(allocator)
    q, k, v = f16(256, 64), f16(256, 64), f16(256, 64)
    o = np.zeros_like(q)
    attend_tma[(2,)](q, k, v, o, 256, 0.125 * 1.44269504, D=64, M_=128, N_=64, W=specialised, num_stages=2)
    e = np.exp(q.astype(float) @ k.astype(float).T * 0.125)
    return [(o, e / e.sum(1, keepdims=True) @ v.astype(float), 2e-3)]


def attention_specialised() -> Any:
    return attention_tma(True)


@triton.jit
def grouped_tiles(a, b, c, starts, G, N: tl.constexpr, K: tl.constexpr, T: tl.constexpr):
    tile, last = tl.program_id(0), 0
    for g in range(G):
        low, high = tl.load(starts + g), tl.load(starts + g + 1)
        count = tl.cdiv(high - low, T) * (N // T)
        while tile >= last and tile < last + count:
            at = tile - last
            i, j, k = low + at // (N // T) * T + tl.arange(0, T), at % (N // T) * T + tl.arange(0, T), tl.arange(0, K)
            left = tl.load(a + i[:, None] * K + k[None, :], mask=i[:, None] < high, other=0.0)
            total = tl.dot(left, tl.load(b + g * K * N + k[:, None] * N + j[None, :]))
            tl.store(c + i[:, None] * N + j[None, :], total, mask=i[:, None] < high)
            tile += tl.num_programs(0)
        last += count


def grouped() -> Any:
    starts = np.array([0, 20, 20, 90, 128], np.int32)
    a, b = f16(128, 32), f16(4, 32, 64)
    c = np.zeros((128, 64), np.float32)
    grouped_tiles[(4,)](a, b, c, starts, 4, N=64, K=32, T=32)
    want = np.concatenate(
        [a[s:e].astype(float) @ b[g].astype(float) for g, (s, e) in enumerate(itertools.pairwise(starts))]
    )
    return [(c, want, 1e-3)]


@triton.jit
def split_k(a, b, c, M: tl.constexpr, N: tl.constexpr, K, K_: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.program_id(0) * K_ + tl.arange(0, K_)
    total = tl.dot(tl.load(a + i[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + j[None, :]))
    tl.atomic_add(c + i[:, None] * N + j[None, :], total, sem="relaxed")


def splits() -> Any:
    a, b, c = f16(32, 128), f16(128, 32), np.zeros((32, 32), np.float32)
    split_k[(4,)](a, b, c, M=32, N=32, K=128, K_=32)
    return [(c, a.astype(float) @ b.astype(float), 1e-3)]


@triton.jit
def added(a, b):
    return a + b


@triton.jit
def scanned(x, out, places, counts, turned, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(out + i, tl.associative_scan(v, 0, added))
    tl.store(places + i, tl.argmax(v, 0) + tl.argmin(v, 0) * 1000)
    tl.store(counts + tl.arange(0, 16), tl.histogram(v & 15, 16))
    tl.store(turned + i, tl.sort(v))


def scans() -> Any:
    x = R.permutation(512).astype(np.int32)
    out, places, counts, turned = (np.zeros(n, np.int32) for n in (512, 512, 16, 512))
    scanned[(1,)](x, out, places, counts, turned, N=512)
    return [
        (out, np.cumsum(x), 0),
        (places, np.full(512, x.argmax() + x.argmin() * 1000), 0),
        (counts, np.bincount(x & 15), 0),
        (turned, np.sort(x), 0),
    ]


@triton.jit
def reduced(x, out, most, least, N: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, N)
    v = tl.load(x + row * N + i)
    tl.atomic_add(out, tl.sum(v, axis=0))
    tl.atomic_max(most, tl.max(v, axis=0))
    tl.atomic_min(least, tl.min(v, axis=0))


def atomics() -> Any:
    x = R.integers(-1000, 1000, (8, 256)).astype(np.int32)
    out, most, least = np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    reduced[(8,)](x, out, most, least, N=256)
    return [(out, [x.sum()], 0), (most, [x.max()], 0), (least, [x.min()], 0)]


@triton.jit
def converted(x, out, small, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(out + i, v.to(tl.bfloat16).to(tl.float32))
    tl.store(small + i, v.to(tl.float8e5).to(tl.float32))


def conversions() -> Any:
    import ml_dtypes

    x = f32(256)
    out, small = np.zeros_like(x), np.zeros_like(x)
    converted[(1,)](x, out, small, N=256)
    return [
        (out, x.astype(ml_dtypes.bfloat16).astype(np.float32), 0),
        (small, x.astype(ml_dtypes.float8_e5m2).astype(np.float32), 0),
    ]


@triton.jit
def transposed(x, out, M, N, T: tl.constexpr):
    i, j = tl.program_id(0) * T + tl.arange(0, T), tl.program_id(1) * T + tl.arange(0, T)
    v = tl.load(x + i[:, None] * N + j[None, :], mask=(i[:, None] < M) & (j[None, :] < N), other=0)
    tl.store(out + j[:, None] * M + i[None, :], tl.trans(v), mask=(i[None, :] < M) & (j[:, None] < N))


def transposes() -> Any:
    x = f32(70, 50)
    out = np.zeros((50, 70), np.float32)
    transposed[(2, 1)](x, out, 70, 50, T=64)
    return [(out, x.T, 0)]


@triton.jit
def dots(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, P: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.dot(
        tl.load(a + i[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + j[None, :]), input_precision=P
    )
    tl.store(c + i[:, None] * N + j[None, :], total)


def tf32(precision: str = "tf32", tolerance: float = 5e-2) -> Any:
    a, b, c = f32(64, 32), f32(32, 64), np.zeros((64, 64), np.float32)
    dots[(1,)](a, b, c, M=64, N=64, K=32, P=precision)
    return [(c, a.astype(float) @ b.astype(float), tolerance)]


def tf32x3() -> Any:
    return tf32("tf32x3", 1e-4)


def ieee() -> Any:
    return tf32("ieee", 1e-4)


EVERYWHERE = (softmax, dropout, layer_norm, matmul, attention, attention_causal, grouped, splits, scans, atomics, conversions, transposes, tf32, tf32x3, ieee)  # fmt: skip
HOPPER = (tma_matmul, tma_flat, tma_eight_warps, tma_specialised, attention_tma, attention_specialised)
