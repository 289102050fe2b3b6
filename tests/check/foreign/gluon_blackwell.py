"""Kernels of the kinds that Gluon's tutorials teach Blackwell with: tensor memory, its products, TMA, pipelines, pairs, block scaling."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    clc,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
    tcgen05_mma_scaled,
    tma,
)

from .gluon_kernels import R, aligned, descriptor, f16, f32, normal


@gluon.jit
def through_memory(
    x, out, M: gl.constexpr, N: gl.constexpr, layout: gl.constexpr, tmem: gl.constexpr, size: gl.constexpr
):
    rows, columns = gl.arange(0, M, gl.SliceLayout(1, layout)), gl.arange(0, N, gl.SliceLayout(0, layout))
    at = rows[:, None] * N + columns[None, :]
    memory = allocate_tensor_memory(x.dtype.element_ty, [M, N], tmem)
    registers: gl.constexpr = memory.get_reg_layout(instr_variant=size)
    memory.store(gl.convert_layout(gl.load(x + at), registers))
    gl.store(out + at, gl.convert_layout(memory.load(registers), layout))


def moves() -> Any:
    """Stores and loads of tensor memory, in the shapes of the instruction."""
    found = []
    for m, n, size in (
        (128, 64, "32x32b"),
        (128, 32, "16x64b"),
        (128, 32, "16x128b"),
        (128, 64, "16x256b"),
        (64, 64, "32x32b"),
    ):
        x = f32(m, n)
        out = np.zeros_like(x)
        layout = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
        tmem = TensorMemoryLayout((m, n), col_stride=1)
        through_memory[(1,)](x, out, M=m, N=n, layout=layout, tmem=tmem, size=size, num_warps=4)
        found.append((out, x, 0))
    return found


@gluon.jit
def small(
    a_desc, b_desc, c_desc, tmem: gl.constexpr, TRANSPOSED: gl.constexpr, FROM: gl.constexpr, from_layout: gl.constexpr
):
    """One tile: loads by TMA, one product, its result by TMA."""
    dtype: gl.constexpr = a_desc.dtype
    M: gl.constexpr = a_desc.block_type.shape[0]
    K: gl.constexpr = a_desc.block_type.shape[1]
    N: gl.constexpr = c_desc.block_type.shape[1]
    a, b = (
        gl.allocate_shared_memory(dtype, a_desc.block_type.shape, a_desc.layout),
        gl.allocate_shared_memory(dtype, b_desc.block_type.shape, b_desc.layout),
    )
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
    tma.async_load(a_desc, [0, 0], bar, a)
    tma.async_load(b_desc, [0, 0], bar, b)
    mbarrier.wait(bar, phase=0)
    acc = allocate_tensor_memory(gl.float32, [M, N], tmem)
    right = b.permute((1, 0)) if TRANSPOSED else b
    if FROM:
        left = allocate_tensor_memory(dtype, [M, K], from_layout)
        registers: gl.constexpr = left.get_reg_layout()
        left.store(a.load(registers))
        tcgen05_mma(left, right, acc, use_acc=False)
    else:
        tcgen05_mma(a, right, acc, use_acc=False)
    tcgen05_commit(bar)
    mbarrier.wait(bar, phase=1)
    mbarrier.invalidate(bar)
    c = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_desc.layout)
    c.store(acc.load().to(c_desc.dtype))
    fence_async_shared()
    tma.async_store(c_desc, [0, 0], c)
    tma.store_wait(pendings=0)


def one_tile() -> Any:
    found = []
    for m, n, k, turned, source in (
        (128, 64, 64, True, False),
        (64, 128, 64, False, False),
        (128, 32, 128, True, True),
        (64, 32, 64, False, True),
    ):
        a, b = normal(m, k), normal(n, k) if turned else normal(k, n)
        c = aligned(m, n, dtype=np.float32)
        small[(1,)](descriptor(a, [m, k]), descriptor(b, list(b.shape)), descriptor(c, [m, n]), TensorMemoryLayout((m, n), col_stride=1),
                    TRANSPOSED=turned, FROM=source, from_layout=TensorMemoryLayout((m, k), col_stride=1), num_warps=4)  # fmt: skip
        wide = b.astype(np.float64)
        found.append((c, a.astype(np.float64) @ (wide.T if turned else wide), 1e-3))
    return found


@gluon.jit
def pipelined(a_desc, b_desc, c_desc, K, tmem: gl.constexpr, STAGES: gl.constexpr):
    """Stages of TMA that a product's commit frees."""
    dtype: gl.constexpr = a_desc.dtype
    M: gl.constexpr = a_desc.block_type.shape[0]
    N: gl.constexpr = c_desc.block_type.shape[1]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    row, column = gl.program_id(0) * M, gl.program_id(1) * N
    a = gl.allocate_shared_memory(dtype, [STAGES, M, BK], a_desc.layout)
    b = gl.allocate_shared_memory(dtype, [STAGES, BK, N], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=1)
    mbarrier.init(done, count=1)
    acc = allocate_tensor_memory(gl.float32, [M, N], tmem)
    steps = gl.cdiv(K, BK)
    for step in range(steps + STAGES - 1):
        if step < steps:
            stage, turn = step % STAGES, step // STAGES
            mbarrier.wait(free.index(stage), (turn & 1) ^ 1)
            mbarrier.expect(full.index(stage), a_desc.block_type.nbytes + b_desc.block_type.nbytes)
            tma.async_load(a_desc, [row, step * BK], full.index(stage), a.index(stage))
            tma.async_load(b_desc, [step * BK, column], full.index(stage), b.index(stage))
        use = step - (STAGES - 1)
        if use >= 0:
            stage, turn = use % STAGES, use // STAGES
            mbarrier.wait(full.index(stage), turn & 1)
            tcgen05_mma(a.index(stage), b.index(stage), acc, use_acc=use > 0, mbarriers=[free.index(stage)])
    tcgen05_commit(done)
    mbarrier.wait(done, phase=0)
    c = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_desc.layout)
    c.store(acc.load().to(c_desc.dtype))
    fence_async_shared()
    tma.async_store(c_desc, [row, column], c)
    tma.store_wait(pendings=0)


def stages() -> Any:
    a, b, c = normal(256, 192), normal(192, 128), aligned(256, 128)
    pipelined[(2, 2)](descriptor(a, [128, 32]), descriptor(b, [32, 64]), descriptor(c, [128, 64]), 192,
                      TensorMemoryLayout((128, 64), col_stride=1), STAGES=3, num_warps=4)  # fmt: skip
    return [(c, a.astype(np.float64) @ b.astype(np.float64), 5e-2)]


@gluon.jit
def loading(a_desc, b_desc, a, b, full, free, K, STAGES: gl.constexpr):
    BK: gl.constexpr = a_desc.block_type.shape[1]
    for step in range(gl.cdiv(K, BK)):
        stage = step % STAGES
        mbarrier.wait(free.index(stage), ((step // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(stage), a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        tma.async_load(a_desc, [0, step * BK], full.index(stage), a.index(stage))
        tma.async_load(b_desc, [step * BK, 0], full.index(stage), b.index(stage))


@gluon.jit
def multiplying(a, b, acc, full, free, done, steps, STAGES: gl.constexpr):
    for step in range(steps):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), (step // STAGES) & 1)
        tcgen05_mma(a.index(stage), b.index(stage), acc, use_acc=step > 0)
        tcgen05_commit(free.index(stage))
    tcgen05_commit(done)


@gluon.jit
def storing(c_desc, acc, done):
    mbarrier.wait(done, phase=0)
    c = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_desc.layout)
    c.store(acc.load().to(c_desc.dtype))
    fence_async_shared()
    tma.async_store(c_desc, [0, 0], c)
    tma.store_wait(pendings=0)


@gluon.jit
def by_roles(a_desc, b_desc, c_desc, K, tmem: gl.constexpr, STAGES: gl.constexpr):
    """A warp loads, a warp multiplies, four store."""
    dtype: gl.constexpr = a_desc.dtype
    M: gl.constexpr = a_desc.block_type.shape[0]
    N: gl.constexpr = c_desc.block_type.shape[1]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    a = gl.allocate_shared_memory(dtype, [STAGES, M, BK], a_desc.layout)
    b = gl.allocate_shared_memory(dtype, [STAGES, BK, N], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(free.index(i), count=1)
    mbarrier.init(done, count=1)
    fence_async_shared()
    acc = allocate_tensor_memory(gl.float32, [M, N], tmem)
    steps = gl.cdiv(K, BK)
    gl.warp_specialize(
        [
            (storing, (c_desc, acc, done)),
            (loading, (a_desc, b_desc, a, b, full, free, K, STAGES)),
            (multiplying, (a, b, acc, full, free, done, steps, STAGES)),
        ],
        [1, 1],
        [24, 24],
    )


def roles() -> Any:
    a, b, c = normal(128, 256), normal(256, 64), aligned(128, 64)
    by_roles[(1,)](descriptor(a, [128, 32]), descriptor(b, [32, 64]), descriptor(c, [128, 64]), 256,
                   TensorMemoryLayout((128, 64), col_stride=1), STAGES=2, num_warps=4)  # fmt: skip
    return [(c, a.astype(np.float64) @ b.astype(np.float64), 5e-2)]


@gluon.jit
def chained(x, y, z, out, layout: gl.constexpr, shared: gl.constexpr, tmem: gl.constexpr, of_p: gl.constexpr):
    """(x y) z: the first product goes through registers to tensor memory, and is the second's left side."""
    i, j = gl.arange(0, 128, gl.SliceLayout(1, layout)), gl.arange(0, 64, gl.SliceLayout(0, layout))
    at = i[:, None] * 64 + j[None, :]
    k = gl.arange(0, 64, gl.SliceLayout(1, layout))
    square = k[:, None] * 64 + j[None, :]
    a = gl.allocate_shared_memory(gl.float16, [128, 64], shared, gl.load(x + at))
    b = gl.allocate_shared_memory(gl.float16, [64, 64], shared, gl.load(y + square))
    c = gl.allocate_shared_memory(gl.float16, [64, 64], shared, gl.load(z + square))
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    fence_async_shared()
    s = allocate_tensor_memory(gl.float32, [128, 64], tmem)
    d = allocate_tensor_memory(gl.float32, [128, 64], tmem)
    tcgen05_mma(a, b, s, use_acc=False, mbarriers=[bar])
    mbarrier.wait(bar, phase=0)
    p = allocate_tensor_memory(gl.float16, [128, 64], of_p)
    registers: gl.constexpr = p.get_reg_layout()
    p.store(gl.convert_layout(s.load().to(gl.float16), registers))
    tcgen05_mma(p, c, d, use_acc=False, mbarriers=[bar])
    mbarrier.wait(bar, phase=1)
    gl.store(out + at, gl.convert_layout(d.load(), layout))


def chain() -> Any:
    x, y, z, out = f16(128, 64), f16(64, 64), f16(64, 64), np.zeros((128, 64), np.float32)
    layout = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    chained[(1,)](x, y, z, out, layout, gl.NVMMASharedLayout(128, 16, 2), TensorMemoryLayout((128, 64), col_stride=1),
                  TensorMemoryLayout((128, 64), col_stride=1), num_warps=4)  # fmt: skip
    first = (x.astype(np.float64) @ y.astype(np.float64)).astype(np.float16).astype(np.float64)
    return [(out, first @ z.astype(np.float64), 0.3)]


@gluon.jit
def with_scales(
    x,
    y,
    sx,
    sy,
    out,
    K: gl.constexpr,
    layout: gl.constexpr,
    shared: gl.constexpr,
    flat: gl.constexpr,
    tmem: gl.constexpr,
    scales: gl.constexpr,
):
    """Products of e4m3 with a scale for each 32 of k, which tcgen05.cp brings from shared memory."""
    i, k = gl.arange(0, 128, gl.SliceLayout(1, layout)), gl.arange(0, K, gl.SliceLayout(0, layout))
    at = i[:, None] * K + k[None, :]
    a = gl.allocate_shared_memory(gl.float8e4nv, [128, K], shared, gl.load(x + at))
    b = gl.allocate_shared_memory(gl.float8e4nv, [128, K], shared, gl.load(y + at))
    s = gl.arange(0, K // 32, gl.SliceLayout(0, layout))
    of = i[:, None] * (K // 32) + s[None, :]
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    acc = allocate_tensor_memory(gl.float32, [128, 128], tmem)
    left = allocate_tensor_memory(gl.uint8, [128, K // 32], scales)
    right = allocate_tensor_memory(gl.uint8, [128, K // 32], scales)
    registers: gl.constexpr = left.get_reg_layout()
    left.store(gl.convert_layout(gl.load(sx + of), registers))
    right.store(gl.convert_layout(gl.load(sy + of), registers))
    fence_async_shared()
    tcgen05_mma_scaled(a, b.permute((1, 0)), acc, left, right, "e4m3", "e4m3", use_acc=False, mbarriers=[bar])
    mbarrier.wait(bar, phase=0)
    n = gl.arange(0, 128, gl.SliceLayout(0, layout))
    gl.store(out + i[:, None] * 128 + n[None, :], gl.convert_layout(acc.load(), layout))


def block_scales() -> Any:
    rng = np.random.default_rng(4)
    x, y = (f32(128, 128).astype(ml_dtypes.float8_e4m3fn) for _ in range(2))
    sx, sy = (rng.integers(124, 131, (128, 4)).astype(np.uint8) for _ in range(2))
    out = np.zeros((128, 128), np.float32)
    layout = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    with_scales[(1,)](x, y, sx, sy, out, 128, layout, gl.NVMMASharedLayout(128, 8, 2), gl.SwizzledSharedLayout(1, 1, 1, [1, 0]),
                      TensorMemoryLayout((128, 128), col_stride=1), TensorMemoryScalesLayout(), num_warps=4)  # fmt: skip
    a, b = (
        np.repeat(np.ldexp(1.0, s.astype(int) - 127), 32, axis=1) * v.astype(np.float64) for s, v in ((sx, x), (sy, y))
    )
    return [(out, a @ b.T, 1e-3)]


@gluon.jit
def by_pairs(a_desc, b_desc, c_desc, tmem: gl.constexpr, M: gl.constexpr, N: gl.constexpr, steps: gl.constexpr):
    """Two blocks multiply together: each brings half of the rows of A and half of the columns of B."""
    dtype: gl.constexpr = a_desc.dtype
    BK: gl.constexpr = a_desc.block_type.shape[1]
    a = gl.allocate_shared_memory(dtype, [M, BK], a_desc.layout)
    b = gl.allocate_shared_memory(dtype, [BK, N], b_desc.layout)
    full = mbarrier.allocate_mbarrier(two_ctas=True)
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    acc = allocate_tensor_memory(gl.float32, [M, N], tmem)
    for step in gl.static_range(steps):
        mbarrier.expect(full, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        tma.async_load(a_desc, [0, step * BK], full, a)
        tma.async_load(b_desc, [step * BK, 0], full, b)
        mbarrier.wait(full, phase=step & 1, deps=[a, b])
        tcgen05_mma(a, b, acc, use_acc=step > 0)
        tcgen05_commit(done)
        mbarrier.wait(done, phase=step & 1, deps=[a, b])
    c = gl.allocate_shared_memory(c_desc.dtype, [M, N], c_desc.layout)
    c.store(acc.load().to(c_desc.dtype))
    fence_async_shared()
    tma.async_store(c_desc, [0, 0], c)
    tma.store_wait(pendings=0)


def pairs() -> Any:
    found = []
    for m, n in ((256, 64), (128, 64)):
        a, b, c = normal(m, 128), normal(128, n), aligned(m, n)
        by_pairs[(1,)](
            descriptor(a, [m, 64], cga_layout=[[1, 0]]), descriptor(b, [64, n], cga_layout=[[0, 1]]),
            descriptor(c, [m, n], cga_layout=[[1, 0]]),
            TensorMemoryLayout((m // 2, n), col_stride=1, cga_layout=[[1, 0]], two_ctas=True), m, n, 2, num_warps=4, num_ctas=2,
        )  # fmt: skip
        found.append((c, a.astype(np.float64) @ b.astype(np.float64), 5e-2))
    return found


@gluon.jit
def taking_over(x, out, count, BLOCK: gl.constexpr, layout: gl.constexpr):
    """Blocks add 2 x to their part, and to the parts of blocks that have not started."""
    response = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    tile = gl.program_id(0)
    phase = 0
    going = True
    while going:
        mbarrier.expect(bar, 16)
        clc.try_cancel(response, bar)
        at = tile * BLOCK + gl.arange(0, BLOCK, layout)
        here = at < count
        gl.store(out + at, gl.load(x + at, mask=here) * 2 + gl.load(out + at, mask=here), mask=here)
        mbarrier.wait(bar, phase)
        result = clc.load_result(response)
        going = result.is_canceled()
        tile = result.program_id(0)
        phase ^= 1
    mbarrier.invalidate(bar)


def cancelled() -> Any:
    x = f32(3000)
    out = np.zeros_like(x)
    taking_over[(-(-3000 // 256),)](x, out, 3000, BLOCK=256, layout=gl.BlockedLayout([2], [32], [4], [0]), num_warps=4)
    return [(out, 2 * x, 0)]


@gluon.jit
def loaded_with_maxima(x, out, most, M: gl.constexpr, N: gl.constexpr, layout: gl.constexpr, tmem: gl.constexpr):
    rows, columns = gl.arange(0, M, gl.SliceLayout(1, layout)), gl.arange(0, N, gl.SliceLayout(0, layout))
    at = rows[:, None] * N + columns[None, :]
    memory = allocate_tensor_memory(gl.float32, [M, N], tmem)
    memory.store(gl.convert_layout(gl.load(x + at), memory.get_reg_layout()))
    loaded, largest = memory.load_max()
    gl.store(out + at, gl.convert_layout(loaded, layout))
    gl.store(most + rows, gl.convert_layout(largest, gl.SliceLayout(1, layout)))


def maxima() -> Any:
    found = []
    layout = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    for n in (16, 64):
        x = f32(128, n)
        out, most = np.zeros_like(x), np.zeros(128, np.float32)
        tmem = TensorMemoryLayout((128, n), col_stride=1)
        loaded_with_maxima[(1,)](x, out, most, M=128, N=n, layout=layout, tmem=tmem, num_warps=4)
        found += [(out, x, 0), (most, x.max(axis=1), 0)]
    return found


@gluon.jit
def moved_rows(x_desc, out_desc, rows, places, column, B: gl.constexpr, layout: gl.constexpr):
    """Gathers rows of x, and scatters them to places of out."""
    i = gl.program_id(0) * B + gl.arange(0, B, layout)
    tile = gl.allocate_shared_memory(x_desc.dtype, [B, x_desc.block_type.shape[1]], x_desc.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, B * x_desc.block_type.nbytes)
    tma.async_gather(x_desc, gl.load(rows + i), column, bar, tile)
    mbarrier.wait(bar, phase=0)
    mbarrier.invalidate(bar)
    tma.async_scatter(out_desc, gl.load(places + i), column, tile)
    tma.store_wait(pendings=0)


def rows_moved() -> Any:
    found = []
    layout = gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, 4], [1, 0]))
    for width in (64, 128):
        x, out = normal(100, 256), aligned(96, 256)
        rows, places = R.integers(-5, 105, 64).astype(np.int32), R.permutation(96)[:64].astype(np.int32)
        moved_rows[(2,)](
            descriptor(x, [1, width]), descriptor(out, [1, width]), rows, places, 64, B=32, layout=layout, num_warps=4
        )
        want = np.zeros((96, 256))
        inside = (rows >= 0) & (rows < 100)
        want[places, 64 : 64 + width] = np.where(inside[:, None], x[np.clip(rows, 0, 99), 64 : 64 + width], 0)
        found.append((out, want, 0))
    return found


BLACKWELL = (cancelled, rows_moved, pairs, moves, one_tile, stages, roles, chain, block_scales)
ULTRA = (maxima,)  # of sm_103
