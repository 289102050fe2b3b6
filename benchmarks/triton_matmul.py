"""A tuned matrix product in Triton, the peer of `benchmarks.peers`: TMA descriptors, grouped tiles, persistent or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@dataclass(frozen=True)
class Config:
    """Tile sizes and how a kernel is built. `halves`: the result is stored in two parts, which takes less SMEM."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    persistent: bool = True
    halves: bool = False
    specialize: bool = False
    group: int = 8

    def __str__(self) -> str:
        words = [w for w in ("persistent", "halves", "specialize") if getattr(self, w)]
        return " ".join([f"{self.m}x{self.n}x{self.k} w{self.warps} s{self.stages}", *words])


CONFIGS = [
    Config(128, 256, 64, 8, 3),
    Config(128, 256, 64, 8, 4, halves=True),
    Config(128, 256, 64, 8, 3, persistent=False),
    Config(128, 256, 64, 8, 4, persistent=False, halves=True),
    Config(256, 128, 64, 8, 4, halves=True),
    Config(128, 128, 64, 4, 4),
    Config(128, 128, 64, 4, 4, persistent=False),
    Config(128, 256, 64, 4, 3, specialize=True),
    Config(128, 256, 64, 8, 3, halves=True, specialize=True),
]


@triton.jit
def product(
    a,
    b,
    out,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    HALVES: tl.constexpr,
    SPECIALIZE: tl.constexpr,
    FLATTEN: tl.constexpr,
):
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    band = GROUP * columns
    for tile in tl.range(
        tl.program_id(0), rows * columns, tl.num_programs(0), flatten=FLATTEN, warp_specialize=SPECIALIZE
    ):
        first = tile // band * GROUP
        height = min(rows - first, GROUP)
        m = (first + tile % band % height) * BLOCK_M
        n = tile % band // height * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(tl.cdiv(K, BLOCK_K)):
            left = a.load([m, k * BLOCK_K])
            if TRANSPOSED:
                right = b.load([n, k * BLOCK_K]).T
            else:
                right = b.load([k * BLOCK_K, n])
            total = tl.dot(left, right, total)
        if HALVES:
            two = tl.permute(tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            low, high = tl.split(two)
            out.store([m, n], low.to(tl.bfloat16))
            out.store([m, n + BLOCK_N // 2], high.to(tl.bfloat16))
        else:
            out.store([m, n], total.to(tl.bfloat16))


def matmul(a: Any, b: Any, out: Any, c: Config) -> Callable[[], Any]:
    """A function that multiplies bfloat16 `a` (M, K) and `b` (K, N), or (N, K) given as its `.T`, into `out`."""
    (M, K), N = a.shape, b.shape[1]
    transposed = b.stride(0) == 1 and b.stride(1) != 1
    stored = b.T if transposed else b
    left = TensorDescriptor.from_tensor(a, [c.m, c.k])
    right = TensorDescriptor.from_tensor(stored, [c.n, c.k] if transposed else [c.k, c.n])
    result = TensorDescriptor.from_tensor(out, [c.m, c.n // 2 if c.halves else c.n])
    tiles = triton.cdiv(M, c.m) * triton.cdiv(N, c.n)
    blocks = min(tiles, torch.cuda.get_device_properties(a.device).multi_processor_count) if c.persistent else tiles
    flatten = c.persistent and not c.specialize
    sizes = (M, N, K, c.m, c.n, c.k, c.group, transposed, c.halves, c.specialize, flatten)
    return lambda: product[(blocks,)](left, right, result, *sizes, num_warps=c.warps, num_stages=c.stages)
