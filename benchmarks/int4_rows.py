"""Rows of `benchmarks.products` for weights of 4 bits, beside torch's product of the same weights in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

import kernel_dsl as kd

from .grouped_rows import DEVICE, Work, relative

SHAPES = ((1, 16384, 8192), (16, 16384, 8192), (64, 16384, 8192), (4096, 4096, 4096))  # M, N, K


def work(M: int, N: int, K: int, form: str) -> Work:
    """One product. Its bytes are those of packed weights, their scales, a and the result."""
    a = torch.randn(M, K, device=DEVICE, dtype=torch.bfloat16)
    w = torch.randn(K, N, device=DEVICE, dtype=torch.bfloat16)
    packed = kd.library.pack_mxfp4(w) if form == "mxfp4" else kd.library.pack_int4(w, zeros=True if form else None)
    plain = packed.unpacked(kd.bfloat16)
    out = torch.full((M, N), float("nan"), device=DEVICE, dtype=torch.bfloat16)

    def check() -> float:
        kd.library.matmul(a, packed, out=out)
        rows = torch.arange(0, M, max(1, M // 48), device=DEVICE)
        return relative(iter([(out[rows], a[rows].double() @ plain.double())]))

    scales = N * K / 32 if form == "mxfp4" else N * K / 128 * (8 if form else 4)
    moved = N * K / 2 + scales + 2.0 * (M * K + M * N)
    name = f"int4 {M}x{N}x{K} {form}".rstrip()
    ours = lambda: kd.library.matmul(a, packed, out=out)  # noqa: E731
    return Work(name, 2.0 * M * N * K, ours, lambda: torch.matmul(a, plain), check, 5e-3, moved)


def works() -> Iterator[Callable[[], Work]]:
    """All rows."""
    for shape in SHAPES:
        for form in ("", "zeros", "mxfp4"):
            yield lambda s=shape, f=form: work(*s, f)
