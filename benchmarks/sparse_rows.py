"""Rows of `benchmarks.products` for 2:4 sparse matrices, beside torch's sparse product, or its dense one where it has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

import kernel_dsl as kd
from kernel_dsl.library import MatmulConfig

from .bounds import fp8_error
from .grouped_rows import relative
from .product_rows import DEVICE, Row

SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (4096, 64, 8192), (4096, 16384, 1024))  # M, N, K
DTYPES = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8, torch.float32)
# beside the chosen one, in bfloat16: what to look at when the choice is tuned
CONFIGS = (
    None,
    MatmulConfig(128, 256, 64, 5, 2, cluster=2),
    MatmulConfig(128, 128, 64, 6, 2, ping_pong=True),
    MatmulConfig(256, 128, 64, 5, 2, cluster=2),
    MatmulConfig(128, 256, 64, 4, 2),
    MatmulConfig(128, 192, 64, 4, 2, ping_pong=True),
    MatmulConfig(128, 128, 128, 3, 2),
    MatmulConfig(256, 128, 128, 2, 2),
)


def numbers(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.int8:
        return torch.randint(-128, 128, (rows, columns), device=DEVICE, dtype=torch.int8)
    return torch.randn(rows, columns, device=DEVICE).to(dtype)


def torchs(dense: torch.Tensor, b: torch.Tensor) -> tuple[str, Callable[[], torch.Tensor]]:
    """What torch has, and how it is called: its sparse product of the same numbers, or a dense one."""
    if dense.dtype == torch.float8_e4m3fn:
        one = torch.ones((), device=DEVICE)
        return "dense", lambda: torch._scaled_mm(dense, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    if dense.dtype == torch.float32:
        return "dense", lambda: torch.matmul(dense, b)
    try:
        sparse = torch.sparse.to_sparse_semi_structured(dense)
        torch.mm(sparse, b)
    except RuntimeError as error:
        print(f"torch has no sparse product of {dense.dtype}: {error}")
        return "dense", (lambda: torch._int_mm(dense, b)) if dense.dtype == torch.int8 else lambda: torch.matmul(
            dense, b
        )
    return "sparse", lambda: torch.mm(sparse, b)


def work(M: int, N: int, K: int, dtype: torch.dtype, config: MatmulConfig | None = None) -> Row:
    """One product of a matrix that was pruned; b is stored by columns, as all dtypes have it."""
    a, b = numbers(M, K, dtype), numbers(N, K, dtype).T
    matrix = kd.library.sparse_compress(a, prune=True)
    dense = kd.library.sparse_decompress(matrix)
    precision = "tf32" if dtype == torch.float32 else None
    ours = lambda: kd.library.sparse_matmul(matrix, b, precision=precision, config=config)  # noqa: E731
    torch.backends.cuda.matmul.allow_tf32 = True
    which, peer = torchs(dense, b)
    whole, right = dense.float().double(), b.float().double()

    def check() -> float:
        rows = torch.arange(0, M, max(1, M // 48), device=DEVICE)
        return relative(iter([(ours()[rows], whole[rows] @ right)]))

    item = dtype.itemsize
    moved = M * K * item / 2 + M * K / 8 + N * K * item + M * N * (4 if dtype in (torch.float32, torch.int8) else 2)
    name = f"sparse {str(dtype).removeprefix('torch.')} {M}x{N}x{K} beside torch's {which}"
    name += "" if config is None else f" {config}"
    bound = max(5e-3, fp8_error(K)) if dtype == torch.float8_e4m3fn else 5e-3
    return Row(name, 2.0 * M * N * K, ours, peer, check, bound, moved)


def works() -> Iterator[Callable[[], Row]]:
    """All rows. FLOPs are those of the dense product."""
    for shape in SHAPES:
        for dtype in DTYPES:
            yield lambda s=shape, d=dtype: work(*s, d)


def candidates() -> Iterator[Callable[[], Row]]:
    """Configurations of bfloat16, of which the cost model chooses one."""
    for shape in SHAPES[:2]:
        for config in CONFIGS:
            yield lambda s=shape, c=config: work(*s, torch.bfloat16, c)
