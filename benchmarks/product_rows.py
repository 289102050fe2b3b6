"""Rows of `benchmarks.products` for plain products: layouts, dtypes, odd and thin shapes, batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import kernel_dsl as kd
from kernel_dsl.library.product_kernels.promoted_product import RUN

from .bounds import fp8_error
from .route_rows import ways

F8 = torch.float8_e4m3fn
DEVICE = "cuda"
SIDE = 4096  # of the products with epilogues
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
    """Rows and addresses that TMA can't read or write, and sizes that just miss whole tiles or waves."""
    for dtype, word in ((torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.int8, "s8"), (F8, "e4m3")):
        for shape in ((333, 777, 999), (1001, 1003, 1005), (4097, 4095, 4099)):
            yield lambda s=shape, d=dtype, w=word: product(w, *s, d, "NN")
    for shape, layout in (((520, 3784, 10952), "TT"), ((6032, 3816, 5328), "TT"), ((5000, 5000, 5000), "NN"),
                          ((2240, 4640, 480), "NT"), ((4352, 640, 864), "TN")):  # fmt: skip
        yield lambda s=shape, x=layout: product("bf16", *s, torch.bfloat16, x)
    yield lambda: product("e4m3", 3088, 4416, 5936, F8, "NT")
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
