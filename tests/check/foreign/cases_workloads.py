"""Kernels of whole workloads: hashing, coding, graphs, linear algebra, games and queues."""

from __future__ import annotations

import hashlib
from typing import Any

import ml_dtypes
import numpy as np

from .case import Case
from .cases_samples import F, R, f32, i32, u32, zeros

D, H, U8 = np.float64, np.float16, np.uint8


def _sha_constants() -> Any:
    """The first 32 bits of the fractions of the cube roots of the first 64 primes."""
    primes = [n for n in range(2, 312) if all(n % d for d in range(2, n))]
    roots = [round((p << 96) ** (1 / 3)) for p in primes]
    exact = [
        next(r for r in range(x + 2**20, x - 2**20, -1) if r**3 <= p << 96) for x, p in zip(roots, primes, strict=True)
    ]
    return np.array([r & 0xFFFFFFFF for r in exact], np.uint32)


def _padded(messages: Any) -> Any:
    """Blocks of SHA-256 of messages of 40 bytes."""
    end = np.zeros((len(messages), 24), U8)
    end[:, 0] = 0x80
    end[:, 22:] = 320 >> 8, 320 & 255
    return np.concatenate([messages, end], 1)


MESSAGES = R.integers(0, 256, (64, 40)).astype(U8)


def sha256(blocks: Any, out: Any) -> Any:
    return np.frombuffer(b"".join(hashlib.sha256(m.tobytes()).digest() for m in MESSAGES), np.uint32)


def _toward(x: Any, down: bool) -> Any:
    f = x.astype(F)
    over = f.astype(D) > x if down else f.astype(D) < x
    return np.where(over, np.nextafter(f, F(-np.inf if down else np.inf)), f)


def intervals(a: Any, b: Any, low: Any, high: Any) -> Any:
    s, p = a.astype(D) + b, a.astype(D) * b
    zero = np.where(p > 0, _toward(p, True), _toward(p, False))
    return np.append(_toward(s, True), zero), np.append(_toward(s, False), (p.astype(np.longdouble) + 1).astype(F))


def segmented(x: Any, head: Any, out: Any) -> Any:
    found, total = [], 0
    for v, h in zip(x, head, strict=True):
        total = int(v) + (0 if h else total)
        found.append(total)
    return found


def stencil3d(x: Any, out: Any, nz: int) -> Any:
    want = out.astype(D)
    c = x.astype(D)
    want[1:-1, 1:-1, 1:-1] = (
        c[:-2, 1:-1, 1:-1] + c[2:, 1:-1, 1:-1] + c[1:-1, :-2, 1:-1] + c[1:-1, 2:, 1:-1] + c[1:-1, 1:-1, :-2] + c[1:-1, 1:-1, 2:]
        - 6 * c[1:-1, 1:-1, 1:-1]
    )  # fmt: skip
    return want


def components(a: Any, b: Any, parent: Any, edges: int, nodes: int) -> Any:
    label = parent.copy()
    for _ in range(nodes):
        for u, v in zip(a, b, strict=True):
            label[u] = label[v] = min(label[u], label[v])
    return label


EDGES = np.sort(R.integers(0, 48, 160))
ROW = np.searchsorted(EDGES, np.arange(49)).astype(np.int32)
COL, WEIGHT = i32(160, high=48), i32(160, low=1)
START = np.where(np.arange(48) == 0, 0, 2**31 - 1).astype(np.int32)


def shortest(row: Any, col: Any, weight: Any, dist: Any, *_: Any) -> Any:
    d = dist.astype(np.int64)
    for _ in range(48):
        for u, v, w in zip(EDGES, col, weight, strict=True):
            d[v] = min(d[v], d[u] + w)
    return np.minimum(d, 2**31 - 1)


SQUARE: Any = R.standard_normal((16, 16))
POSITIVE = SQUARE @ SQUARE.T + 16 * np.eye(16)
SYSTEM = f32(32, 32) + 3 * np.eye(32, dtype=F)


def _mix(h: Any) -> Any:
    h = h ^ h >> np.uint32(16)
    h = h * np.uint32(0x85EBCA6B)
    h = h ^ h >> np.uint32(13)
    h = h * np.uint32(0xC2B2AE35)
    return h ^ h >> np.uint32(16)


def bloom(keys: Any, asked: Any, *_: Any) -> Any:
    bits = np.zeros(2048, int)
    found = np.ones(len(asked), int)
    salts = [np.uint32(seed * 0x9E3779B9 & 0xFFFFFFFF) for seed in range(3)]
    for salt in salts:
        bits[_mix(keys + salt) & 2047] = 1
    for salt in salts:
        found &= bits[_mix(asked + salt) & 2047]
    return np.packbits(bits.astype(U8), bitorder="little").view(np.uint32), found


def life(rows: Any, out: Any, n: int) -> Any:
    cells = (rows[:, None] >> np.arange(32, dtype=np.uint32) & 1).astype(int)
    near = sum(np.roll(cells, (y, x), (0, 1)) for y in (-1, 0, 1) for x in (-1, 0, 1)) - cells
    alive = (near == 3) | (cells == 1) & (near == 2)
    return (alive.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1).astype(np.uint32)


# Matches of 0, 1, 0 among four letters, which may overlap: state n has matched n letters.
AUTOMATON = (
    np.array([[1, 0, 0, 0], [1, 2, 0, 0], [3, 0, 0, 0], [1, 2, 0, 0]], np.int16).tobytes()
    + np.array([0, 0, 0, 1], U8).tobytes()
)


def matches(text: Any, *_: Any) -> Any:
    t = text & 3
    return [((t[:-2] == 0) & (t[1:-1] == 1) & (t[2:] == 0)).sum()]


LENGTHS = R.integers(1, 17, 128).astype(U8)
CODES = (u32(128) & ((1 << LENGTHS.astype(np.uint32)) - 1)).astype(np.uint32)


def packed(code: Any, length: Any, *_: Any) -> Any:
    bits, at = 0, 0
    for c, n in zip(code, length, strict=True):
        bits |= int(c) << at
        at += int(n)
    return np.frombuffer(bits.to_bytes(1024, "little"), np.uint32), [at]


def top_k(x: Any, value: Any, index: Any, n: int, k: int) -> Any:
    order = np.argsort(-x, kind="stable")[:k]
    return x[order], order


def philox(out: Any, seed: int) -> Any:
    c = [np.arange(64, dtype=np.uint64), *(np.zeros(64, np.uint64) for _ in range(3))]
    k0, k1, low = seed, 0, np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [q >> np.uint64(32) ^ c[1] ^ np.uint64(k0), q & low, p >> np.uint64(32) ^ c[3] ^ np.uint64(k1), p & low]
        k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
    return np.stack(c, 1)


def video(a: Any, b: Any, out: Any) -> Any:
    x, y = (v.view(U8).reshape(-1, 4).astype(int) for v in (a, b))
    u, v = (w.view(np.uint16).reshape(-1, 2).astype(int) for w in (a, b))
    sx, sy = (w.view(np.int8).reshape(-1, 4).astype(int) for w in (a, b))
    rows = [
        x + y, None, abs(x - y), np.maximum(sx, sy), 255 * (x > y), (x + y + 1) // 2, np.minimum(x + y, 255), None
    ]  # fmt: skip
    found = [None if r is None else (r & 255).astype(U8).view(np.uint32)[:, 0] for r in rows]
    found[1] = (u - v & 0xFFFF).astype(np.uint16).view(np.uint32)[:, 0]
    found[7] = abs(x - y).sum(1).astype(np.uint32)
    return np.stack(found, 1)  # type: ignore[reportArgumentType]


def halves(a: Any, b: Any, out: Any, wide: Any) -> Any:
    x, y = a.astype(D).reshape(-1, 2), b.astype(D).reshape(-1, 2)
    u, v = (w.astype(ml_dtypes.bfloat16).astype(D) for w in (x, y))
    first = [np.maximum(x * y - 0.5, 0), np.maximum(x, -y), np.sqrt(abs(x)), np.clip(x + y, 0, 1)]
    second = [u * v, np.minimum(u, v)]
    return np.stack(first, 1).astype(H).astype(D), np.stack(second, 1).astype(ml_dtypes.bfloat16).astype(D)


def in_turn(turn: Any, order: Any) -> Any:
    return [4], [3, 2, 1, 0, ((3 * 3 + 2) * 3 + 1) * 3]


def groups_of_16(x: Any, out: Any) -> Any:
    t = x.reshape(-1, 16)
    return np.concatenate([[x.sum(), x.max()], t.min(1)])


def rounds(a: Any, b: Any) -> Any:
    x = a.astype(int)
    one = np.roll(x, -1)
    two = np.roll(one, -1) + 1
    return two, np.roll(two, -1) + 2


def bits_of_std(x: Any, out: Any) -> Any:
    rows = []
    for v in map(int, x):
        b, low = f"{v:032b}", v & 0xFFFF
        ones = len(b) - len(b.rstrip("1"))
        turned = (v << 7 | v >> 25) & 0xFFFFFFFF
        size = v.bit_length()
        ceil = 1 << max(low - 1, 0).bit_length()
        rows.append([b.count("1"), 32 - size, ones, ceil, turned, size, b.count("1") == 1, v & 0x7FFFFF])
    return np.array(rows, np.int64).astype(np.uint32).view(np.int32)


def _tree(nodes: int) -> tuple[Any, Any, Any]:
    """(left, right, depth) of a random binary tree of `nodes` nodes, whose root is 0."""
    children, depth = np.full((2, nodes), -1, np.int32), np.zeros(nodes, np.int32)
    for n in range(1, nodes):
        free = np.argwhere(children[:, :n] < 0)
        side, parent = free[R.integers(len(free))]
        children[side, parent], depth[n] = n, depth[parent] + 1
    return children[0], children[1], depth


LEFT, RIGHT, DEPTH = _tree(60)
QUEUE = np.concatenate([[0, 1, 0], np.full(1023, -1)]).astype(np.int32)


def copied(x: Any, out: Any, n: int, start: int) -> Any:
    want = out.copy()
    want[start : start + n] = x[:n]
    return want


POLY = f32(4)


def areas(x: Any, out: Any, p: bytes) -> Any:
    v = x.astype(D)
    area = np.where(np.arange(len(v)) % 3, v * v, 2 * v)
    return area + sum(c * v**i for i, c in enumerate(POLY.astype(D)))


def device_symbols(out: Any) -> Any:
    return np.append(np.ones(256), 3 * np.arange(256).sum())


def ring(x: Any, out: Any) -> Any:
    v = total = x.reshape(4, 64).astype(int)
    for _ in range(3):
        v = np.roll(v, 1, 0)
        total = total * 3 + v
    return total


def tiles_turned(x: Any, out: Any, n: int) -> Any:
    return x.reshape(2, 16, 2, 16).transpose(0, 3, 2, 1).reshape(32, 32)


def pair(x: Any, out: Any) -> Any:
    return [x.astype(np.uint64).sum(), x.max()]


LINE = i32(256)
CASES = [
    Case("sha256", [_padded(MESSAGES).view(np.uint32), zeros(64, 8, dtype=np.uint32)], sha256, grid=2, block=32,
         symbols={"sha_k": _sha_constants()}),
    Case("interval_add", [f32(128), f32(128), zeros(256, dtype=F), zeros(256, dtype=F)], intervals, [2, 3]),
    Case("segmented", [i32(128), (R.random(128) < 0.04).astype(U8), zeros(128)], segmented),
    Case("stencil3d", [f32(6, 10, 18), zeros(6, 10, 18, dtype=F), 6], stencil3d, [1], block=(16, 8), atol=1e-5),
    Case("union_find", [i32(70), i32(70), np.arange(100, dtype=np.int32), 70, 100], components, [2], 2, 64),
    Case("shortest", [ROW, COL, WEIGHT, START, zeros(3), 48], shortest, [3], 2, 64),
    Case("cholesky", [POSITIVE, 16], lambda a, n: np.linalg.cholesky(a), [0], block=(16, 16), smem=2048, atol=1e-12),
    Case("gauss_jordan", [SYSTEM, f32(32), 32], lambda a, b, n: np.linalg.solve(a.astype(D), b), [1], block=(32, 32), atol=1e-3),
    Case("bloom", [u32(128), u32(128), zeros(64, dtype=np.uint32), zeros(128)], bloom, [2, 3]),
    Case("life", [u32(32), zeros(32, dtype=np.uint32), 32], life, [1], 4, (32, 8)),
    Case("match", [i32(1024, high=4).astype(U8), zeros(1), 1024], matches, [1], 2, 64,
         symbols={"automaton": np.frombuffer(AUTOMATON, U8)}),
    Case("pack_bits", [CODES, LENGTHS, zeros(256, dtype=np.uint32), zeros(1)], packed, [2, 3]),
    Case("split_sort", [u32(256) & np.uint32(4095), 12], lambda k, b: np.sort(k), [0], block=256),
    Case("top_k", [f32(500), zeros(9, dtype=F), zeros(9), 500, 9], top_k, [1, 2]),
    Case("philox", [zeros(64, 4, dtype=np.uint32), 1234567], philox, [0], 2, 32),
    Case("simd_video", [u32(64), u32(64), zeros(64, 8, dtype=np.uint32)], video, block=64),
    Case("half_functions", [f32(128).astype(H), f32(128).astype(H), zeros(64, 4, 2, dtype=H),
         zeros(64, 2, 2, dtype=ml_dtypes.bfloat16)], halves, [2, 3], block=64, atol=1e-3),
    Case("waited_counter", [zeros(1), zeros(5)], in_turn, [0, 1], 4, 32),
    Case("float_atomics", [f32(256), zeros(1, dtype=F), zeros(1, dtype=F), zeros(1, dtype=D)],
         lambda x, *_: ([x.min()], [x.max()], [np.trunc(x * F(8)).astype(D).sum()]), [1, 2, 3], 2),
    Case("reduce_async_groups", [LINE, zeros(18)], groups_of_16, grid=2),
    Case("scan_update", [LINE, zeros(1024), zeros(1)], lambda x, *_: [(x & 3).sum()], [2], 2),
    Case("split_grid_barrier", [LINE, zeros(256)], rounds, [0, 1], 4, 64),
    Case("mdspan_tiles", [f32(40, 56), zeros(56, 40, dtype=F), 40, 56], lambda x, *_: x.T, [1], (4, 3), (16, 16)),
    Case("bits_of_std", [u32(64), zeros(64, 8)], bits_of_std, block=64),
    Case("merge_path", [np.sort(i32(100)), np.sort(i32(77)), zeros(177), 100, 77],
         lambda a, b, *_: np.sort(np.append(a, b)), [2], block=32),
    Case("soa_aos", [f32(256, 3), *(zeros(256, dtype=F) for _ in range(3)), zeros(256, 3, dtype=F)],
         lambda v, *_: (v[:, 0], v[:, 1], v[:, 2], v * np.array([-1, 1, 1])), [1, 2, 3, 4], 2),
    Case("tree_walk", [LEFT, RIGHT, QUEUE, zeros(60), 60], lambda *_: DEPTH, [3], 3, 32),
    Case("unaligned_copy", [u32(300).view(U8), zeros(1200, dtype=U8), 1111, 5], copied, [1], 2, 32),
    Case("timed", [zeros(64, dtype=np.uint64), i32(512), zeros(64)], lambda o, x, s: (np.full(64, 3), x.reshape(64, 8).sum(1)), [0, 2], block=64),
    Case("shapes", [f32(64), zeros(64, dtype=F), POLY.tobytes()], areas, [1], block=64, atol=1e-4),
    Case("dynamic_two_arrays", [i32(200).astype(np.int16), zeros(1, dtype=D), 200],
         lambda x, *_: [(x.astype(int) * x[::-1]).sum()], [1], block=64, smem=64 * 8 + 400),
    Case("device_symbols", [zeros(257)], device_symbols, grid=2),
    Case("ptx_wrappers", [i32(640), LINE[:128]], lambda x, o: o + 2 * x.reshape(5, 128)[:, ::-1].sum(0), grid=2),
    Case("ring_of_cluster", [LINE, zeros(256)], ring, grid=4, block=64),
    Case("cluster_transpose", [f32(32, 32), zeros(32, 32, dtype=F), 32], tiles_turned, [1], (4, 4), (8, 8)),
    Case("reduce_128", [u32(96), zeros(2, dtype=np.uint64)], pair, grid=3, block=32),
    Case("moved_matrix", [f32(16, 8).astype(H), zeros(8, 8, dtype=F)], lambda a, o: a.astype(D).T @ a.astype(D), block=32, atol=1e-4),
    Case("wmma_tf32", [f32(16, 32), f32(16, 32), zeros(16, 16, dtype=F), 32], lambda a, b, *_: 2 * (a.astype(D) @ b.astype(D).T).T, [2], block=32, atol=3e-2),
    Case("wmma_double", [R.standard_normal((8, 16)), R.standard_normal((16, 8)), R.standard_normal((8, 8))],
         lambda a, b, c: c + a @ b, block=32, atol=1e-12),
]  # fmt: skip
