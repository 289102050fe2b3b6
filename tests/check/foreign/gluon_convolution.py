"""A convolution as Gluon's example writes it: products of columns of pixels, which TMA gathers in im2col mode."""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptorIm2Col

from .gluon_kernels import Tensor, aligned, descriptor, normal


@gluon.jit
def convolved(x, w, out, H, W, R: gl.constexpr, P: gl.constexpr, C: gl.constexpr, K: gl.constexpr, pad: gl.constexpr):
    """A block makes P pixels of K channels of the output, from R by R taps of C channels."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K, 16])
    pixels = gl.allocate_shared_memory(gl.float16, [2, P, C], x.layout)
    weights = gl.allocate_shared_memory(gl.float16, [2, C, K], w.layout)
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for b in gl.static_range(2):
        mbarrier.init(bars.index(b), count=1)
    first = gl.program_id(0) * P
    image, row, column = first // (H * W), first // W % H, first % W
    acc = gl.zeros([P, K], gl.float32, layout)
    for tap in range(R * R):
        s = tap % 2
        mbarrier.expect(bars.index(s), x.nbytes_per_cta + w.nbytes_per_cta)
        offsets = [(tap // R).to(gl.int16), (tap % R).to(gl.int16)]
        tma.async_load_im2col(x, [image, row - pad, column - pad, 0], offsets, bars.index(s), pixels.index(s))
        tma.async_load(w, [tap * C, 0], bars.index(s), weights.index(s))
        mbarrier.wait(bars.index(s), tap // 2 & 1)
        acc = warpgroup_mma_init(acc)
        acc = warpgroup_mma(pixels.index(s), weights.index(s), acc, is_async=True)
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    rows = first + gl.arange(0, P, gl.SliceLayout(1, layout))
    columns = gl.arange(0, K, gl.SliceLayout(0, layout))
    gl.store(out + rows[:, None] * K + columns[None, :], acc)


def convolution() -> Any:
    x, w, out = normal(2, 8, 8, 64), normal(9 * 64, 32), aligned(128, 32, dtype=np.float32)
    columns = TensorDescriptorIm2Col.from_tensor(
        Tensor(x), [64, 64], gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16), pixel_box_lower_corner=[-1, -1],
        pixel_box_upper_corner=[-1, -1],
    )  # fmt: skip
    convolved[(2,)](columns, descriptor(w, [64, 32]), out, 8, 8, R=3, P=64, C=64, K=32, pad=1, num_warps=4)
    padded = np.pad(x.astype(float), ((0, 0), (1, 1), (1, 1), (0, 0)))
    wanted = sum(
        padded[:, r : r + 8, s : s + 8] @ w[(r * 3 + s) * 64 : (r * 3 + s + 1) * 64].astype(float)
        for r in range(3)
        for s in range(3)
    )
    return [(out, np.reshape(wanted, (128, 32)), 3e-2)]


EVERYWHERE = ()
HOPPER = (convolution,)
