"""Kernels of the kinds that CUDA's samples teach with."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np

from .case import Case

R = np.random.default_rng(11)


def f32(*shape: int) -> Any:
    return R.standard_normal(shape).astype(np.float32)


def i32(*shape: int, low: int = 0, high: int = 100) -> Any:
    return R.integers(low, high, shape).astype(np.int32)


def zeros(*shape: int, dtype: Any = np.int32) -> Any:
    return np.zeros(shape, dtype)


def u32(*shape: int) -> Any:
    return R.integers(0, 2**32, shape).astype(np.uint32)


F = np.float32
N256 = i32(1024)


def histogram256(out, words, n):
    return np.bincount(words.view(np.uint8), minlength=256)


def convolved(dst, src, w, pitch):
    padded = np.pad(src.astype(np.float64), ((0, 0), (8, 8)))
    return sum(TAPS[8 - j].astype(np.float64) * padded[:, 8 + j : 8 + j + w] for j in range(-8, 9))


TAPS = f32(17)


def black_scholes(call, put, s, x, t, r, v, n):
    s, x, t = (a.astype(np.float64) for a in (s, x, t))
    cdf = np.vectorize(lambda d: 0.5 * math.erfc(-d / math.sqrt(2)))
    d1 = (np.log(s / x) + (r + v * v / 2) * t) / (v * np.sqrt(t))
    d2 = d1 - v * np.sqrt(t)
    c = s * cdf(d1) - x * np.exp(-r * t) * cdf(d2)
    return c, c - s + x * np.exp(-r * t)


def mandelbrot(out, w, h, x0, y0, scale, limit):
    count = np.zeros((h, w), np.uint8)
    for y in range(h):
        for x in range(w):
            c, z, i = complex(x0 + x * scale, y0 + y * scale), 0j, 0
            while i < limit and z.real**2 + z.imag**2 < 4:
                z, i = complex(z.real * z.real - z.imag * z.imag + c.real, 2 * z.real * z.imag + c.imag), i + 1
            count[y, x] = i
    return count


def nbody(acc, pos, n, eps):
    p = pos.astype(np.float64)
    d = p[None, :, :3] - p[:, None, :3]
    r = 1 / np.sqrt((d * d).sum(-1) + eps)
    a = (d * (p[:, 3] * r**3)[:, :, None]).sum(1)
    return np.concatenate([a, np.zeros((n, 1))], 1)


def walsh(out, x, logn):
    h = np.array([[1]])
    for _ in range(logn):
        h = np.block([[h, h], [h, -h]])
    return x.astype(np.float64) @ h


def haar(x, approx, detail):
    v = x.astype(np.float64).reshape(-1, 2)
    first = (v[:, 0] + v[:, 1]) / math.sqrt(2)
    return (first.reshape(-1, 2).sum(1) / math.sqrt(2), (v[:, 0] - v[:, 1]) / math.sqrt(2))


def seen(height, out, n):
    a = np.arctan((height - height[0]) / np.arange(1, n + 1, dtype=np.float32)).astype(np.float64)
    return np.concatenate([[1], a[1:] > np.maximum.accumulate(a)[:-1]])


def sobel(out, image, w, h):
    p = np.pad(image.astype(np.int64), 1, mode="edge")
    c = {(i, j): p[i : i + h, j : j + w] for i in range(3) for j in range(3)}
    gx = c[0, 2] + 2 * c[1, 2] + c[2, 2] - c[0, 0] - 2 * c[1, 0] - c[2, 0]
    gy = c[0, 0] + 2 * c[0, 1] + c[0, 2] - c[2, 0] - 2 * c[2, 1] - c[2, 2]
    return np.minimum(abs(gx) + abs(gy), 255)


def stereo(out, a, b, n):
    x, y = (v.view(np.uint8).reshape(-1, 4).astype(np.int64) for v in (a, b))
    sx, sy = (v.view(np.int8).reshape(-1, 4).astype(np.int64) for v in (a, b))
    d = abs(x - y)
    return (d.sum(1) + d[:, 0] + (sx * sy).sum(1) + 7) & 0xFFFFFFFF


def votes(values, out):
    v = values[:32]
    ballot = sum(1 << i for i in range(32) if v[i] > 0)
    word = ballot ^ (int((v > 90).any()) << 1) ^ int((v >= 0).all())
    match = [sum(1 << j for j in range(32) if v[j] % 4 == v[i] % 4) + 32 for i in range(32)]
    return np.array([word] * 32 + match, np.int64)


def atomics(g):
    t = range(128)
    x = 0
    for i in t:
        x ^= i
    return [1280, -1280, 77, 127, 0, 128 % 18, g[6], g[7], 0 & 7, 0xFFFF, x]


def fdtd(out, x, nx, ny, nz):
    p = np.pad(x.astype(np.float64), 1)
    c = p[1:-1, 1:-1, 1:-1]
    around = (
        p[2:, 1:-1, 1:-1]
        + p[:-2, 1:-1, 1:-1]
        + p[1:-1, 2:, 1:-1]
        + p[1:-1, :-2, 1:-1]
        + p[1:-1, 1:-1, 2:]
        + p[1:-1, 1:-1, :-2]
    )
    return around - 6 * c


def dct8(out, x, w):
    k = np.arange(8)
    m = np.cos((2 * k[None] + 1) * k[:, None] * np.pi / 16) * np.where(k == 0, math.sqrt(1 / 8), 0.5)[:, None]
    t = x.astype(np.float64).reshape(2, 8, 2, 8).transpose(0, 2, 1, 3)
    return (m @ t @ m.T).transpose(0, 2, 1, 3).reshape(16, 16)


def sobols(out, directions, n):
    found = []
    for i in range(n):
        g, x = i ^ (i >> 1), 0
        for k in range(11):
            x ^= (g >> k & 1) * int(directions[k])
        found.append(x)
    return np.array(found, np.uint32)


def twister(out, seed, n):
    rows, m32 = [], 0xFFFFFFFF
    for t in range(32):
        s, mt = seed + t, []
        for i in range(17):
            s = (1812433253 * (s ^ (s >> 30)) + i) & m32
            mt.append(s)
        row, at = [], 0
        for _ in range(n):
            y = (mt[at] & 0xFFFFFFFE) | (mt[(at + 1) % 17] & 1)
            mt[at] = y = mt[(at + 8) % 17] ^ (y >> 1) ^ (0xED9093E1 if y & 1 else 0)
            y ^= y >> 11
            y ^= (y << 7) & 0x655E5280
            y ^= (y << 15) & 0xFFD58000
            row.append(y ^ (y >> 18))
            at = (at + 1) % 17
        rows.append(row)
    return np.array(rows, np.uint32)


ROWS = np.concatenate([[0], np.cumsum(R.integers(0, 40, 16))]).astype(np.int32)
COLUMNS, VALUES, VECTOR = i32(ROWS[-1], high=64), f32(int(ROWS[-1])), f32(64)


def spmv(rows, columns, values, x, y, n):
    return [(values[a:b].astype(np.float64) * x[columns[a:b]]).sum() for a, b in itertools.pairwise(rows)]


GRAPH = np.arange(65, dtype=np.int32) * 4
EDGES = i32(256, high=64)


def bfs(rows, columns, depth, level, changed, n):
    new = depth.copy()
    for v in range(n):
        if depth[v] == level:
            for w in columns[rows[v] : rows[v + 1]]:
                if new[w] == -1:
                    new[w] = level + 1
    return new, [int((new != depth).any())]


DEPTH = np.where(R.random(64) < 0.3, 1, -1).astype(np.int32)


def bilateral(x, out, w, h):
    p = np.pad(x.astype(np.float64), 2, mode="edge")
    sums, total = np.zeros((h, w)), np.zeros((h, w))
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            q = p[2 + dy : 2 + dy + h, 2 + dx : 2 + dx + w]
            f = np.exp(-(dx * dx + dy * dy) * 0.125) * np.exp(-((q - x) ** 2) * 2)
            sums, total = sums + f * q, total + f
    return sums / total


def recursive(x, out, w, h, a):
    got, y = np.zeros((h, w)), x[0].astype(np.float64)
    for i in range(h):
        got[i] = y = y + a * (x[i] - y)
    for i in reversed(range(h)):
        got[i] = y = y + a * (got[i] - y)
    return got


def layer_norm(x, g, b, y, n):
    x = x.astype(np.float64)
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * g + b


def softmax(x, y, n):
    e = np.exp(x.astype(np.float64))
    return e / e.sum(1, keepdims=True)


def ackermann(m, n):
    return n + 1 if m == 0 else ackermann(m - 1, 1 if n == 0 else ackermann(m, n - 1))


def block_votes(v, out):
    return np.full(128, (v > 50).sum() + 1000 * int((v >= 0).all()) + 2000 * int((v > 99).any()))


def warp_ops(v, out):
    x = int(np.bitwise_xor.reduce(v)) ^ int((v & 0xFFFF).sum()) ^ int(v.max()) ^ int(np.bitwise_or.reduce(v & 0x0F0F))
    return np.full(32, x, np.uint32)


def scan_rows(v, out):
    return np.cumsum(v.astype(np.int64))


A32, B32 = f32(64, 96), f32(96, 64)
JA = f32(32, 32) + 40 * np.eye(32, dtype=np.float32)


def jacobi(a, b, x, xn, total, n):
    d = (b - a.astype(np.float64) @ x) / np.diag(a).astype(np.float64)
    return x + d, [abs(d).sum()]


HEIGHT = f32(96)
IMAGE = R.integers(0, 256, (40, 40)).astype(np.uint8)
S2 = i32(128)

CASES = [
    Case("saxpy4", [f32(1000), f32(1000), 1.5, 250], lambda x, y, a, n: x * np.float64(1.5) + y, [1], 2, rtol=1e-6, atol=1e-6),
    Case("matmul16", [zeros(64, 64, dtype=F), A32, B32, 96, 64], lambda c, a, b, *_: a.astype(float) @ b, [0], (4, 4), (16, 16), atol=1e-4),
    Case("matmul32", [zeros(64, 64, dtype=F), A32, B32, 96, 64], lambda c, a, b, *_: a.astype(float) @ b, [0], (2, 2), (32, 32), atol=1e-4),
    Case("transpose_diagonal", [zeros(96, 96, dtype=F), f32(96, 96), 96, 96], lambda o, x, *_: x.T, [0], (3, 3), (32, 8)),
    Case("reduce_interleaved", [N256, zeros(8), 1000], lambda x, o, n: np.append(x[:n], [0] * 24).reshape(8, 128).sum(1), [1], 8, 128, smem=512),
    Case("reduce_sequential", [N256, zeros(4), 1000], lambda x, o, n: np.append(x[:n], [0] * 24).reshape(4, 256).sum(1), [1], 4, 128, smem=512),
    Case("reduce_volatile", [N256, zeros(8), 1000], lambda x, o, n: np.append(x[:n], [0] * 24).reshape(8, 128).sum(1), [1], 8, 128, smem=512),
    Case("reduce_threadfence", [f32(3000), zeros(1, dtype=F), zeros(5, dtype=F), 3000], lambda x, *_: [x.sum(dtype=np.float64)], [1], 5, 128, atol=1e-3),
    Case("scan_hillis", [f32(128), zeros(128, dtype=F), 128], lambda x, *_: np.append(0, np.cumsum(x.astype(float))[:-1]), [1], 1, 128, smem=1024, atol=1e-4),
    Case("scan_blelloch", [f32(256), zeros(256, dtype=F), 256], lambda x, *_: np.append(0, np.cumsum(x.astype(float))[:-1]), [1], 1, 128, smem=1024, atol=1e-4),
    Case("scan_shuffle", [N256, zeros(4), 32], lambda x, *_: (np.cumsum(x.reshape(4, 256), 1), x.reshape(4, 256).sum(1)), [0, 1], 4, 256, smem=32),
    Case("add_block_sums", [N256, i32(4)], lambda x, s: x + np.repeat(np.append(0, s[:3]), 256), [0], 4, 256),
    Case("histogram64", [zeros(2, 64), u32(512), 512], lambda o, x, n: [np.bincount(x.view(np.uint8).reshape(-1, 2, 64, 4)[:, b].ravel() >> 2, minlength=64) for b in (0, 1)], [0], 2, 64),
    Case("histogram256", [zeros(256), u32(1000), 1000], histogram256, [0], 3, 128),
    Case("bitonic", [zeros(256), zeros(256), S2.repeat(2).astype(np.uint32) * 300 + np.arange(256, dtype=np.uint32), np.arange(256, dtype=np.uint32), 256, 1],
         lambda a, b, k, v, *_: (np.sort(k), np.argsort(k, kind="stable")), [0, 1]),
    Case("odd_even_merge", [zeros(256), i32(256), 256], lambda o, k, n: np.sort(k), [0]),
    Case("rank_merge", [np.sort(i32(100)), 100, np.sort(i32(77)), 77, zeros(177)], lambda a, m, b, n, o: np.sort(np.append(a, b))),
    Case("convolve_rows", [zeros(8, 256, dtype=F), f32(8, 256), 256, 256], convolved, [0], (2, 2), (16, 4), symbols={"taps": TAPS}, atol=1e-4),
    Case("black_scholes", [zeros(200, dtype=F), zeros(200, dtype=F), *(R.uniform(a, b, 200).astype(F) for a, b in ((5, 30), (1, 100), (0.25, 10))), 0.02, 0.3, 100],
         black_scholes, [0, 1], 1, 128, atol=2e-4),
    Case("mandelbrot", [zeros(40, 40, dtype=np.uint8), 40, 40, -2.0, -1.0, 0.06, 60], mandelbrot, [0], (3, 3), (16, 16)),
    Case("nbody", [zeros(128, 4, dtype=F), f32(128, 4), 128, 0.1], nbody, [0], 2, 64, smem=1024, rtol=1e-3, atol=1e-2),
    Case("walsh", [zeros(2, 256, dtype=F), f32(2, 256), 8], walsh, [0], 2, 64, smem=1024, atol=1e-4),
    Case("haar", [f32(512), zeros(128, dtype=F), zeros(256, dtype=F)], haar, [1, 2], 2, 128, atol=1e-5),
    Case("line_of_sight", [HEIGHT, zeros(96, dtype=np.uint8), 96], seen, [1], 3, 32),
    Case("sobel", [zeros(40, 40, dtype=np.uint8), IMAGE, 40, 40], sobel, [0], (3, 3), (16, 16)),
    Case("stereo_difference", [zeros(100, dtype=np.uint32), u32(100), u32(100), 100], stereo, [0]),
    Case("vote", [i32(32), zeros(64, dtype=np.uint32)], votes, [1], 1, 32),
    Case("atomics", [np.array([0, 0, 0, 0, 100, 0, 50, 0, 0xFF, 0, 0], np.int32)], None, [0], 2, 64),
    Case("atomics_wide", [zeros(1, dtype=np.float64), zeros(3, dtype=np.uint64), zeros(2, dtype=np.float16), zeros(2, dtype=ml_dtypes.bfloat16), zeros(3, dtype=F)],
         lambda d, u, h, b, f: ([64.0], [384, 127 << 33, 5], [128, 256], [128, 64], [64, 64, 128]), [0, 1, 2, 3, 4], 2, 64),
    Case("function_pointers", [f32(64), zeros(64, dtype=F), i32(64)], lambda a, o, w: np.where(w & 1, a * F(3), a + F(3)), [1], 2, 32),
    Case("virtual_calls", [f32(64), zeros(64, dtype=F)], lambda r, o: np.where(np.arange(64) % 2, r * r, F(3) * r * r), [1], 2, 32, rtol=1e-6),
    Case("new_delete", [zeros(64), 5], lambda o, n: np.tile(10 * ((np.arange(32) + 1) % 32), 2), [0], 2, 32),
    Case("large_parameters", [np.arange(1500, dtype=np.int32).tobytes(), zeros(1500)], lambda p, o: np.arange(1500) * 2, [1], 2, 128),
    Case("clocks", [f32(256), zeros(256, dtype=F), zeros(2, dtype=np.int64)], lambda x, *_: (x.reshape(2, 128)[:, ::-1], [1, 1]), [1, 2], 2, 128, smem=512),
    Case("inline_ptx", [zeros(64)], lambda o: np.arange(64) % 32 * np.where(np.arange(64) % 32 < 16, 7, 9), [0], 2, 32),
    Case("jacobi", [JA, R.standard_normal(32), R.standard_normal(32), zeros(32, dtype=np.float64), zeros(1, dtype=np.float64), 32], jacobi, [3, 4], 32, 64, rtol=1e-12),
    Case("fdtd", [zeros(6, 16, 32, dtype=F), f32(6, 16, 32), 32, 16, 6], fdtd, [0], (2, 2), (16, 8), atol=1e-5),
    Case("dct8", [zeros(16, 16, dtype=F), f32(16, 16), 16], dct8, [0], (2, 2), (8, 8), atol=1e-5),
    Case("sobol", [zeros(200, dtype=np.uint32), u32(32), 200], sobols, [0], 2, 64),
    Case("twister", [zeros(32, 20, dtype=np.uint32), 777, 20], twister, [0], 1, 32),
    Case("half_dot", [*(f32(512).astype(np.float16) for _ in range(2)), zeros(2, dtype=F), 256], lambda a, b, o, n: (a.astype(float) * b).reshape(2, 256).sum(1), [2], 2, 128, atol=0.1),
    Case("integral_rows", [u32(512) >> 20, zeros(512)], scan_rows, [1], 1, 128),
    Case("spmv_vector", [ROWS, COLUMNS, VALUES, VECTOR, zeros(16, dtype=F), 16], spmv, [4], 4, 128, atol=1e-5),
    Case("bfs_level", [GRAPH, EDGES, DEPTH, 1, zeros(1), 64], bfs, [2, 4], 2, 32),
    Case("spin_lock", [zeros(1), zeros(1)], lambda *_: [20], [1], 20, 32),
    Case("lookback_scan", [i32(640), zeros(640), zeros(5), zeros(5), zeros(1)], lambda x, *_: np.cumsum(x), [1], 5, 128),
    Case("bilateral", [f32(20, 24), zeros(20, 24, dtype=F), 24, 20], bilateral, [1], (2, 2), (16, 16), atol=1e-5),
    Case("recursive_gaussian", [f32(20, 48), zeros(20, 48, dtype=F), 48, 20, 0.25], recursive, [1], 2, 32, atol=1e-5),
    Case("layer_norm", [f32(3, 512), f32(512), f32(512), zeros(3, 512, dtype=F), 512], layer_norm, [3], 3, 128, atol=1e-4),
    Case("online_softmax", [f32(3, 200).astype(ml_dtypes.bfloat16), zeros(3, 200, dtype=ml_dtypes.bfloat16), 200], softmax, [1], 3, 32, rtol=1e-2),
    Case("recursion", [zeros(64)], lambda o: [ackermann(i % 3, i % 4) for i in range(64)], [0], 2, 32),
    Case("quicksorts", [i32(64, 12), 12], lambda x, n: np.sort(x, 1), [0], 2, 32),
    Case("barrier_subset", [i32(64), zeros(64)], lambda x, o: x[::-1], [1], 1, 128),
    Case("block_votes", [S2, zeros(128)], block_votes, [1], 1, 128),
    Case("warp_reduce_ops", [u32(32), zeros(32, dtype=np.uint32)], warp_ops, [1], 1, 32),
    Case("strided_smem_int8", [u32(128), zeros(128)], lambda x, o: (x.view(np.int8).reshape(4, 128).astype(int) * 16 ** np.arange(4)[:, None]).sum(0), [1]),
    Case("prefetch_sum", [f32(1024), zeros(256, dtype=F), 1024], lambda x, *_: x.astype(float).reshape(4, 256).sum(0), [1], 2, 128, atol=1e-5),
    Case("producer_consumer", [i32(160), zeros(160), 5], lambda x, *_: x.reshape(5, 32)[:, ::-1] * 2, [1], 1, 64),
]  # fmt: skip
