"""`kd.library.sparse_matmul`: the product of a sparse matrix and a dense one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.diagnostics import of_kind
from kernel_dsl.errors import BadCallArgument

from .matmul import matmul
from .matmul_config import MatmulConfig
from .sparse import SparseMatrix

NAME = "sparse_matmul"


@partial(public, name=NAME)
@checks_itself("activation", "precision", "config", "epilogue", "gated", "dropout", "operands")
def sparse_matmul(
    compressed: Any,
    b: Any,
    *,
    out_dtype: Any = None,
    bias: Any = None,
    c: Any = None,
    activation: Callable[[Any], Any] | None = None,
    precision: str | None = None,
    scale: Any = None,
    a_scale: Any = None,
    b_scale: Any = None,
    epilogue: Callable[..., Any] | None = None,
    operands: Sequence[Any] = (),
    gated: str | Callable[[Any, Any], Any] | None = None,
    dropout: tuple[float, int] | None = None,
    residual: Any = None,
    out_scale: Any = None,
    absmax: bool = False,
    config: MatmulConfig | None = None,
    out: Any = None,
    stream: Any = None,
    interpret: Any = None,
) -> Any:
    """A `SparseMatrix` (M, K) times b (..., K, N), with all options of `matmul`: it is `matmul(compressed, b, ...)`.

    Hopper's tensor cores skip the zeros of float16, bfloat16, fp8 and 8-bit integers beside a b of the same kind, and
    of float32 with precision="tf32". On other GPUs, for exact float32, for fp8 with precision="highest", beside other
    dtypes and with scales by blocks of K, the matrix is first made dense. Raises the errors of `matmul`, and
    `BadCallArgument` for an object that is no `SparseMatrix`. The instruction is `wgmma.mma_async.sp` (PTX ISA
    9.7.15.6).
    """
    if not isinstance(compressed, SparseMatrix):
        what = f"compressed is {of_kind(compressed)}"
        raise BadCallArgument(kernel=NAME, what=what, hint="make it by `kd.library.sparse_compress(a)`")
    return matmul(
        compressed, b, out_dtype=out_dtype, bias=bias, c=c, activation=activation, precision=precision, scale=scale,
        a_scale=a_scale, b_scale=b_scale, epilogue=epilogue, operands=operands, gated=gated, dropout=dropout, residual=residual,
        out_scale=out_scale, absmax=absmax, config=config, out=out, stream=stream, interpret=interpret,
    )  # fmt: skip
