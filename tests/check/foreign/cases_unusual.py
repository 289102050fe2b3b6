"""Kernels by features that the other files use less: what they are given, and what they must give."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .case import Case
from .cases_samples import F, R, f32, i32, u32, zeros

BF = ml_dtypes.bfloat16


def u64(*shape: int) -> Any:
    return R.integers(0, 2**64, shape, dtype=np.uint64)


def int128_math(a, b, out, n):
    rows = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        p = (x * y + ((y << 64) | x)) % 2**128
        s = (p - (2**128 if p >> 127 else 0)) >> 7
        rows.append([s % 2**64, p >> 64, p // (y | 1) % 2**64])
    return np.array(rows, np.uint64)


def bit_tricks(x, out, n):
    want = []
    for i, v in enumerate(x.tolist()):
        w, k = x.tolist()[(i + 1) % n], i & 31
        both = (w << 32) | v
        f = (both << k >> 32) ^ (both >> k)
        source = [(v | w << 32) >> 8 * s & 255 for s in range(8)]
        perm = sum(source[s] << 8 * j for j, s in enumerate((0, 4, 2, 6)))
        e = v >> k & 127
        at = i & 15
        g = (w & ~(511 << at)) | (v & 511) << at
        rev = int(f"{v:032b}"[::-1], 2)
        ffs = (w & -w).bit_length()
        r = v ^ w ^ 0x0F0F0F0F ^ f ^ perm ^ e ^ g ^ rev ^ v.bit_count() << 8 ^ (32 - v.bit_length()) << 16 ^ ffs << 24
        want.append(r & 0xFFFFFFFF)
    return np.array(want, np.uint32)


def dot4(a, b, c, out, n):
    i8, u8, i16 = (lambda x, t=t: x.view(t).reshape(n, -1).astype(np.int64) for t in (np.int8, np.uint8, np.int16))
    s = (i8(a) * i8(b)).sum(1) + 17 + (i16(a) * i8(b)[:, :2]).sum(1)
    difference = np.abs(u8(a) - u8(c)).astype(np.uint8).view(np.int32)[:, 0]
    added = (b.view(np.uint16) + c.view(np.uint16)).view(np.int32)
    larger = np.maximum(i8(a), i8(b)).astype(np.int8).view(np.int32)[:, 0]
    return (s.astype(np.int32) + difference + added + larger).astype(np.int32)


def edit_distance(a, b, n, out):
    d = np.add.outer(np.arange(n + 1), np.arange(n + 1))
    for i in range(1, n + 1):
        for j in range(1, n + 1):
            d[i, j] = min(d[i - 1, j] + 1, d[i, j - 1] + 1, d[i - 1, j - 1] + (a[i - 1] != b[j - 1]))
    return d[n, n]


def jacobi(a, b, n, rounds):
    for _ in range(rounds):
        a = F(0.25) * np.roll(a, 1) + F(0.5) * a + F(0.25) * np.roll(a, -1)
    return a


def parity(x, out, rounds):
    v = x
    for r in range(rounds):
        v = v + v[np.arange(128) ^ (1 << r)]
    return v


def labelled(x, out):
    rows = []
    for w in x.reshape(-1, 32):
        big = w > 50
        for lane, v in enumerate(w):
            mine = big == big[lane]
            rows.append(w[(w & 3) == (v & 3)].sum() * 64 + mine.sum() + mine[:lane].sum())
    return np.array(rows)


def votes(x, out):
    n, any_ = int((x & 1).sum()), int((x > 98).any())
    rows = []
    for w in x.reshape(-1, 32):
        for v in w:
            same = w[(w & 7) == (v & 7)]
            rows.append(1 + 2 * any_ + 4 * n + 1024 * len(same) + 65536 + (1 << 20) + (int(same.max()) << 21))
    return np.array(rows)


def half_math(a, b, out, c, other):
    r = (a.astype(F) * b.astype(F) + F(0.5)).astype(np.float16)
    out = np.maximum(r, (a + b).astype(np.float16))
    c = c.astype(F)
    return out, (c[0::2] * c[1::2]).astype(BF).astype(F) + (a[0::2] > b[0::2])


def fp8(x, out, back, n):
    e4, e5 = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn), x.astype(ml_dtypes.float8_e5m2)
    return e4.view(np.uint8), e4.astype(F) + e5.astype(F)


def wmma(a, b, out):
    a, b = a.astype(np.float64), b.astype(np.float64).T
    return ((a @ b * 0.5) @ b).T


def mma(a, b, out):
    return a.view(BF).astype(np.float64) @ b.view(BF).astype(np.float64).T


def horner(x, out, n):
    k = COEFFICIENT
    v = ((k[0] * x + k[1]) * x + k[2]) * x + k[3]
    return np.sqrt(np.abs(v)) / (1 + x * x) + np.rint(x)


def fft(x, out):
    found = np.fft.fft(x[..., 0] + 1j * x[..., 1], axis=1)
    return np.stack([found.real, found.imag], -1)


def lists(x, out, n):
    return (x.reshape(-1, n)[:, ::-1] * np.arange(1, n + 1)).sum(1)


def dispatch(a, b, out):
    which = np.arange(len(a)) % 3
    return np.select([which == 0, which == 1], [a + b, a - b], a ** np.maximum(b, 0))


def by_value(k, x, out, n):
    c = np.frombuffer(k[:20], F)
    return -sum(c[j] * x[(np.arange(n) + 2 * j) % n] for j in range(5))


def private_copies(x, out, rounds):
    x = x.astype(np.int64)
    w = (x[..., 3] * np.arange(rounds)[:, None]).sum(0)
    return np.stack([x[..., 0].sum(0), np.bitwise_xor.reduce(x[..., 1], 0), np.maximum(x[..., 2].max(0), 0), w], -1)


def widths(x, out, small):
    words = (np.arange(64, dtype=np.int32) * 0x01010101).view(np.int16)
    return x.view(np.uint64), words[::-1]


def pi(hits, seed, each):
    s = np.uint32(seed) ^ (np.arange(128, dtype=np.uint32) * np.uint32(2654435761))
    n = 0
    for _ in range(each):
        s = s * np.uint32(1664525) + np.uint32(1013904223)
        a = (s >> 16).astype(np.uint64)
        s = s * np.uint32(1664525) + np.uint32(1013904223)
        b = (s >> 16).astype(np.uint64)
        n += int((a * a + b * b < 2**32).sum())
    return n


def bounds(x, low, high, n):
    v = x.view(np.int32)
    v = np.where(v >= 0, v, v ^ 0x7FFFFFFF)
    return v.min(), v.max()


def keyed(sums, keys, other, pairs):
    n = np.bincount(keys, minlength=4)
    p = np.bincount(keys & 1, minlength=2)
    return np.stack([n, 2 * n], 1), n * 0.5, np.stack([p, 0 * p], 1)


def tiles(x, out):
    x = x.reshape(32, 32)
    return x.T + np.diag(x)[:, None]


def fdtd(e, h, n, steps):
    for _ in range(steps):
        h[: n - 1] += F(0.5) * (e[1:n] - e[: n - 1])
        e[1 : n - 1] += F(0.5) * (h[1 : n - 1] - h[: n - 2])
    return e, h


def haar(x, n):
    m = n
    while m > 1:
        a, d = (x[0:m:2] + x[1:m:2]) * F(0.5), (x[0:m:2] - x[1:m:2]) * F(0.5)
        x[:m] = np.concatenate([a, d])
        m //= 2
    return x


def printed() -> str:
    """What `printing` prints."""
    return "".join(f"{i}: {X[i] * 0.5:5.2f} x {255 + X[i]:x}\n" for i in range(2))


def swapped(x, out):
    return np.concatenate([x[64:][::-1], x[:64][::-1]])


COEFFICIENT = R.standard_normal(4)
A64, X, KEYS = u64(40), i32(256), i32(64, high=4)
STATE = zeros(6, dtype=np.uint64)
BYTES = R.integers(0, 256, 256).astype(np.uint8)
TEXT = R.integers(0, 3, (2, 60)).astype(np.int8)
HALVES = R.standard_normal((2, 128)).astype(np.float16)
ACGT: Any = lambda *shape: R.standard_normal(shape).astype(np.float16)  # noqa: E731
VALUE = np.array([0.5, 1, -2, 0.25, 3], F).tobytes() + (2).to_bytes(4, "little") + bytes(4)
CASES = [
    Case("int128_math", [A64, u64(40), zeros(40, 3, dtype=np.uint64), 40], int128_math, [2], block=64),
    Case("bit_tricks", [u32(90), zeros(90, dtype=np.uint32), 90], bit_tricks, [1], grid=2, block=32),
    Case("dot4", [u32(60).view(np.int32), u32(60).view(np.int32), u32(60), zeros(60), 60], dot4, [3], block=64),
    Case("edit_distance", [TEXT[0], TEXT[1], 60, zeros(1)], edit_distance, block=64),
    Case("odd_even_sort", [i32(2, 32), 32], lambda x, n: np.sort(x, 1), [0], grid=2, block=32, smem=128),
    Case("push_stack", [zeros(70), i32(70), 70], None, grid=3, block=32),
    Case("last_block_sum", [f32(900), zeros(3, dtype=F), zeros(1, dtype=np.uint32), zeros(1, dtype=F), 900],
         lambda x, p, c, o, n: x.astype(float).sum(), [3], grid=3, block=256, atol=1e-3),
    Case("decoupled_lookback", [X[:200], zeros(200), zeros(2, dtype=np.uint64), zeros(1, dtype=np.uint32), 200],
         lambda x, *_: np.cumsum(x), [1], grid=2, block=128),
    Case("ticket_lock", [zeros(1, dtype=np.uint32), zeros(1, dtype=np.uint32), zeros(1), 3], lambda *_: 18, [2], grid=3, block=32),
    Case("dekker", [zeros(2), zeros(1)], lambda *_: 6, [1], grid=2, block=32),
    Case("semaphore_pool", [zeros(16), zeros(1), zeros(1), zeros(2, dtype=np.uint32)], lambda *_: [4, 1], [3], grid=4, block=32),
    Case("latch_start", [X[:64], zeros(64)], lambda x, o: 2 * (x + x[::-1]), block=128),
    Case("pipelined_copy", [f32(7, 128), zeros(128, dtype=F), 7],
         lambda x, o, n: sum(x[t].astype(float)[(np.arange(128) * 5 + t) % 128] for t in range(n)), [1], atol=1e-5),
    Case("pipelined_roles", [i32(5, 64), zeros(64), 5], lambda x, o, n: (x[:, ::-1] * np.arange(1, n + 1)[:, None]).sum(0), [1]),
    Case("barrier_drop", [X[:96], zeros(64)], lambda x, o: x[32:96][::-1], block=96),
    Case("barrier_parity", [X[:128], zeros(128), 4], parity, [1]),
    Case("aggregated", [X, zeros(256), zeros(1), 256], lambda x, o, c, n: (x % 3 == 0).sum(), [2], grid=4, block=64),
    Case("labeled", [X[:64], zeros(64)], labelled, block=64),
    Case("grid_jacobi", [f32(300), zeros(300, dtype=F), 300, 4], jacobi, [0], grid=3, block=64, atol=1e-6),
    Case("named_ring", [i32(6, 32), zeros(32), 6], lambda x, o, r: x[:, ::-1].sum(0), [1], block=64),
    Case("votes", [X[:64], zeros(64)], votes, block=64),
    Case("transpose_lanes", [X[:128], zeros(32, 4)], lambda x, o: x.reshape(4, 8, 4).transpose(1, 0, 2), block=32),
    Case("half_math", [HALVES[0], HALVES[1], zeros(128, dtype=np.float16), f32(128).astype(BF), zeros(64, dtype=F)], half_math, [2, 4], block=64),
    Case("fp8_trip", [f32(100) * 100, zeros(100, dtype=np.uint8), zeros(100, dtype=F), 100], fp8, [1, 2], grid=2, block=64),
    Case("wmma_chain", [ACGT(16, 16), ACGT(16, 16), zeros(16, 16, dtype=F)], wmma, block=32, atol=0.15),
    Case("mma_inline", [f32(16, 16).astype(BF).view(np.uint32), f32(8, 16).astype(BF).view(np.uint32), zeros(16, 8, dtype=F)], mma, block=32, atol=1e-4),
    Case("horner", [R.standard_normal(100), zeros(100, dtype=np.float64), 100], horner, [1], grid=2, block=64, rtol=1e-12,
         symbols={"coefficient": COEFFICIENT}),
    Case("complex_fft8", [f32(32, 8, 2), zeros(32, 8, 2, dtype=F)], fft, block=32, atol=1e-4),
    Case("linked_lists", [X[:96], zeros(32), 3], lists, [1], block=32),
    Case("dispatch", [i32(64, high=6), i32(64, low=-1, high=5), zeros(64)], dispatch, block=64),
    Case("by_value", [VALUE, f32(70), zeros(70, dtype=F), 70], by_value, [2], grid=2, block=64, atol=1e-5),
    Case("block_cyclic_reduction", [f32(128), 128], lambda x, n: np.cumsum(x.astype(float)), [0], atol=1e-4),
    Case("lane_private_copies", [i32(5, 64, 4), zeros(64, 4), 5], private_copies, [1], block=64),
    Case("unequal_widths", [BYTES, zeros(32, dtype=np.uint64), zeros(128, dtype=np.int16)], widths, [1, 2]),
    Case("monte_carlo_pi", [zeros(1, dtype=np.uint64), 77, 20], pi, [0], grid=2, block=64),
    Case("min_max_floats", [f32(200), np.full(1, 2**31 - 1, np.int32), np.full(1, -(2**31), np.int32), 200], bounds, [1, 2], grid=4, block=64),
    Case("double_add_cas", [zeros(1, dtype=np.float64), R.standard_normal(90), 90], lambda s, x, n: x.sum(), [0], grid=3, block=32, atol=1e-12),
    Case("half_add_atomics", [zeros(4, 2, dtype=np.float16), KEYS, zeros(4, dtype=BF), zeros(2, 2, dtype=F)], keyed, [0, 2, 3], block=64, atol=1e-6),
    Case("strided_views", [f32(1024), zeros(32, 32, dtype=F)], tiles, block=(32, 8)),
    Case("fdtd_1d", [f32(150), f32(150), 150, 3], fdtd, [0, 1], block=64, atol=1e-5),
    Case("haar", [f32(128), 128], haar, [0], block=64, smem=512),
    Case("printing", [X[:32]], None, block=32),
    Case("cluster_histogram", [X, zeros(64), 256], lambda x, o, n: np.bincount(x & 63, minlength=64), [1], grid=4, block=32),
    Case("cluster_exchange", [X[:128], zeros(128)], swapped, grid=2, block=64),
    Case("bulk_round_trip", [i32(5, 256), zeros(5, 256), 5], lambda x, o, n: x * 3 + np.arange(n)[:, None], [1], block=64),
    Case("bulk_reduce", [f32(3, 64), zeros(64, dtype=F)], lambda x, s: x.astype(float).sum(0), grid=3, block=64, atol=1e-5),
    Case("remote_async_store", [X[:64], zeros(64)], lambda x, o: np.concatenate([x[32:], x[:32]]), grid=2, block=32),
    Case("elected", [X[:2], zeros(2)], lambda x, o: 2 * x, block=64),
]  # fmt: skip
