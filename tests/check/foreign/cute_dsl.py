"""Kernels in CuTe DSL: a persistent map, rows by shuffles, a tile turned through shared memory, a scan by warps."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")  # the architecture that is compiled for, without a GPU

import cutlass
from cutlass import cute
from cutlass.cute.runtime import make_fake_compact_tensor

R = np.random.default_rng(17)
WARPS, SMEM = 4, 33 * 32 * 4


@cute.kernel
def persistent(x: cute.Tensor, y: cute.Tensor, n: cutlass.Int32):
    lane, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    i = block * 128 + lane
    while i < n:
        y[i] = x[i] * 2.0 + 1.0
        i += blocks * 128


@cute.kernel
def rows(x: cute.Tensor, y: cute.Tensor):
    """A warp takes a row of 64: each value less the row's mean."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    lane = thread % 32
    row = block * WARPS + thread // 32
    low, high = x[row, lane], x[row, lane + 32]
    total = low + high
    for step in cutlass.range_constexpr(5):
        total += cute.arch.shuffle_sync_bfly(total, offset=1 << step)
    y[row, lane] = low - total / 64.0
    y[row, lane + 32] = high - total / 64.0


@cute.kernel
def turned(x: cute.Tensor, y: cute.Tensor):
    """A tile of 32 by 32 goes through shared memory, whose rows have one word more."""
    thread, _, _ = cute.arch.thread_idx()
    i, j, _ = cute.arch.block_idx()
    tile = cutlass.utils.SmemAllocator().allocate_tensor(
        cutlass.Float32, cute.make_layout((32, 32), stride=(33, 1)), 16
    )
    column, first = thread % 32, thread // 32
    for k in cutlass.range_constexpr(8):
        tile[first + 4 * k, column] = x[i * 32 + first + 4 * k, j * 32 + column]
    cute.arch.sync_threads()
    for k in cutlass.range_constexpr(8):
        y[j * 32 + first + 4 * k, i * 32 + column] = tile[column, first + 4 * k]


@cute.kernel
def running(x: cute.Tensor, y: cute.Tensor):
    """Running sums of a block's 128 values: warps scan by shuffles, and add the sums of the warps before."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    lane, warp = thread % 32, thread // 32
    sums = cutlass.utils.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout((WARPS,)), 16)
    value = x[block * 128 + thread]
    for step in cutlass.range_constexpr(5):
        before = cute.arch.shuffle_sync_up(value, offset=1 << step, mask_and_clamp=0)
        if lane >= 1 << step:
            value += before
    if lane == 31:
        sums[warp] = value
    cute.arch.sync_threads()
    for w in cutlass.range_constexpr(WARPS):
        if w < warp:
            value += sums[w]
    y[block * 128 + thread] = value


@cute.jit
def launch_persistent(x: cute.Tensor, y: cute.Tensor, n: cutlass.Int32):
    persistent(x, y, n).launch(grid=[3, 1, 1], block=[128, 1, 1])


@cute.jit
def launch_rows(x: cute.Tensor, y: cute.Tensor):
    rows(x, y).launch(grid=[3, 1, 1], block=[128, 1, 1])


@cute.jit
def launch_turned(x: cute.Tensor, y: cute.Tensor):
    turned(x, y).launch(grid=[2, 3, 1], block=[128, 1, 1])


@cute.jit
def launch_running(x: cute.Tensor, y: cute.Tensor):
    running(x, y).launch(grid=[3, 1, 1], block=[128, 1, 1])


def ptx_of(host: Any, *shapes: tuple[int, ...], more: tuple[Any, ...] = ()) -> str:
    """The PTX of a host function's kernel, for float32 tensors of these shapes, rows first."""
    tensors = [
        make_fake_compact_tensor(cutlass.Float32, shape, stride_order=tuple(reversed(range(len(shape)))))
        for shape in shapes
    ]
    compiled = cute.compile[cute.KeepPTX()](host, *tensors, *more)
    return str(compiled.__ptx__).rstrip("\0")


def cases() -> list[tuple[str, str, list[Any], Any, Any]]:
    """(name, PTX, arguments, grid, what the second argument must hold). Each takes at most `SMEM` bytes of dynamic SMEM."""
    x, y, z, w = (R.standard_normal(shape).astype(np.float32) for shape in ((1000,), (12, 64), (64, 96), (384,)))
    n = cutlass.Int32(1000)
    return [
        (
            "persistent",
            ptx_of(launch_persistent, x.shape, x.shape, more=(n,)),
            [x, np.zeros_like(x), 1000],
            3,
            2 * x + 1,
        ),
        ("rows", ptx_of(launch_rows, y.shape, y.shape), [y, np.zeros_like(y)], 3, y - y.mean(1, keepdims=True)),
        ("turned", ptx_of(launch_turned, z.shape, z.T.shape), [z, np.zeros((96, 64), np.float32)], (2, 3), z.T),
        (
            "running",
            ptx_of(launch_running, w.shape, w.shape),
            [w, np.zeros_like(w)],
            3,
            np.cumsum(w.reshape(3, 128), 1).reshape(-1),
        ),
    ]
