"""Rows of `benchmarks.products` for weights of 4 bits, beside torch's product of the same weights in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

import kernel_dsl as kd
from kernel_dsl.library import MatmulConfig

from .grouped_rows import relative
from .product_rows import DEVICE, Row

SHAPES = ((1, 16384, 8192), (16, 16384, 8192), (64, 16384, 8192), (4096, 4096, 4096))  # M, N, K


THIN = MatmulConfig(128, 16, 128, 12, 2, group=16, epilogue_n=16, epilogue_stages=1, a_hint="evict_first", swapped=True)
WIDE = MatmulConfig(128, 256, 64, 5, 2, group=16, epilogue_n=64, swapped=True)
CANDIDATES = (
    (
        (16, 16384, 8192),
        (THIN, replace(THIN, tile_k=64), replace(THIN, tile_m=64, consumers=1), replace(THIN, stages=6)),
    ),
    ((64, 16384, 8192), (replace(THIN, tile_n=64, stages=8), replace(THIN, tile_n=64, tile_k=64))),
    (
        (4096, 4096, 4096),
        (WIDE, replace(WIDE, tile_m=256, tile_n=128, stages=6), replace(WIDE, tile_n=128, tile_k=128, stages=4)),
    ),
)


def work(M: int, N: int, K: int, form: str, config: MatmulConfig | None = None, dtype: str = "") -> Row:
    """One product. Its bytes are those of packed weights, scales, a and the result; `dtype`: an a of bytes, with factors."""
    a = torch.randn(M, K, device=DEVICE, dtype=torch.bfloat16)
    given, factors = a, {}
    if dtype:
        given = (a * 32).clamp(-127, 127).round().to(torch.int8) if dtype == "int8" else a.to(torch.float8_e4m3fn)
        factors = {"a_scale": torch.rand(M, 1, device=DEVICE) + 0.5}
        a = given.to(torch.bfloat16)
    w = torch.randn(K, N, device=DEVICE, dtype=torch.bfloat16)
    packed = kd.library.pack_mxfp4(w) if form == "mxfp4" else kd.library.pack_int4(w, zeros=True if form else None)
    plain = packed.unpacked(kd.bfloat16)
    out = torch.full((M, N), float("nan"), device=DEVICE, dtype=torch.bfloat16)

    def check() -> float:
        ours()
        rows = torch.arange(0, M, max(1, M // 48), device=DEVICE)
        expected = a[rows].double() @ plain.double()
        return relative(iter([(out[rows], expected * factors["a_scale"][rows] if factors else expected)]))

    scales = N * K / 32 if form == "mxfp4" else N * K / 128 * (8 if form else 4)
    moved = N * K / 2 + scales + 2.0 * (M * K + M * N)
    name = f"int4 {M}x{N}x{K} {form}".rstrip() + f" beside {dtype}" * bool(dtype)
    if config is not None:
        name += f" {config.tile_m}x{config.tile_n}x{config.tile_k} s{config.stages}"
    ours = lambda: kd.library.matmul(given, packed, out=out, config=config, **factors)  # noqa: E731
    return Row(name, 2.0 * M * N * K, ours, lambda: torch.matmul(a, plain), check, 5e-3, moved)


def works() -> Iterator[Callable[[], Row]]:
    """All rows."""
    for shape in SHAPES:
        for form in ("", "zeros", "mxfp4"):
            yield lambda s=shape, f=form: work(*s, f)
        for dtype in ("int8", "e4m3"):
            yield lambda s=shape, d=dtype: work(*s, "", dtype=d)


def candidates() -> Iterator[Callable[[], Row]]:
    """Configurations beside the one that the cost model chooses, which comes first."""
    for shape, configs in CANDIDATES:
        for config in configs:
            yield lambda s=shape, c=config: work(*s, "", c)
