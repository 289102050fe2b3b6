"""Rows of `benchmarks.products` for grouped products: experts of many sizes, even and skewed, and their weight gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch

import kernel_dsl as kd

from .bounds import fp8_error
from .product_rows import DEVICE, F8, Row, Run

# experts, rows, N, K
SHAPES = (
    (8, 32768, 4096, 7168), (8, 32768, 7168, 2048), (16, 32768, 768, 2048), (128, 65536, 1536, 2048), (128, 65536, 2048, 768),
    (64, 131072, 4096, 6144),
)  # fmt: skip
SAMPLES = 6  # groups of which results are checked, the last one among them


def sizes_of(groups: int, rows: int, skewed: bool) -> Any:
    """int32 sizes whose sum is `rows`: all alike, or as drawn from exponentials, some of them none."""
    if not skewed:
        return torch.full((groups,), rows // groups, dtype=torch.int32, device=DEVICE)
    share = -torch.rand(groups, device=DEVICE, dtype=torch.float64).log()
    share[:: max(groups // 4, 2)] = 0.0
    ends = (share.cumsum(0) / share.sum() * rows).round().int()
    ends[-1] = rows
    return torch.diff(ends, prepend=torch.zeros(1, dtype=torch.int32, device=DEVICE)).int()


def _ends(sizes: Any) -> Any:
    return sizes.cumsum(0).int()


def peer_of(a: Any, b: Any, sizes: Any) -> Run:
    """torch's grouped product, or its products one after the other where it has none."""
    ends = _ends(sizes)
    if hasattr(torch, "_grouped_mm"):
        return lambda: torch._grouped_mm(a, b, offs=ends, out_dtype=torch.bfloat16)
    bounds = [0, *ends.tolist()]
    return lambda: [a[m:n] @ b[i] for i, (m, n) in enumerate(pairwise(bounds))]


def sampled(sizes: Any) -> list[tuple[int, int, int]]:
    """(group, first row, end) of some groups."""
    ends = _ends(sizes).tolist()
    groups = len(ends)
    picked = sorted({*range(0, groups, max(groups // SAMPLES, 1)), groups - 1})
    return [(i, ends[i - 1] if i else 0, ends[i]) for i in picked]


def relative(pairs: Iterator[tuple[Any, Any]]) -> float:
    """The worst relative error of pairs of results and what is expected."""
    worst = 0.0
    for got, expected in pairs:
        assert not got.isnan().any(), "a result was not written"
        size = expected.norm().clamp(min=1e-30)
        worst = max(worst, ((got.double() - expected).norm() / size).item())
    return worst


def forward(groups: int, rows: int, N: int, K: int, skewed: bool, layout: str, gated: bool = False) -> Row:
    """Rows of groups times matrices, stored by rows ("N") or along K ("T")."""
    a = torch.randn(rows, K, device=DEVICE).bfloat16()

    def matrices() -> Any:
        if layout == "N":
            return torch.randn(groups, K, N, device=DEVICE).bfloat16()
        return torch.randn(groups, N, K, device=DEVICE).bfloat16().mT

    b = matrices()
    other = matrices() if gated else None
    sizes = sizes_of(groups, rows, skewed)
    out = torch.full((rows, N), float("nan"), device=DEVICE, dtype=torch.bfloat16)

    def ours() -> Any:
        if other is None:
            return kd.library.grouped_matmul(a, b, sizes, out=out)
        return kd.library.grouped_matmul(a, (b, other), sizes, gated="swiglu", out=out)

    first = peer_of(a, b, sizes)
    second = None if other is None else peer_of(a, other, sizes)

    def both() -> Any:
        assert second is not None
        return torch.nn.functional.silu(first()) * second()

    def expected(group: int, x: Any) -> Any:
        y = x.double() @ b[group].double()
        return y if other is None else torch.nn.functional.silu(y) * (x.double() @ other[group].double())

    def check() -> float:
        ours()
        step = [(i, range(m, n)[:: max((n - m) // 64, 1)]) for i, m, n in sampled(sizes) if n > m]
        return relative((out[list(at)], expected(i, a[list(at)])) for i, at in step)

    word = f"{'swiglu' if gated else 'bf16'} {groups} experts {rows}x{N}x{K} {layout} {'skewed' if skewed else 'even'}"
    flops = (4.0 if gated else 2.0) * rows * N * K
    moved = 2.0 * (rows * K + rows * N + groups * K * N * (1 + gated))
    return Row(word, flops, ours, first if second is None else both, check, 8e-3 if gated else 4e-3, moved)


def gradient(groups: int, rows: int, N: int, K: int, skewed: bool) -> Row:
    """The gradients of matrices, in bfloat16 as torch's are."""
    a, d = (torch.randn(rows, n, device=DEVICE).bfloat16() for n in (K, N))
    sizes = sizes_of(groups, rows, skewed)
    ends = _ends(sizes)
    out = torch.full((groups, K, N), float("nan"), device=DEVICE, dtype=torch.bfloat16)

    def ours() -> Any:
        return kd.library.grouped_matmul_wgrad(a, d, sizes, out_dtype=kd.bfloat16, out=out)

    def peer() -> Any:
        if hasattr(torch, "_grouped_mm"):
            return torch._grouped_mm(a.T, d, offs=ends, out_dtype=torch.bfloat16)
        bounds = [0, *ends.tolist()]
        return [a[m:n].T @ d[m:n] for m, n in pairwise(bounds)]

    def check() -> float:
        ours()
        return relative((out[i], a[m:n].double().T @ d[m:n].double()) for i, m, n in sampled(sizes))

    word = f"gradient {groups} experts {rows}x{N}x{K} {'skewed' if skewed else 'even'}"
    return Row(word, 2.0 * rows * N * K, ours, peer, check, 4e-3, 2.0 * (rows * (K + N) + groups * K * N))


def scaled(groups: int, rows: int, N: int, K: int, skewed: bool) -> Row:
    """fp8 with scales of 1 x 128 by 128 x 128; torch has no such product of groups."""
    a = torch.randn(rows, K, device=DEVICE).to(F8)
    b = torch.randn(groups, N, K, device=DEVICE).to(F8).mT
    sizes, blocks = sizes_of(groups, rows, skewed), -(-K // 128)
    left = torch.rand(blocks, rows, device=DEVICE).add(0.5).T
    right = torch.rand(groups, blocks, -(-N // 128), device=DEVICE) + 0.5
    out = torch.full((rows, N), float("nan"), device=DEVICE, dtype=torch.bfloat16)

    def ours() -> Any:
        return kd.library.grouped_matmul(a, b, sizes, a_scale=left, b_scale=right, out=out)

    def wide(x: Any, columns: int, axis: int) -> Any:
        return x.double().repeat_interleave(128, axis).narrow(axis, 0, columns)

    def check() -> float:
        ours()
        pairs: list[tuple[Any, Any]] = []
        for i, m, n in sampled(sizes):
            if n > m:
                at = slice(m, n, max((n - m) // 64, 1))
                x = a[m:n].float()[:: at.step].double() * wide(left[at], K, 1)
                pairs.append((out[at], x @ (b[i].float().double() * wide(wide(right[i], K, 0), N, 1))))
        return relative(iter(pairs))

    word = f"e4m3 squares {groups} experts {rows}x{N}x{K} {'skewed' if skewed else 'even'}"
    moved = 1.0 * rows * K + groups * N * K + 2.0 * rows * N
    return Row(word, 2.0 * rows * N * K, ours, None, check, 4e-3 + fp8_error(K, 128), moved)


def works() -> Iterator[Callable[[], Row]]:
    """All of them."""
    for shape in SHAPES:
        for skewed in (False, True):
            yield lambda s=shape, k=skewed: forward(*s, k, "N")
            yield lambda s=shape, k=skewed: forward(*s, k, "T")
            yield lambda s=shape, k=skewed: gradient(*s, k)
    for shape in SHAPES[:4]:
        yield lambda s=shape: forward(*s, False, "T", True)
        yield lambda s=shape: scaled(*s, False)
