"""Patterns of libraries in Triton: programs that hand over sums, tiles and flags through memory, and epilogues by tensor copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from .triton_kernels import allocator, f16, f32

R = np.random.default_rng(11)


@triton.jit
def in_turn(a, b, c, turn, N: tl.constexpr, K, K_: tl.constexpr, M_: tl.constexpr):
    """Parts of K add to one tile in a fixed order; `turn` says whose turn it is."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    i, j, k = tl.arange(0, M_), tl.arange(0, N), tl.arange(0, K_)
    total = tl.zeros([M_, N], tl.float32)
    for at in range(part * K_, K, parts * K_):
        total += tl.dot(tl.load(a + i[:, None] * K + at + k[None, :]), tl.load(b + (at + k)[:, None] * N + j[None, :]))
    where = c + i[:, None] * N + j[None, :]
    while tl.atomic_add(turn, 0, sem="acquire") != part:
        pass
    tl.debug_barrier()
    total += tl.load(where)
    tl.store(where, total)
    tl.debug_barrier()
    tl.atomic_xchg(turn, part + 1, sem="release")


def split_k_in_turn() -> Any:
    a, b = f16(32, 128), f16(128, 32)
    c, turn = np.zeros((32, 32), np.float32), np.zeros(1, np.int32)
    in_turn[(2,)](a, b, c, turn, N=32, K=128, K_=16, M_=32)
    return [(c, a.astype(float) @ b.astype(float), 1e-3), (turn, [2], 0)]


@triton.jit
def from_queue(x, out, counter, tiles, B: tl.constexpr):
    """Programs take tiles from a counter until none is left."""
    tile = tl.atomic_add(counter, 1, sem="relaxed")
    while tile < tiles:
        i = tile * B + tl.arange(0, B)
        tl.store(out + i, tl.load(x + i) * 2 + tile)
        tile = tl.atomic_add(counter, 1, sem="relaxed")


def queue() -> Any:
    x, out, counter = f32(9, 128), np.zeros((9, 128), np.float32), np.zeros(1, np.int32)
    from_queue[(4,)](x, out, counter, 9, B=128)
    return [(out, 2 * x + np.arange(9)[:, None], 1e-6), (counter, [13], 0)]


@triton.jit
def looking_back(x, out, state, B: tl.constexpr):
    """A scan in one pass: a tile's state is a flag and a sum in one word of 64 bits."""
    tile = tl.program_id(0)
    i = tl.arange(0, B)
    v = tl.load(x + tile * B + i)
    total = tl.sum(v, axis=0).to(tl.int64)
    before = tl.full([], 0, tl.int64)
    if tile > 0:
        tl.atomic_xchg(state + tile, total + (tl.full([], 1, tl.int64) << 40), sem="release")
    at = tile - 1
    while at >= 0:
        word = tl.atomic_add(state + at, tl.full([], 0, tl.int64), sem="acquire")
        flag = word >> 40
        before += tl.where(flag > 0, word & 0xFFFFFFFFFF, 0)
        at = tl.where(flag == 2, -1, tl.where(flag == 1, at - 1, at))
    tl.atomic_xchg(state + tile, before + total + (tl.full([], 2, tl.int64) << 40), sem="release")
    tl.store(out + tile * B + i, before + tl.cumsum(v, axis=0))


def look_back() -> Any:
    x = R.integers(0, 50, (7, 256)).astype(np.int32)
    out = np.zeros((7, 256), np.int64)
    looking_back[(7,)](x, out, np.zeros(7, np.int64), B=256)
    return [(out, np.cumsum(x).reshape(7, 256), 0)]


@triton.jit
def last_adds(x, parts, out, counter, n, B: tl.constexpr, P: tl.constexpr):
    """Each program leaves a part; the last one to arrive adds all parts."""
    pid = tl.program_id(0)
    i = pid * B + tl.arange(0, B)
    tl.store(parts + pid, tl.sum(tl.load(x + i, mask=i < n, other=0.0), axis=0))
    tl.debug_barrier()
    if tl.atomic_add(counter, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.debug_barrier()
        p = tl.arange(0, P)
        tl.store(out, tl.sum(tl.load(parts + p, mask=p < tl.num_programs(0), other=0.0), axis=0))
        tl.store(counter, 0)


def last_program() -> Any:
    x, out, counter = f32(1000), np.zeros(1, np.float32), np.zeros(1, np.int32)
    last_adds[(8,)](x, np.zeros(8, np.float32), out, counter, 1000, B=128, P=8)
    return [(out, [x.sum(dtype=float)], 1e-3), (counter, [0], 0)]


@triton.jit
def locked_sums(x, sums, locks, counts, N: tl.constexpr, G: tl.constexpr):
    """Rows add to one of G sums under a lock; the first one in stores."""
    row = tl.program_id(0)
    i = tl.arange(0, N)
    v = tl.load(x + row * N + i)
    group = row % G
    while tl.atomic_cas(locks + group, 0, 1) == 1:
        pass
    tl.debug_barrier()
    first = tl.load(counts + group) == 0
    tl.debug_barrier()  # all warps have read the count
    if first:
        tl.store(counts + group, 1)
    else:
        v += tl.load(sums + group * N + i)
    tl.store(sums + group * N + i, v)
    tl.debug_barrier()
    tl.atomic_xchg(locks + group, 0)


def locks() -> Any:
    x, sums = f32(5, 128), np.zeros((2, 128), np.float32)
    locked_sums[(5,)](x, sums, np.zeros(2, np.int32), np.zeros(2, np.int32), N=128, G=2)
    return [(sums, np.stack([x[g::2].sum(0, dtype=float) for g in range(2)]), 1e-5)]


@triton.jit
def met(arrived, generation, count):
    """All programs of the grid meet."""
    tl.debug_barrier()
    mine = tl.atomic_add(generation, 0, sem="acquire")
    if tl.atomic_add(arrived, 1, sem="acq_rel") == count - 1:
        tl.atomic_xchg(arrived, 0, sem="relaxed")
        tl.atomic_add(generation, 1, sem="release")
    else:
        while tl.atomic_add(generation, 0, sem="acquire") == mine:
            pass
    tl.debug_barrier()


@triton.jit
def jacobi(a, b, sync, steps, N: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    for _ in range(steps):
        left, right = tl.load(a + (i + N - 1) % N), tl.load(a + (i + 1) % N)
        tl.store(b + i, (left + right) * 0.5)
        met(sync, sync + 1, tl.num_programs(0))
        left, right = tl.load(b + (i + N - 1) % N), tl.load(b + (i + 1) % N)
        tl.store(a + i, (left + right) * 0.5)
        met(sync, sync + 1, tl.num_programs(0))


def grid_barrier() -> Any:
    a = f32(256)
    want = a.astype(float)
    for _ in range(4):
        want = (np.roll(want, 1) + np.roll(want, -1)) / 2
    jacobi[(2,)](a, np.zeros_like(a), np.zeros(2, np.int32), 2, N=256, B=128)
    return [(a, want, 1e-5)]


@triton.jit
def taken(keys, slots, counts, n, S: tl.constexpr, B: tl.constexpr):
    """Each lane's key finds its slot by compare-and-swap, and is counted there."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    live = i < n
    key = tl.load(keys + i, mask=live, other=0)
    at = (key * 7) % S
    left = tl.sum(live.to(tl.int32), axis=0)
    while left > 0:
        held = tl.atomic_cas(slots + at, tl.where(live, 0, -1), key)
        found = live & ((held == 0) | (held == key))
        tl.atomic_add(counts + at, 1, mask=found)
        live = live & ~found
        at = tl.where(live, (at + 1) % S, at)
        left = tl.sum(live.to(tl.int32), axis=0)


def hash_counts() -> Any:
    keys = R.integers(1, 20, 200).astype(np.int32)
    slots, counts = np.zeros(32, np.int32), np.zeros(32, np.int32)
    taken[(2,)](keys, slots, counts, 200, S=32, B=128)
    order = np.argsort(slots, kind="stable")
    held = slots[order] != 0
    return [(slots[order][held], np.unique(keys), 0), (counts[order][held], np.unique(keys, return_counts=True)[1], 0)]


@triton.jit
def with_epilogue(a, b, c, bias, M, N, K, M_: tl.constexpr, N_: tl.constexpr, K_: tl.constexpr):
    """Persistent products whose tiles leave by tensor stores, half a tile at a time."""
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [M_, K_])
    right = tl.make_tensor_descriptor(b, [N, K], [K, 1], [N_, K_])
    result = tl.make_tensor_descriptor(c, [M, N], [N, 1], [M_, N_ // 2])
    across = tl.cdiv(N, N_)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, M_) * across, tl.num_programs(0), flatten=False):
        i, j = tile // across * M_, tile % across * N_
        total = tl.zeros([M_, N_], tl.float32)
        for k in range(0, K, K_):
            total = tl.dot(left.load([i, k]), right.load([j, k]).T, total)
        total += tl.load(bias + j + tl.arange(0, N_), mask=j + tl.arange(0, N_) < N, other=0.0)[None, :]
        halves = tl.permute(tl.reshape(tl.maximum(total, 0.0), (M_, 2, N_ // 2)), (0, 2, 1))
        low, high = tl.split(halves)
        result.store([i, j], low.to(tl.float16))
        result.store([i, j + N_ // 2], high.to(tl.float16))


def tma_epilogue() -> Any:
    triton.set_allocator(allocator)
    a, b, bias, c = f16(160, 96), f16(96, 96), f32(96), np.zeros((160, 96), np.float16)
    with_epilogue[(2,)](a, b, c, bias, 160, 96, 96, M_=64, N_=64, K_=32)
    return [(c, np.maximum(a.astype(float) @ b.astype(float).T + bias, 0), 5e-2)]


EVERYWHERE = (split_k_in_turn, queue, look_back, last_program, locks, grid_barrier, hash_counts)
HOPPER = (tma_epilogue,)
