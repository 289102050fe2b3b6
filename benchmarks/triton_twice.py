"""Twice a vector in Triton, as ops of PyTorch: Triton's kernels must live in a file of their own."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def twice(x, o, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(o + at, tl.load(x + at, mask=inside) * 2.0, mask=inside)


def ops(block: int) -> dict[str, Any]:
    """The op that `torch.compile` looks into, and the one that it calls as it is."""

    @torch.library.triton_op("bench_hosts::triton_op", mutates_args=())
    def seen(x: torch.Tensor) -> torch.Tensor:
        o = torch.empty_like(x)
        torch.library.wrap_triton(twice)[(triton.cdiv(x.numel(), block),)](x, o, x.numel(), BLOCK=block)
        return o

    @torch.library.custom_op("bench_hosts::triton_custom_op", mutates_args=())
    def whole(x: torch.Tensor) -> torch.Tensor:
        o = torch.empty_like(x)
        twice[(triton.cdiv(x.numel(), block),)](x, o, x.numel(), BLOCK=block)
        return o

    whole.register_fake(torch.empty_like)
    return {"triton_op": seen, "triton_custom_op": whole}
