"""Kernels of the kinds that Gluon's tutorials teach with. Functions that launch one and give triples (result, wanted, tolerance)."""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

R = np.random.default_rng(9)


def f32(*shape: int) -> Any:
    return R.standard_normal(shape).astype(np.float32)


def f16(*shape: int) -> Any:
    return f32(*shape).astype(np.float16)


class Tensor:
    """A NumPy array with the members that host-side descriptors ask tensors for."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__
        self.dtype = array.dtype
        self.shape = list(array.shape)

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def stride(self) -> list[int]:
        return [s // self.array.itemsize for s in self.array.strides]


def aligned(*shape: int, dtype: Any = np.float16) -> Any:
    """Zeros at a multiple of 128 bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 128, np.uint8)
    start = -raw.ctypes.data % 128
    return raw[start : start + size].view(dtype).reshape(shape)


def normal(*shape: int, dtype: Any = np.float16) -> Any:
    made = aligned(*shape, dtype=dtype)
    made[...] = f32(*shape)
    return made


def descriptor(array: Any, block: list[int], **layout: Any) -> Any:
    kind = {2: gl.float16, 4: gl.float32, 1: gl.int8}[array.itemsize]
    return TensorDescriptor.from_tensor(
        Tensor(array), block, gl.NVMMASharedLayout.get_default_for(block, kind, **layout)
    )


@gluon.jit
def copied(x, out, n, B: gl.constexpr, layout: gl.constexpr):
    i = gl.program_id(0) * B + gl.arange(0, B, layout)
    gl.store(out + i, gl.load(x + i, mask=i < n), mask=i < n)


def copy() -> Any:
    x, found = f32(1000), []
    for size in (1, 2, 4):
        out = np.zeros_like(x)
        layout = gl.BlockedLayout([size], [32], [4], [0])
        copied[(4,)](x, out, 1000, B=256, layout=layout, num_warps=4)
        found.append((out, x, 0))
    return found


@gluon.jit
def turned(x, out, M, N, T: gl.constexpr, there: gl.constexpr, back: gl.constexpr):
    i = gl.program_id(0) * T + gl.arange(0, T, gl.SliceLayout(1, there))
    j = gl.program_id(1) * T + gl.arange(0, T, gl.SliceLayout(0, there))
    v = gl.load(x + i[:, None] * N + j[None, :], mask=(i[:, None] < M) & (j[None, :] < N), other=0.0)
    v = gl.convert_layout(v, back)
    i = gl.program_id(0) * T + gl.arange(0, T, gl.SliceLayout(1, back))
    j = gl.program_id(1) * T + gl.arange(0, T, gl.SliceLayout(0, back))
    gl.store(out + j[None, :] * M + i[:, None], v, mask=(i[:, None] < M) & (j[None, :] < N))


def transpose() -> Any:
    x, out = f32(70, 50), np.zeros((50, 70), np.float32)
    there, back = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]), gl.BlockedLayout([4, 1], [8, 4], [1, 4], [0, 1])
    turned[(2, 1)](x, out, 70, 50, T=64, there=there, back=back, num_warps=4)
    return [(out, x.T, 0)]


@gluon.jit
def through_smem(x, out, M: gl.constexpr, N: gl.constexpr, layout: gl.constexpr, shared: gl.constexpr):
    i, j = gl.arange(0, M, gl.SliceLayout(1, layout)), gl.arange(0, N, gl.SliceLayout(0, layout))
    smem = gl.allocate_shared_memory(gl.float32, [M, N], shared)
    smem.store(gl.load(x + i[:, None] * N + j[None, :]))
    flipped = smem.permute([1, 0])
    other: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    v = flipped.load(other)
    i, j = gl.arange(0, N, gl.SliceLayout(1, other)), gl.arange(0, M, gl.SliceLayout(0, other))
    gl.store(out + i[:, None] * M + j[None, :], v)


def smem_transpose() -> Any:
    x, found = f32(32, 64), []
    for shared in (gl.SwizzledSharedLayout(1, 1, 1, [1, 0]), gl.SwizzledSharedLayout(1, 1, 32, [1, 0])):
        out = np.zeros((64, 32), np.float32)
        layout = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
        through_smem[(1,)](x, out, M=32, N=64, layout=layout, shared=shared, num_warps=4)
        found.append((out, x.T, 0))
    return found


@gluon.jit
def added(a, b, c, n, B: gl.constexpr, S: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    left = gl.allocate_shared_memory(gl.float32, [S, B], shared)
    right = gl.allocate_shared_memory(gl.float32, [S, B], shared)
    base = gl.program_id(0) * n
    lanes = gl.arange(0, B, layout)
    read = 0
    for _ in gl.static_range(S - 1):
        i = base + read * B + lanes
        async_copy.async_load(left.index(read % S), a + i, mask=i < base + n)
        async_copy.async_load(right.index(read % S), b + i, mask=i < base + n)
        async_copy.commit_group()
        read += 1
    for step in range(gl.cdiv(n, B)):
        i = base + read * B + lanes
        async_copy.async_load(left.index(read % S), a + i, mask=i < base + n)
        async_copy.async_load(right.index(read % S), b + i, mask=i < base + n)
        async_copy.commit_group()
        read += 1
        async_copy.wait_group(S - 1)
        i = base + step * B + lanes
        v = left.index(step % S).load(layout) + right.index(step % S).load(layout)
        gl.store(c + i, v, mask=i < base + n)
    async_copy.wait_group(0)


def async_add() -> Any:
    a, b = f32(2, 1000), f32(2, 1000)
    c = np.zeros_like(a)
    added[(2,)](a, b, c, 1000, B=128, S=4, num_warps=4)
    return [(c, a + b, 0)]


@gluon.jit
def mma_tiles(a, b, c, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr):
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
    lhs: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    rhs: gl.constexpr = gl.DotOperandLayout(1, mma, 2)
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    i, k = gl.arange(0, M, gl.SliceLayout(1, layout)), gl.arange(0, K, gl.SliceLayout(0, layout))
    left = gl.convert_layout(gl.load(a + i[:, None] * K + k[None, :]), lhs)
    k, j = gl.arange(0, K, gl.SliceLayout(1, layout)), gl.arange(0, N, gl.SliceLayout(0, layout))
    right = gl.convert_layout(gl.load(b + k[:, None] * N + j[None, :]), rhs)
    acc = mma_v2(left, right, gl.zeros([M, N], gl.float32, mma))
    i, j = gl.arange(0, M, gl.SliceLayout(1, mma)), gl.arange(0, N, gl.SliceLayout(0, mma))
    gl.store(c + i[:, None] * N + j[None, :], acc)


def ampere_product() -> Any:
    a, b, c = f16(64, 64), f16(64, 64), np.zeros((64, 64), np.float32)
    mma_tiles[(1,)](a, b, c, M=64, N=64, K=64, num_warps=4)
    return [(c, a.astype(float) @ b.astype(float), 1e-3)]


@gluon.jit
def fma_tiles(a, b, c, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([2, 2], [4, 8], [4, 1], [1, 0])
    i, j = gl.arange(0, M, gl.SliceLayout(1, layout)), gl.arange(0, N, gl.SliceLayout(0, layout))
    k = gl.arange(0, K, gl.SliceLayout(0, layout))
    left = gl.convert_layout(gl.load(a + i[:, None] * K + k[None, :]), gl.DotOperandLayout(0, layout, 0))
    k = gl.arange(0, K, gl.SliceLayout(1, layout))
    right = gl.convert_layout(gl.load(b + k[:, None] * N + j[None, :]), gl.DotOperandLayout(1, layout, 0))
    acc = gl.dot_fma(left, right, gl.zeros([M, N], gl.float32, layout))
    gl.store(c + i[:, None] * N + j[None, :], acc)


def fma_product() -> Any:
    a, b, c = f32(32, 16), f32(16, 32), np.zeros((32, 32), np.float32)
    fma_tiles[(1,)](a, b, c, M=32, N=32, K=16, num_warps=4)
    return [(c, a.astype(float) @ b.astype(float), 1e-4)]


@gluon.jit
def rows_normed(x, out, n, B: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [gl.num_warps(), 1], [1, 0])
    i = gl.program_id(0) * 4 + gl.arange(0, 4, gl.SliceLayout(1, layout))
    j = gl.arange(0, B, gl.SliceLayout(0, layout))
    v = gl.load(x + i[:, None] * n + j[None, :], mask=j[None, :] < n, other=-float("inf"))
    e = gl.exp(v - gl.max(v, axis=1)[:, None])
    gl.store(out + i[:, None] * n + j[None, :], e / gl.sum(e, axis=1)[:, None], mask=j[None, :] < n)


def softmax() -> Any:
    x = f32(8, 200)
    out = np.zeros_like(x)
    rows_normed[(2,)](x, out, 200, B=256, num_warps=4)
    e = np.exp(x.astype(float))
    return [(out, e / e.sum(1, keepdims=True), 1e-6)]


@gluon.jit
def picked(x, places, out, counts, N: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i = gl.arange(0, N, layout)
    v = gl.load(x + i)
    gl.store(out + i, gl.gather(v, gl.load(places + i), axis=0))
    gl.atomic_add(counts + v % 16, 1)


def gathers() -> Any:
    x, places = R.integers(0, 1000, 256).astype(np.int32), R.integers(0, 256, 256).astype(np.int32)
    out, counts = np.zeros(256, np.int32), np.zeros(16, np.int32)
    picked[(1,)](x, places, out, counts, N=256, num_warps=4)
    return [(out, x[places], 0), (counts, np.bincount(x % 16, minlength=16), 0)]


# Hopper


@gluon.jit
def tma_copied(src, dst, B: gl.constexpr):
    at = gl.program_id(0) * B
    smem = gl.allocate_shared_memory(src.dtype, [B], src.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, src.block_type.nbytes)
    tma.async_load(src, [at], bar, smem)
    mbarrier.wait(bar, phase=0)
    mbarrier.invalidate(bar)
    tma.async_store(dst, [at], smem)
    tma.store_wait(pendings=0)


def tma_copy() -> Any:
    x, out = normal(1000, dtype=np.float32), aligned(1000, dtype=np.float32)
    layout = gl.NVMMASharedLayout(0, 32, rank=1)
    maps = [TensorDescriptor.from_tensor(Tensor(a), [256], layout) for a in (x, out)]
    tma_copied[(4,)](*maps, B=256, num_warps=1)
    return [(out, x, 0)]


@gluon.jit
def tma_added(a, b, c, steps, M: gl.constexpr, N: gl.constexpr, S: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
    row = gl.program_id(0) * M
    left = gl.allocate_shared_memory(gl.float32, [S, M, N], a.layout)
    right = gl.allocate_shared_memory(gl.float32, [S, M, N], b.layout)
    sums = gl.allocate_shared_memory(gl.float32, [S, M, N], c.layout)
    bars = mbarrier.allocate_mbarrier(batch=S)
    for s in gl.static_range(S):
        mbarrier.init(bars.index(s), count=1)
    for s in gl.static_range(S - 1):
        mbarrier.expect(bars.index(s), 2 * a.block_type.nbytes)
        tma.async_load(a, [row, s * N], bars.index(s), left.index(s))
        tma.async_load(b, [row, s * N], bars.index(s), right.index(s))
    for step in range(steps):
        ahead = step + S - 1
        at = ahead % S
        mbarrier.expect(bars.index(at), 2 * a.block_type.nbytes, pred=ahead < steps)
        tma.async_load(a, [row, ahead * N], bars.index(at), left.index(at), pred=ahead < steps)
        tma.async_load(b, [row, ahead * N], bars.index(at), right.index(at), pred=ahead < steps)
        now = step % S
        mbarrier.wait(bars.index(now), step // S & 1)
        v = left.index(now).load(layout) + right.index(now).load(layout)
        tma.store_wait(pendings=S - 1)
        sums.index(now).store(v)
        fence_async_shared()
        tma.async_store(c, [row, step * N], sums.index(now))
    tma.store_wait(pendings=0)
    for s in gl.static_range(S):
        mbarrier.invalidate(bars.index(s))


def tma_add() -> Any:
    a, b, c = normal(64, 256, dtype=np.float32), normal(64, 256, dtype=np.float32), aligned(64, 256, dtype=np.float32)
    tma_added[(2,)](*(descriptor(x, [32, 32]) for x in (a, b, c)), 8, M=32, N=32, S=2, num_warps=4)
    return [(c, a + b, 0)]


@gluon.jit
def one_product(a, b, c, d, LHS: gl.constexpr, N: gl.constexpr):
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    sa = gl.allocate_shared_memory(a.dtype, a.block_type.shape, a.layout)
    sb = gl.allocate_shared_memory(b.dtype, b.block_type.shape, b.layout)
    sc = gl.allocate_shared_memory(c.dtype, c.block_type.shape, c.layout)
    mbarrier.expect(bar, a.block_type.nbytes + b.block_type.nbytes + c.block_type.nbytes)
    tma.async_load(a, [0, 0], bar, sa)
    tma.async_load(b, [0, 0], bar, sb)
    tma.async_load(c, [0, 0], bar, sc)
    mbarrier.wait(bar, phase=0)
    mbarrier.invalidate(bar)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    acc = sc.load(layout)
    if LHS:
        left = sa.load(gl.DotOperandLayout(0, layout, 2))
        acc = warpgroup_mma(left, sb, acc, is_async=True)
    else:
        acc = warpgroup_mma(sa, sb, acc, is_async=True)
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    sd = gl.allocate_shared_memory(d.dtype, d.block_type.shape, d.layout)
    sd.store(acc)
    fence_async_shared()
    tma.async_store(d, [0, 0], sd)
    tma.store_wait(pendings=0)


def wgmma_small() -> Any:
    a, b, c = normal(64, 32), normal(32, 64), normal(64, 64, dtype=np.float32)
    found = []
    for registers in (False, True):
        d = aligned(64, 64, dtype=np.float32)
        maps = [descriptor(a, [64, 32]), descriptor(b, [32, 64]), descriptor(c, [64, 64]), descriptor(d, [64, 64])]
        one_product[(1,)](*maps, LHS=registers, N=64, num_warps=4)
        found.append((d, a.astype(float) @ b.astype(float) + c, 1e-3))
    return found


@gluon.jit
def pipelined(a, b, c, K, M_: gl.constexpr, N_: gl.constexpr, K_: gl.constexpr, S: gl.constexpr):
    row, column = gl.program_id(0) * M_, gl.program_id(1) * N_
    sa = gl.allocate_shared_memory(gl.float16, [S, M_, K_], a.layout)
    sb = gl.allocate_shared_memory(gl.float16, [S, K_, N_], b.layout)
    bars = mbarrier.allocate_mbarrier(batch=S)
    for s in gl.static_range(S):
        mbarrier.init(bars.index(s), count=1)
    steps = gl.cdiv(K, K_)
    for s in gl.static_range(S - 1):
        mbarrier.expect(bars.index(s), a.block_type.nbytes + b.block_type.nbytes, pred=s < steps)
        tma.async_load(a, [row, s * K_], bars.index(s), sa.index(s), pred=s < steps)
        tma.async_load(b, [s * K_, column], bars.index(s), sb.index(s), pred=s < steps)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, N_, 16])
    acc = warpgroup_mma_init(gl.zeros([M_, N_], gl.float32, layout))
    for step in range(steps):
        now = step % S
        mbarrier.wait(bars.index(now), step // S & 1)
        acc = warpgroup_mma(sa.index(now), sb.index(now), acc, is_async=True)
        # the product before this one has ended, so the stage that it read may be filled
        acc = warpgroup_mma_init(warpgroup_mma_wait(num_outstanding=1, deps=(acc,)))
        ahead = step + S - 1
        at = ahead % S
        mbarrier.expect(bars.index(at), a.block_type.nbytes + b.block_type.nbytes, pred=ahead < steps)
        tma.async_load(a, [row, ahead * K_], bars.index(at), sa.index(at), pred=ahead < steps)
        tma.async_load(b, [ahead * K_, column], bars.index(at), sb.index(at), pred=ahead < steps)
    result = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    for s in gl.static_range(S):
        mbarrier.invalidate(bars.index(s))
    sc = gl.allocate_shared_memory(gl.float16, [M_, N_], c.layout)
    sc.store(result.to(gl.float16))
    fence_async_shared()
    tma.async_store(c, [row, column], sc)
    tma.store_wait(pendings=0)


def wgmma_pipelined() -> Any:
    a, b, c = normal(256, 192), normal(192, 128), aligned(256, 128)
    maps = [descriptor(a, [128, 64]), descriptor(b, [64, 64]), descriptor(c, [128, 64])]
    pipelined[(2, 2)](*maps, 192, M_=128, N_=64, K_=64, S=3, num_warps=4)
    return [(c, a.astype(float) @ b.astype(float), 3e-2)]


def wgmma_eight_warps() -> Any:
    a, b, c = normal(128, 256), normal(256, 128), aligned(128, 128)
    maps = [descriptor(a, [128, 64]), descriptor(b, [64, 128]), descriptor(c, [128, 128])]
    pipelined[(1, 1)](*maps, 256, M_=128, N_=128, K_=64, S=4, num_warps=8)
    return [(c, a.astype(float) @ b.astype(float), 5e-2)]


@gluon.jit
def fetch(a, b, bars, sa, sb, row, column, k, number, wanted, S: gl.constexpr):
    at = number % S
    mbarrier.expect(bars.index(at), a.block_type.nbytes + b.block_type.nbytes, pred=wanted)
    tma.async_load(a, [row, k], bars.index(at), sa.index(at), pred=wanted)
    tma.async_load(b, [k, column], bars.index(at), sb.index(at), pred=wanted)
    return number + 1


@gluon.jit
def persistent(a, b, c, M, N, K, M_: gl.constexpr, N_: gl.constexpr, K_: gl.constexpr, S: gl.constexpr):
    sa = gl.allocate_shared_memory(gl.float16, [S, M_, K_], a.layout)
    sb = gl.allocate_shared_memory(gl.float16, [S, K_, N_], b.layout)
    sc = gl.allocate_shared_memory(gl.float16, [M_, N_], c.layout)
    bars = mbarrier.allocate_mbarrier(batch=S)
    for s in gl.static_range(S):
        mbarrier.init(bars.index(s), count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, N_, 16])
    columns, count = gl.cdiv(N, N_), gl.cdiv(M, M_) * gl.cdiv(N, N_)
    loaded = 0
    used = 0
    tile = gl.program_id(0)
    for s in gl.static_range(S - 1):
        loaded = fetch(a, b, bars, sa, sb, tile // columns * M_, tile % columns * N_, s * K_, loaded, True, S)
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        row, column = tile // columns * M_, tile % columns * N_
        acc = warpgroup_mma_init(gl.zeros([M_, N_], gl.float32, layout))
        for k in range(0, K, K_):
            now = used % S
            mbarrier.wait(bars.index(now), used // S & 1)
            used += 1
            acc = warpgroup_mma(sa.index(now), sb.index(now), acc, is_async=True)
            acc = warpgroup_mma_init(warpgroup_mma_wait(num_outstanding=1, deps=(acc,)))
            ahead = k + (S - 1) * K_
            if ahead < K:
                loaded = fetch(a, b, bars, sa, sb, row, column, ahead, loaded, True, S)
        result = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        following = tile + gl.num_programs(0)
        if following < count:  # the first loads of the next tile run beside the store of this one
            for s in gl.static_range(S - 1):
                loaded = fetch(
                    a, b, bars, sa, sb, following // columns * M_, following % columns * N_, s * K_, loaded, True, S
                )
        tma.store_wait(pendings=0)
        sc.store(result.to(gl.float16))
        fence_async_shared()
        tma.async_store(c, [row, column], sc)
    tma.store_wait(pendings=0)
    for s in gl.static_range(S):
        mbarrier.invalidate(bars.index(s))


def wgmma_persistent() -> Any:
    a, b, c = normal(256, 192), normal(192, 192), aligned(256, 192)
    maps = [descriptor(a, [64, 64]), descriptor(b, [64, 64]), descriptor(c, [64, 64])]
    persistent[(3,)](*maps, 256, 192, 192, M_=64, N_=64, K_=64, S=3, num_warps=4)
    return [(c, a.astype(float) @ b.astype(float), 3e-2)]


EVERYWHERE = (copy, transpose, smem_transpose, async_add, ampere_product, fma_product, softmax, gathers)
HOPPER = (tma_copy, tma_add, wgmma_small, wgmma_pipelined, wgmma_eight_warps, wgmma_persistent)
