"""Kernels in the ways of Gluon's tutorials on warp specialisation, clusters and descriptors that the device makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .gluon_kernels import Tensor, aligned, descriptor, f32, fetch, normal


@gluon.jit
def load_parts(a, b, left, right, full, free, row, steps, N: gl.constexpr, S: gl.constexpr):
    for step in range(steps):
        at = step % S
        mbarrier.wait(free.index(at), (step // S & 1) ^ 1)
        mbarrier.expect(full.index(at), 2 * a.block_type.nbytes)
        tma.async_load(a, [row, step * N], full.index(at), left.index(at))
        tma.async_load(b, [row, step * N], full.index(at), right.index(at))


@gluon.jit
def store_parts(c, sums, ready, done, row, steps, N: gl.constexpr, S: gl.constexpr):
    for step in range(steps):
        at = step % S
        mbarrier.wait(ready.index(at), step // S & 1)
        tma.async_store(c, [row, step * N], sums.index(at))
        tma.store_wait(pendings=S - 1)
        mbarrier.arrive(done.index((step + 1) % S), count=1, pred=step >= S - 1)
    tma.store_wait(pendings=0)


@gluon.jit
def add_parts(left, right, sums, full, free, ready, done, steps, layout: gl.constexpr, S: gl.constexpr):
    for step in range(steps):
        at, phase = step % S, step // S & 1
        mbarrier.wait(full.index(at), phase)
        v = left.index(at).load(layout) + right.index(at).load(layout)
        fence_async_shared()  # the copies that fill the stages again must not overtake these loads
        mbarrier.arrive(free.index(at), count=1)
        mbarrier.wait(done.index(at), phase ^ 1)
        sums.index(at).store(v)
        fence_async_shared()
        mbarrier.arrive(ready.index(at), count=1)


@gluon.jit
def specialised_add(a, b, c, steps, M: gl.constexpr, N: gl.constexpr, S: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
    row = gl.program_id(0) * M
    left = gl.allocate_shared_memory(gl.float32, [S, M, N], a.layout)
    right = gl.allocate_shared_memory(gl.float32, [S, M, N], b.layout)
    sums = gl.allocate_shared_memory(gl.float32, [S, M, N], c.layout)
    full, free = mbarrier.allocate_mbarrier(batch=S), mbarrier.allocate_mbarrier(batch=S)
    ready, done = mbarrier.allocate_mbarrier(batch=S), mbarrier.allocate_mbarrier(batch=S)
    for s in gl.static_range(S):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(free.index(s), count=1)
        mbarrier.init(ready.index(s), count=1)
        mbarrier.init(done.index(s), count=1)
    gl.warp_specialize(
        [
            (add_parts, (left, right, sums, full, free, ready, done, steps, layout, S)),
            (load_parts, (a, b, left, right, full, free, row, steps, N, S)),
            (store_parts, (c, sums, ready, done, row, steps, N, S)),
        ],
        [1, 1],
        [24, 24],
    )


def warp_specialised_add() -> Any:
    a, b, c = normal(64, 256, dtype=np.float32), normal(64, 256, dtype=np.float32), aligned(64, 256, dtype=np.float32)
    specialised_add[(2,)](*(descriptor(x, [32, 32]) for x in (a, b, c)), 8, M=32, N=32, S=2, num_warps=4)
    return [(c, a + b, 0)]


@gluon.jit
def load_tiles(
    a, b, sa, sb, full, free, N, K, count, M_: gl.constexpr, N_: gl.constexpr, K_: gl.constexpr, S: gl.constexpr
):
    columns, number = gl.cdiv(N, N_), 0
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        for k in range(0, K, K_):
            mbarrier.wait(free.index(number % S), (number // S & 1) ^ 1)
            number = fetch(a, b, full, sa, sb, tile // columns * M_, tile % columns * N_, k, number, True, S)


@gluon.jit
def multiply_tiles(
    c, sa, sb, sc, full, free, N, K, count, M_: gl.constexpr, N_: gl.constexpr, K_: gl.constexpr, S: gl.constexpr
):
    columns, number = gl.cdiv(N, N_), 0
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, N_, 16])
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        acc = gl.zeros([M_, N_], gl.float32, layout)
        for _ in range(0, K, K_):
            at = number % S
            mbarrier.wait(full.index(at), number // S & 1)
            token = warpgroup_mma(sa.index(at), sb.index(at), acc, is_async=True)
            acc = warpgroup_mma_wait(num_outstanding=0, deps=(token,))
            mbarrier.arrive(free.index(at), count=1)
            number += 1
        tma.store_wait(pendings=0)
        sc.store(acc.to(gl.float16))
        fence_async_shared()
        tma.async_store(c, [tile // columns * M_, tile % columns * N_], sc)
    tma.store_wait(pendings=0)


@gluon.jit
def specialised_product(a, b, c, M, N, K, M_: gl.constexpr, N_: gl.constexpr, K_: gl.constexpr, S: gl.constexpr):
    sa = gl.allocate_shared_memory(gl.float16, [S, M_, K_], a.layout)
    sb = gl.allocate_shared_memory(gl.float16, [S, K_, N_], b.layout)
    sc = gl.allocate_shared_memory(gl.float16, [M_, N_], c.layout)
    full, free = mbarrier.allocate_mbarrier(batch=S), mbarrier.allocate_mbarrier(batch=S)
    for s in gl.static_range(S):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(free.index(s), count=1)
    count = gl.cdiv(M, M_) * gl.cdiv(N, N_)
    gl.warp_specialize(
        [
            (multiply_tiles, (c, sa, sb, sc, full, free, N, K, count, M_, N_, K_, S)),
            (load_tiles, (a, b, sa, sb, full, free, N, K, count, M_, N_, K_, S)),
        ],
        [1],
        [24],
    )


def warp_specialised_product(warps: int = 4) -> Any:
    a, b, c = normal(256, 128), normal(128, 192), aligned(256, 192)
    maps = [descriptor(a, [128, 64]), descriptor(b, [64, 64]), descriptor(c, [128, 64])]
    specialised_product[(3,)](*maps, 256, 192, 128, M_=128, N_=64, K_=64, S=3, num_warps=warps)
    return [(c, a.astype(float) @ b.astype(float), 3e-2)]


def warp_specialised_eight_warps() -> Any:
    return warp_specialised_product(8)


@gluon.jit
def cluster_softmax(x, out, n, B: gl.constexpr, cga: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [gl.num_warps()], [0], cga_layout=cga)
    i = gl.arange(0, B, layout)
    v = gl.load(x + gl.program_id(0) * n + i, mask=i < n, other=-float("inf"))
    e = gl.exp(v - gl.max(v, axis=0))
    gl.store(out + gl.program_id(0) * n + i, e / gl.sum(e, axis=0), mask=i < n)


def multicta_softmax() -> Any:
    x, found = f32(2, 1000), []
    e = np.exp(x.astype(float))
    for cga in (((1,),), ((1,), (2,))):
        out = np.zeros_like(x)
        cluster_softmax[(2,)](x, out, 1000, B=1024, cga=cga, num_warps=1, num_ctas=2 ** len(cga))
        found.append((out, e / e.sum(1, keepdims=True), 1e-6))
    return found


@gluon.jit
def cluster_product(a, b, c, K, K_: gl.constexpr, S: gl.constexpr):
    M_: gl.constexpr = a.block_type.shape[0]
    N_: gl.constexpr = b.block_type.shape[1]
    sa = gl.allocate_shared_memory(gl.float16, [S, M_, K_], a.layout)
    sb = gl.allocate_shared_memory(gl.float16, [S, K_, N_], b.layout)
    full, free = mbarrier.allocate_mbarrier(batch=S), mbarrier.allocate_mbarrier(batch=S)
    for s in gl.static_range(S):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(free.index(s), count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N_, 16], cga_layout=c.layout.cga_layout)
    acc = gl.zeros([M_, N_], gl.float32, layout)
    for k in range(0, K, K_):
        number = k // K_
        at = number % S
        mbarrier.expect(full.index(at), a.nbytes_per_cta + b.nbytes_per_cta)
        tma.async_load(a, [0, k], full.index(at), sa.index(at))
        tma.async_load(b, [k, 0], full.index(at), sb.index(at), multicast=True)
        mbarrier.wait(full.index(at), number // S & 1)
        token = warpgroup_mma(sa.index(at), sb.index(at), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(token,))
        gl.barrier(cluster=True)  # b is sent to both blocks, which have read it now
    sc = gl.allocate_shared_memory(gl.float16, c.block_type.shape, c.layout)
    sc.store(acc.to(gl.float16))
    fence_async_shared()
    tma.async_store(c, [0, 0], sc)
    tma.store_wait(pendings=0)


def multicast_product() -> Any:
    a, b, c = normal(128, 128), normal(128, 64), aligned(128, 64)
    rows, both = [[1, 0]], [[0, 0]]
    maps = [
        descriptor(a, [128, 64], cga_layout=rows),
        descriptor(b, [64, 64], cga_layout=both),
        descriptor(c, [128, 64], cga_layout=rows),
    ]
    cluster_product[(1,)](*maps, 128, K_=64, S=2, num_warps=4, num_ctas=2)
    return [(c, a.astype(float) @ b.astype(float), 3e-2)]


@gluon.jit
def device_made(x, out, M, N, B: gl.constexpr):
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 32, rank=2)
    src = tma.make_tensor_descriptor(x, [M, N], [N, 1], [B, B], layout)
    dst = tma.make_tensor_descriptor(out, [M, N], [N, 1], [B, B], layout)
    row, column = gl.program_id(0) * B, gl.program_id(1) * B
    smem = gl.allocate_shared_memory(gl.float32, [B, B], layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, src.block_type.nbytes)
    tma.async_load(src, [row, column], bar, smem)
    mbarrier.wait(bar, phase=0)
    tma.async_atomic_add(dst, [row, column], smem)
    tma.store_wait(pendings=0)


class Buffer(Tensor):
    """Memory for descriptors, as Triton's allocator gives it."""

    def __init__(self, size: int) -> None:
        super().__init__(aligned(size, dtype=np.uint8))


def device_descriptors() -> Any:
    triton.set_allocator(lambda size, alignment, stream: Buffer(size))
    x, out = normal(70, 48, dtype=np.float32), normal(70, 48, dtype=np.float32)
    before = out.copy()
    device_made[(3, 2)](x, out, 70, 48, B=32, num_warps=4)
    return [(out, before + x, 0)]


EVERYWHERE = ()
HOPPER = (
    warp_specialised_add, warp_specialised_product, warp_specialised_eight_warps, multicta_softmax, multicast_product, device_descriptors,
)  # fmt: skip
