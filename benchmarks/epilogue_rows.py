"""Rows of `benchmarks.products` for epilogues and scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

import kernel_dsl as kd
from kernel_dsl.library import MatmulConfig

from .bounds import fp8_error
from .product_rows import DEVICE, F8, ROUNDED, SIDE, Row, Run, error_of, laid, poisoned, product, wide


def gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + kd.erf(x * 0.5**0.5))


def steps() -> Iterator[Callable[[], Row]]:
    """Epilogues, beside eager torch."""
    M = N = K = SIDE

    def base() -> tuple[Any, Any, Any]:
        made = [torch.randn(n, m, device=DEVICE).bfloat16() for n, m in ((M, K), (K, N))]
        return made[0], made[1], poisoned(M, N, torch.bfloat16)

    def biased() -> Row:
        a, b, out = base()
        bias = torch.randn(N, device=DEVICE).bfloat16()
        run = lambda: kd.library.matmul(a, b, bias=bias, activation=gelu, out=out)  # noqa: E731
        peer = lambda: torch.nn.functional.gelu(torch.addmm(bias, a, b))  # noqa: E731

        def check() -> float:
            run()
            return error_of(out, a, b, lambda x, _: torch.nn.functional.gelu(x + bias.double()))

        return Row(f"bias and gelu {M}^3", 2.0 * M * N * K, run, peer, check, 5e-3)

    def gated() -> Row:
        H = SIDE * 7 // 2
        a = torch.randn(M, K, device=DEVICE).bfloat16()
        w = torch.randn(2, H, K, device=DEVICE).bfloat16() * 0.02
        out = poisoned(M, H, torch.bfloat16)
        run = lambda: kd.library.matmul(a, (w[0].T, w[1].T), gated="swiglu", out=out)  # noqa: E731
        peer = lambda: torch.nn.functional.silu(a @ w[0].T) * (a @ w[1].T)  # noqa: E731

        def check() -> float:
            run()
            return error_of(out, a, w[0].T, lambda x, r: torch.nn.functional.silu(x) * (wide(a[r]) @ wide(w[1].T)))

        return Row(f"swiglu {M}x{H}x{K}", 4.0 * M * H * K, run, peer, check, 8e-3)

    def gated_gradients() -> Row:
        rows, depth, H = 2 * SIDE, SIDE // 2, 5632  # of the example's decoder
        given = [
            torch.randn(n, m, device=DEVICE).bfloat16().mul(0.03).requires_grad_()
            for n, m in ((rows, depth), (depth, H), (depth, H))
        ]
        a, gate, up = given
        slope = torch.randn(rows, H, device=DEVICE).bfloat16()
        run = lambda: torch.autograd.grad(kd.library.matmul(a, (gate, up), gated="swiglu"), given, slope)  # noqa: E731
        peer = lambda: torch.autograd.grad(torch.nn.functional.silu(a @ gate) * (a @ up), given, slope)  # noqa: E731

        def check() -> float:
            exact = [x.detach().double().requires_grad_() for x in given]
            made = torch.nn.functional.silu(exact[0] @ exact[1]) * (exact[0] @ exact[2])
            wanted = torch.autograd.grad(made, exact, slope.double())
            pairs = zip(run(), wanted, strict=True)
            return max(((x.double() - y).norm() / y.norm()).item() for x, y in pairs)

        return Row(f"swiglu and gradients {rows}x{H}x{depth}", 12.0 * rows * H * depth, run, peer, check, 8e-3)

    def bare() -> Row:
        row = product("bf16 bare", M, SIDE * 7, K, torch.bfloat16, "NT")
        return replace(row, name=f"{row.name} (what swiglu multiplies)")

    def dropped() -> Row:
        a, b, out = base()
        residual = torch.randn(M, N, device=DEVICE).bfloat16()
        run = lambda: kd.library.matmul(a, b, dropout=(0.1, 7), residual=residual, out=out)  # noqa: E731
        peer = lambda: torch.nn.functional.dropout(a @ b, 0.1) + residual  # noqa: E731

        def check() -> float:
            run()
            share = (out != residual).float().mean().item()
            assert 0.85 < share < 0.92, share
            return 0.0

        return Row(f"dropout and residual {M}^3", 2.0 * M * N * K, run, peer, check, 0.0)

    def quantised() -> Row:
        a, b, _ = base()
        out = (poisoned(M, N, F8), torch.zeros((), device=DEVICE))
        run = lambda: kd.library.matmul(a, b, absmax=True, out_scale=0.5, out_dtype=kd.float8_e4m3fn, out=out)  # noqa: E731

        def peer() -> Any:
            x = a @ b
            return (x * 0.5).to(F8), x.abs().amax()

        def check() -> float:
            run()
            return error_of(out[0], a, b, lambda x, _: x * 0.5)

        return Row(f"to e4m3 with absmax {M}^3", 2.0 * M * N * K, run, peer, check, 4e-2)

    yield from (biased, gated, gated_gradients, bare, dropped, quantised)


SCALED = (
    (4096, 4096, 7168), (4096, 24576, 1536), (4096, 32768, 512), (4096, 7168, 2048), (8192, 8192, 8192), (128, 7168, 16384),
    (64, 7168, 16384),
)  # fmt: skip


def scaled_row(M: int, N: int, K: int, form: str, config: MatmulConfig | None = None) -> Row:
    """fp8 by scales of rows and columns, or of 1 x 128 by 128 x 128 ("squares") or 1 x 128 ("blocks")."""
    a, b = laid(M, K, F8, False), laid(K, N, F8, True)
    out, kb = poisoned(M, N, torch.bfloat16), K // 128
    if form == "rows":
        rows, columns = torch.rand(M, 1, device=DEVICE) + 0.5, torch.rand(1, N, device=DEVICE) + 0.5
        peer: Run = lambda: torch._scaled_mm(a, b, rows, columns, out_dtype=torch.bfloat16, use_fast_accum=True)  # noqa: E731
        left, right = rows.double(), columns.double()
    else:
        rows = (torch.rand(kb, M, device=DEVICE) + 0.5).T
        if form == "blocks":
            columns = torch.rand(kb, N, device=DEVICE) + 0.5
        else:
            columns = (torch.rand(-(-N // 128), kb, device=DEVICE) + 0.5).T
        left = rows.double().repeat_interleave(128, 1)
        right = columns.double().repeat_interleave(128, 0)
        right = right if form == "blocks" else right.repeat_interleave(128, 1)[:, :N]
        functional: Any = torch.nn.functional
        kinds = getattr(functional, "ScalingType", None)
        recipe = None if kinds is None else (kinds.BlockWise1x128 if form == "blocks" else kinds.BlockWise128x128)
        # torch wants the scales of b as (N, blocks of K), along N
        spare = functional.pad(columns.T.contiguous(), (0, -kb % 4)).T if form == "squares" else columns.T

        def peer() -> Any:
            if kinds is None:
                return torch._scaled_mm(a, b, rows, spare, out_dtype=torch.bfloat16)
            return functional.scaled_mm(a, b, rows, kinds.BlockWise1x128, spare, recipe, output_dtype=torch.bfloat16)

    def ours() -> Any:
        return kd.library.matmul(a, b, a_scale=rows, b_scale=columns, out=out, config=config)

    def check() -> float:
        ours()
        picked = torch.arange(0, M, max(1, M // 48), device=DEVICE)
        expected = (wide(a.view(torch.uint8)[picked].view(F8)) * left[picked]) @ (wide(b) * right)
        got = out[picked].double()
        assert not got.isnan().any()
        return ((got - expected).norm() / expected.norm()).item()

    words = f"e4m3 {form} {M}x{N}x{K}"
    if config is not None:
        words += f" {config.tile_m}x{config.tile_n} s{config.stages} c{config.cluster}x{config.cluster_n}"
    bound = ROUNDED + fp8_error(K, None if form == "rows" else 128)
    return Row(words, 2.0 * M * N * K, ours, peer, check, bound, M * K + N * K + 2.0 * M * N)


def scaled() -> Iterator[Callable[[], Row]]:
    """Scales by blocks of K, and of rows."""
    for form in ("squares", "blocks", "rows"):
        for shape in SCALED:
            yield lambda s=shape, f=form: scaled_row(*s, f)
