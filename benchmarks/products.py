"""Products of every layout, dtype, shape and epilogue beside torch: `python -m benchmarks.products [groups]`.

Groups: layouts exact odd thin deep batches steps scaled grouped entropy int4 sparse conv random configs; all but `configs` by
default.
`--rows TEXT` keeps the rows whose name has it, `--seconds N` stops after that time, `--json FILE` is written after each row.
Outputs are poisoned and checked against float64 before anything is timed; a row that fails is told, and the others go on.
Where torch refuses a layout or an odd size, its row is its product of operands that are padded and stored along K, with its
own copies to them. `random` walks over shapes from 1 to 32768, layouts, dtypes and alignments, and ends with the rows that are
slower than torch, the slowest first, the worst and the geometric mean. `--routes N` also measures, where a row is below 0.85 of
torch, the best N ways of each kernel by the model of costs: a faster one is the model's error, else a kernel is.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import kernel_dsl as kd
from kernel_dsl.library import MatmulConfig
from kernel_dsl.library.promoted_product import RUN

from . import conv_rows, entropy_rows, grouped_rows, int4_rows, sparse_rows
from .bounds import fp8_error
from .harness import clear_l2, machine
from .route_rows import ways

F8 = torch.float8_e4m3fn
DEVICE = "cuda"
SIDE = 4096  # of the products with epilogues
SLOW = 0.85  # of torch
AHEAD = 250_000  # clocks that the GPU waits, in which the host prepares a call
LAYOUTS = ("NN", "NT", "TN", "TT")
Run = Callable[[], Any]


@dataclass
class Row:
    """One product: ours and torch's, both as calls without arguments; `check` gives the relative error of ours."""

    name: str
    flops: float
    ours: Run
    peer: Run | None
    check: Callable[[], float]
    bound: float
    bytes: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    ways: Callable[[int], Iterator[tuple[str, float, Run]]] | None = None  # to compute it


def numbers(rows: int, columns: int, dtype: Any) -> Any:
    """A matrix of normal numbers, or of all bytes."""
    if dtype == torch.int8:
        return torch.randint(-128, 128, (rows, columns), device=DEVICE, dtype=torch.int8)
    return torch.randn(rows, columns, device=DEVICE).to(dtype)


def laid(rows: int, columns: int, dtype: Any, turned: bool, shift: int = 0) -> Any:
    """A matrix stored by rows or by columns, `shift` elements off a multiple of 16 bytes, with that many between rows."""
    if turned:
        return laid(columns, rows, dtype, False, shift).T
    return numbers(rows, columns + shift, dtype)[:, shift:] if shift else numbers(rows, columns, dtype)


def wide(x: Any) -> Any:
    return x.double() if x.dtype != F8 else x.float().double()


def error_of(out: Any, a: Any, b: Any, then: Callable[[Any, Any], Any] | None = None) -> float:
    """Relative error of sampled rows, against float64."""
    rows = torch.arange(0, a.shape[0], max(1, a.shape[0] // 48), device=DEVICE)
    left = a.view(torch.uint8)[rows].view(F8) if a.dtype == F8 else a[rows]
    expected = wide(left) @ wide(b)
    if then is not None:
        expected = then(expected, rows)
    got = wide(out[rows] if out.dtype != F8 else out.view(torch.uint8)[rows].view(F8))
    assert not got.isnan().any(), "a result was not written"
    return ((got - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def poisoned(M: int, N: int, dtype: Any) -> Any:
    value = float("nan") if dtype.is_floating_point else 77
    return (
        torch.full((M, N), value, device=DEVICE, dtype=torch.float32).to(dtype)
        if dtype == F8
        else torch.full((M, N), value, device=DEVICE, dtype=dtype)
    )


OUT = {torch.int8: torch.int32, F8: torch.bfloat16}
ROUNDED = 4e-3  # of bfloat16
BOUND = {torch.int8: 0.0, torch.bfloat16: 4e-3, torch.float16: 1e-3, torch.float64: 1e-14}


def peer_of(a: Any, b: Any, precision: str | None) -> Run:
    """torch's product of two matrices; of copies, made anew each time, where it refuses them as they are."""
    one = torch.ones((), device=DEVICE)

    def fp8(x: Any, y: Any) -> Any:
        return torch._scaled_mm(x, y, one, one, out_dtype=torch.bfloat16, use_fast_accum=precision != "highest")

    def plain(x: Any, y: Any) -> Any:
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        return torch.matmul(x, y)

    run = {torch.int8: torch._int_mm, F8: fp8}.get(a.dtype, plain)
    if a.dtype not in (torch.int8, F8):
        return lambda: run(a, b)
    try:
        run(a, b)
        return lambda: run(a, b)
    except RuntimeError:
        pass
    M, K, N = *a.shape, b.shape[1]

    def copied(x: Any, rows: int, columns: int) -> Any:
        made = torch.zeros((-(-rows // 32) * 32, -(-columns // 16) * 16), dtype=torch.uint8, device=DEVICE)
        made[:rows, :columns] = x.view(torch.uint8) if x.is_contiguous() else x.T.view(torch.uint8).T
        return made.view(a.dtype)

    def padded() -> Any:
        left = a if a.is_contiguous() and M % 32 == 0 and K % 16 == 0 else copied(a, M, K)
        right = b.T if b.T.is_contiguous() and N % 32 == 0 and K % 16 == 0 else copied(b.T, N, K)
        return run(left, right.T)[:M, :N]

    return padded


def product(
    name: str, M: int, N: int, K: int, dtype: Any, layout: str = "NN", precision: str | None = None,
    shifts: tuple[int, int] = (0, 0), **options: Any,
) -> Row:  # fmt: skip
    """A row of one product."""
    a, b = laid(M, K, dtype, layout[0] == "T", shifts[0]), laid(K, N, dtype, layout[1] == "T", shifts[1])
    out = poisoned(M, N, OUT.get(dtype, dtype))

    def ours() -> Any:
        return kd.library.matmul(a, b, precision=precision, out=out, **options)

    def check() -> float:
        ours()
        return error_of(out, a, b)

    bound = BOUND.get(dtype, {"tf32": 2e-3}.get(precision or "", 2e-6))
    if dtype == F8:
        bound = ROUNDED + fp8_error(K, RUN if precision == "highest" else None)
    item = a.element_size()
    moved = item * (M * K + K * N) + out.element_size() * M * N
    row = Row(f"{name} {M}x{N}x{K} {layout}", 2.0 * M * N * K, ours, peer_of(a, b, precision), check, bound, moved)
    return row if options else replace(row, ways=lambda count: ways(a, b, precision, out, count))


# --- groups --------------------------------------------------------------------------------------


def layouts() -> Iterator[Callable[[], Row]]:
    """The four layouts of what wgmma reads along K only."""
    for layout in LAYOUTS:
        yield lambda x=layout: product("tf32", 4096, 4096, 4096, torch.float32, x, "tf32")
    for dtype, word in ((torch.int8, "s8"), (F8, "e4m3")):
        for layout in LAYOUTS:
            yield lambda x=layout, d=dtype, w=word: product(w, 8192, 8192, 8192, d, x)
    yield lambda: product("e4m3 highest", 8192, 8192, 8192, F8, "NT", "highest")
    yield lambda: product("s8", 8192, 2048, 4096, torch.int8, "NN")
    yield lambda: product("tf32", 8205, 2949, 5921, torch.float32, "NN", "tf32")


def exact() -> Iterator[Callable[[], Row]]:
    """float32 by lanes and in three products, float64."""
    for layout in LAYOUTS:
        yield lambda x=layout: product("f32", 4096, 4096, 4096, torch.float32, x)
    yield lambda: product("f32", 1024, 1024, 1024, torch.float32)
    yield lambda: product("tf32x3", 4096, 4096, 4096, torch.float32, "NN", "tf32x3")
    for n in (2048, 4096):
        yield lambda n=n: product("f64", n, n, n, torch.float64)
    yield lambda: product("f64", 2048, 2048, 2048, torch.float64, "TT")


def odd() -> Iterator[Callable[[], Row]]:
    """Rows and addresses that TMA can't read or write."""
    for dtype, word in ((torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.int8, "s8"), (F8, "e4m3")):
        for shape in ((333, 777, 999), (1001, 1003, 1005), (4097, 4095, 4099)):
            yield lambda s=shape, d=dtype, w=word: product(w, *s, d, "NN")
    yield lambda: product("bf16 shifted", 4096, 4096, 4096, torch.bfloat16, "NT", shifts=(1, 3))
    yield lambda: product("tf32", 1001, 1003, 1005, torch.float32, "NT", "tf32")


def thin() -> Iterator[Callable[[], Row]]:
    """Few rows or columns: the bytes of the other operand."""
    for M in (1, 8, 16, 64):
        for layout in ("NN", "NT"):
            yield lambda m=M, x=layout: product("bf16", m, 8192, 8192, torch.bfloat16, x)
    yield lambda: product("bf16", 8192, 1, 8192, torch.bfloat16)
    yield lambda: product("bf16", 7, 4097, 4095, torch.bfloat16)
    yield lambda: product("f32", 1, 8192, 8192, torch.float32)


def deep() -> Iterator[Callable[[], Row]]:
    """Few tiles and much of K."""
    shapes = (
        (512, 512, 8192), (64, 64, 32768), (256, 256, 16384), (1, 1, 32768), (768, 768, 4096), (1536, 1536, 4096),
        (1536, 1536, 16384), (2048, 2304, 8192),
    )  # fmt: skip
    for shape in shapes:
        yield lambda s=shape: product("bf16", *s, torch.bfloat16, "NT")


def batches() -> Iterator[Callable[[], Row]]:
    """Leading axes."""
    for count, M, N, K in ((64, 512, 512, 512), (16, 1024, 1024, 1024), (256, 128, 128, 128), (64, 1, 1024, 1024)):

        def make(B: int = count, M: int = M, N: int = N, K: int = K) -> Row:
            a = torch.randn(B, M, K, device=DEVICE).bfloat16()
            b = torch.randn(B, K, N, device=DEVICE).bfloat16()
            out = torch.full((B, M, N), float("nan"), device=DEVICE, dtype=torch.bfloat16)

            def check() -> float:
                kd.library.matmul(a, b, out=out)
                return max(error_of(out[i], a[i], b[i]) for i in range(0, B, max(1, B // 4)))

            run = lambda: kd.library.matmul(a, b, out=out)  # noqa: E731 - one name for all
            moved = 2.0 * B * (M * K + K * N + M * N)
            return Row(
                f"bf16 {B} of {M}x{N}x{K}", 2.0 * B * M * N * K, run, lambda: torch.bmm(a, b), check, 4e-3, moved
            )

        yield make


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


def grouped() -> Iterator[Callable[[], Row]]:
    """Groups of rows, each times a matrix of its own, and the gradients of these."""
    for make in grouped_rows.works():
        yield lambda make=make: Row(**vars(make()))


def entropy() -> Iterator[Callable[[], Row]]:
    """The cross-entropy of linear layers, and its gradients."""
    for make in entropy_rows.works():
        yield lambda make=make: Row(**vars(make()))


def int4() -> Iterator[Callable[[], Row]]:
    """Weights of 4 bits."""
    for make in int4_rows.works():
        yield lambda make=make: Row(**vars(make()))


def sparse() -> Iterator[Callable[[], Row]]:
    """Matrices of which half is stored."""
    for make in sparse_rows.works():
        yield lambda make=make: Row(**vars(make()))


def conv() -> Iterator[Callable[[], Row]]:
    """Convolutions."""
    for make in conv_rows.works():
        yield lambda make=make: Row(**vars(make()))


def configs() -> Iterator[Callable[[], Row]]:
    """Sizes beside each other, where the model is least sure: what to measure in a short run."""
    blocks = MatmulConfig(tile_k=128, epilogue_n=32, group=16)
    tiles = [replace(blocks, tile_n=n, stages=s) for n, s in ((192, 4), (160, 5), (128, 6))]
    tiles += [replace(t, cluster=2) for t in tiles]
    for shape in ((4096, 4096, 7168), (8192, 8192, 8192)):
        for t in tiles:
            yield lambda s=shape, t=t: scaled_row(*s, "squares", t)
    turned = MatmulConfig(tile_k=32, epilogue_n=32, group=16)
    for t in (turned, replace(turned, tile_m=256, tile_n=128), replace(turned, group=8), replace(turned, cluster=2)):
        for layout in ("NN", "TT"):
            swapped = replace(t, swapped=layout == "NN")
            yield lambda x=layout, t=swapped: _named(
                product("tf32", 4096, 4096, 4096, torch.float32, x, "tf32", config=t), t
            )

    for make in (*int4_rows.candidates(), *sparse_rows.candidates(), *conv_rows.candidates()):
        yield lambda make=make: Row(**vars(make()))


def _named(row: Row, t: MatmulConfig) -> Row:
    return replace(row, name=f"{row.name} {t.tile_m}x{t.tile_n} s{t.stages} g{t.group} c{t.cluster}")


def walk(seed: int) -> Iterator[Callable[[], Row]]:
    """Random shapes, layouts, dtypes and alignments."""
    rng = random.Random(seed)
    kinds = [(torch.bfloat16, None), (torch.float16, None), (F8, None), (torch.int8, None), (torch.float32, "tf32")]
    while True:
        dtype, precision = rng.choice(kinds)
        M, N, K = (int(2 ** rng.uniform(0, 15)) for _ in range(3))
        if rng.random() < 0.5:
            M, N, K = (max(n // 16, 1) * 16 for n in (M, N, K))
        if max(M * K, K * N, M * N) > 1 << 29 or M * N * K > 1 << 39:
            continue
        shifts = (rng.choice((0, 0, 1)), rng.choice((0, 0, 1)))
        name, layout = str(dtype).removeprefix("torch."), rng.choice(LAYOUTS)
        words = f"{name}{' ' + precision if precision else ''}{' shifted' if any(shifts) else ''}"
        yield lambda w=words, s=(M, N, K), d=dtype, x=layout, p=precision, h=shifts: product(w, *s, d, x, p, h)


GROUPS: dict[str, Callable[[], Iterator[Callable[[], Row]]]] = {
    "layouts": layouts, "exact": exact, "odd": odd, "thin": thin, "deep": deep, "batches": batches, "steps": steps,
    "scaled": scaled, "grouped": grouped, "entropy": entropy, "int4": int4, "sparse": sparse,
    "conv": conv, "configs": configs,
}  # fmt: skip


# --- measuring -----------------------------------------------------------------------------------


def median(variants: dict[str, Run], rounds: int) -> dict[str, float]:
    """Seconds of each variant: events around a call after L2 was cleared, in turn. The host is ahead: its time is not in them."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(-2, rounds):
        pairs: list[tuple[str, Any, Any]] = []
        for name, run in variants.items():
            clear_l2()
            torch.cuda._sleep(AHEAD)
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            stop.record()
            pairs.append((name, start, stop))
        torch.cuda.synchronize()
        if number >= 0:
            for name, start, stop in pairs:
                times[name].append(start.elapsed_time(stop) * 1e-3)
    return {name: sorted(found)[len(found) // 2] for name, found in times.items()}


def routed(row: Row, count: int, rounds: int) -> Iterator[str]:
    """What the ways to compute a product take, the fastest first."""
    assert row.ways is not None
    found = list(row.ways(count))
    times = median({words: run for words, _, run in found}, rounds)
    for words, model, _ in sorted(found, key=lambda x: times[x[0]]):
        yield f"    {times[words] * 1e6:.1f} us, by the model {model * 1e6:.1f}: {words}"


def measured(make: Callable[[], Row], rounds: int, routes: int = 0, wanted: str = "") -> dict[str, Any] | None:
    """Check a row, and time it; tell of its ways, `routes` of each kernel, if it is slow. None if its name lacks `wanted`."""
    row = make()
    if wanted not in row.name:
        return None
    error = row.check()
    if not error <= row.bound:
        raise AssertionError(f"{row.name}: relative error {error:.2e} over {row.bound:.0e}")
    variants = {"ours": row.ours}
    if row.peer is not None:
        variants["torch"] = row.peer
    times = median(variants, rounds)
    out: dict[str, Any] = {
        "work": row.name,
        "us": round(times["ours"] * 1e6, 1),
        "TFLOP/s": round(row.flops / times["ours"] * 1e-12),
    }
    if row.bytes:
        out["TB/s"] = round(row.bytes / times["ours"] * 1e-12, 2)
    if "torch" in times:
        out |= {"torch us": round(times["torch"] * 1e6, 1), "of torch": round(times["torch"] / times["ours"], 3)}
        if routes and row.ways is not None and out["of torch"] < SLOW:
            print(f"{row.name}, {out['of torch']} of torch:", *routed(row, routes, rounds), sep="\n", flush=True)
    return {**out, "error": f"{error:.0e}"}


def main() -> None:
    """Run the named groups, by default all but `configs` and `random`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*GROUPS, "random", []], default=[])
    parser.add_argument("--rows", default="", help="only rows whose name has this text")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--routes", type=int, default=0, help="ways of each kernel to measure where a row is slow")
    parser.add_argument("--json")
    args = parser.parse_args()
    begun, rows = time.perf_counter(), list[dict[str, Any]]()
    print(machine())
    for name in args.names or [n for n in GROUPS if n != "configs"]:
        for make in walk(args.seed) if name == "random" else GROUPS[name]():
            if time.perf_counter() - begun > args.seconds:
                print(f"stopped after {args.seconds:.0f} s, in {name}")
                break
            try:
                found = measured(make, args.rounds, args.routes, args.rows)
                if found is None:
                    continue
                rows.append({"group": name, **found})
                print("  ".join(f"{k} {v}" for k, v in rows[-1].items()), flush=True)
            except Exception as error:  # the others go on, whatever it was
                lines = str(error).splitlines() or [repr(error)]
                rows.append({"group": name, "failed": f"{type(error).__name__}: {lines[0][:200]}"})
                print(f"FAILED in {name}: {type(error).__name__}: {lines[0][:200]}", flush=True)
            if args.json:
                with open(args.json, "w") as file:
                    json.dump({"machine": machine(), "rows": rows}, file, indent=1)
            torch.cuda.empty_cache()
    for name in {r["group"] for r in rows}:
        ratios = [r["of torch"] for r in rows if r["group"] == name and "of torch" in r]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            for row in sorted(
                (r for r in rows if r["group"] == name and r.get("of torch", 1.0) < 1.0), key=lambda r: r["of torch"]
            ):
                print(f"  {row['of torch']}  {row['work']}")
            print(f"{name}: geometric mean of torch {mean:.3f}, worst {min(ratios):.3f}, {len(ratios)} rows")
    print(machine())


if __name__ == "__main__":
    main()
