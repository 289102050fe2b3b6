"""Products on a mesh of devices with their collectives: `all_gather_matmul`, `matmul_reduce_scatter`, `matmul_all_reduce`."""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import public
from kernel_dsl.dtypes import DType, as_dtype
from kernel_dsl.errors import BadArgument, BadArgumentType
from kernel_dsl.mesh import Mesh
from kernel_dsl.symmetric import OfRank, Symmetric, gapless, made_like, overlap, target_of
from kernel_dsl.target import TMA_WGMMA, Feature

from ..collectives.by_rank import Fresh, Launched, by_rank, scratch
from ..collectives.parts import BLOCKS, described
from ..collectives.reductions import all_gather, all_reduce, reduce_scatter
from ..products.matmul import matmul
from .gathering_product import gathering_kernel
from .scattering_product import scattering_kernel
from .shared import TILE_K, TILE_M, MeshProduct

SMEM_LEFT = 224 << 10  # bytes for the stages of operands, and for a tile or part of one
NARROW, WIDE = 64, 256  # columns of a tile


@partial(public, name="all_gather_matmul")
@by_rank
def all_gather_matmul(
    x: Any, w: Any, mesh: Mesh, *, out: Any = None, timeout: float | None = None, interpret: Any = None
) -> Any:
    """concatenate(x of all devices) @ w, on every device: x (m, K) and w (K, N) a device, out (n * m, N), of one float dtype.

    On Hopper, row-major float16 and bfloat16 with m a multiple of 128 and K and N multiples of 8 use one kernel, which
    multiplies rows as they arrive. Other arrays are first gathered, and then multiplied. Sums are float32, in one
    order, rounded once: calls give the same bits. `out`: preallocated, in other memory than x and w; `timeout`: seconds
    that a device waits for its peers.

    Raises `BadArgument`, `BadArgumentType`, and the errors of a kernel on a mesh. Transfers overlap with products (Wang
    et al., 2023), by TMA (PTX ISA 9.7.9.27) and wgmma (9.7.15).
    """
    op = "all_gather_matmul"
    (m, depth), columns, dtype = _operands(x, w, mesh, op)
    _check_apart(x, w, out, op)
    p = _fused(m, columns, depth, dtype, x, mesh, timeout, interpret, False) if gapless(x, w, out) else None
    if p is None:
        wide = (mesh.size * m, depth)
        whole = made_like(x, wide, dtype, mesh, "rows") if isinstance(x, OfRank) else None
        rows = all_gather(x, mesh, out=whole, timeout=timeout, interpret=interpret)
        return _products(rows, w, mesh, out, interpret)
    gathered = scratch(x, (p.M, depth), dtype, mesh, "gathered")
    out = Fresh((p.M, columns), dtype, mesh) if out is None else out
    return Launched(gathering_kernel(p), (x, w), (out, gathered), itemgetter(0))


@partial(public, name="matmul_reduce_scatter")
@by_rank
def matmul_reduce_scatter(
    x: Any,
    w: Any,
    mesh: Mesh,
    *,
    out: Any = None,
    deterministic: bool = True,
    timeout: float | None = None,
    interpret: Any = None,
) -> Any:
    """The sum of all devices' x @ w; device i gets part i of the rows: x (n * m, K), w (K, N) a device, out (m, N), of
    one float dtype.

    Each device's product is rounded to the dtype; then the products are added in float32. The arrays that use one
    kernel, `out`, `timeout`, instructions and errors are those of `all_gather_matmul`. Each row has a fixed order of
    terms, so calls give the same bits; without the one kernel, `deterministic` is as for `reduce_scatter`. Also raises
    `BadArgument` if the rows are no multiple of the number of devices.
    """
    return _scattered("matmul_reduce_scatter", x, w, mesh, out, deterministic, timeout, interpret)


@partial(public, name="matmul_all_reduce")
@by_rank
def matmul_all_reduce(
    x: Any,
    w: Any,
    mesh: Mesh,
    *,
    out: Any = None,
    deterministic: bool = True,
    timeout: float | None = None,
    interpret: Any = None,
) -> Any:
    """The sum of all devices' x @ w, on every device: x (M, K), w (K, N) a device, out (M, N), of one float dtype.

    As `matmul_reduce_scatter`, with its options and errors, but each device stores its part of the sum on all devices.
    It is one kernel if M is a multiple of 128 times the number of devices.
    """
    return _scattered("matmul_all_reduce", x, w, mesh, out, deterministic, timeout, interpret)


def _scattered(
    op: str, x: Any, w: Any, mesh: Mesh, out: Any, deterministic: bool, timeout: float | None, interpret: Any
) -> Any:
    everywhere = op == "matmul_all_reduce"
    (rows, depth), columns, dtype = _operands(x, w, mesh, op)
    if rows % mesh.size and not everywhere:
        what = f"x has {rows} rows, for {mesh.size} devices"
        raise BadArgument(op=op, what=what, hint="pad it to a multiple of the devices")
    _check_apart(x, w, out, op)
    whole = rows % mesh.size == 0 and gapless(x, w, out)
    p = _fused(rows // mesh.size, columns, depth, dtype, x, mesh, timeout, interpret, True) if whole else None
    options: dict[str, Any] = {"deterministic": deterministic, "timeout": timeout, "interpret": interpret}
    if p is None:
        add = all_reduce if everywhere else reduce_scatter
        return add(_products(x, w, mesh, None, interpret), mesh, out=out, **options)
    parts = scratch(x, (mesh.size, p.own, columns), dtype, mesh, "parts")
    made = Fresh((rows if everywhere else p.own, columns), dtype, mesh) if out is None else out
    if everywhere and out is None and isinstance(x, OfRank):  # peers store to it, so all ranks allocate it together
        made = made_like(x, (rows, columns), dtype, mesh)
        return Launched(scattering_kernel(p, everywhere), (x, w), (made, parts), itemgetter(0)).run(interpret, False)
    return Launched(scattering_kernel(p, everywhere), (x, w), (made, parts), itemgetter(0))


# --- arguments ------------------------------------------------------------------------------------


def _operands(x: Any, w: Any, mesh: Mesh, op: str) -> tuple[tuple[int, int], int, DType]:
    """The shape of a device's x, the columns of its w, and their dtype. Raises `BadArgument`, `BadArgumentType`."""
    (shape, dtype), (other, kind) = described(x, mesh, op), described(w, mesh, op)
    if dtype != kind or not dtype.is_float:
        what = f"x is {dtype} and w {kind}"
        raise BadArgumentType(op=op, what=what, hint="pass floats of one dtype")
    if len(shape) != 2 or len(other) != 2 or shape[1] != other[0] or 0 in (*shape, *other):
        what = f"x is {list(shape)} and w {list(other)} on a device"
        raise BadArgument(op=op, what=what, hint="pass matrices: w has as many rows as x has columns, 1 or more")
    return (shape[0], shape[1]), other[1], dtype


def _check_apart(x: Any, w: Any, out: Any, op: str) -> None:
    if out is not None and (overlap(x, out) or overlap(w, out)):
        raise BadArgument(op=op, what="out= shares memory with x or w", hint="give other arrays: tiles still read them")


def _products(rows: Any, w: Any, mesh: Mesh, out: Any, interpret: Any) -> Any:
    """The product of each device, without collectives."""
    if isinstance(w, OfRank) and out is None:  # peers read it
        out = made_like(w, (rows[0].shape[0], w[0].shape[1]), as_dtype(w[0].dtype), mesh, "products")
    outs = [None] * len(w) if out is None else out
    pairs = zip(rows, w, outs, strict=True)
    made = [matmul(a, b, out=o, interpret=interpret) for a, b, o in pairs]
    return OfRank(made, mesh) if isinstance(w, OfRank) else Symmetric(made, mesh)


def _fused(
    own: int,
    columns: int,
    depth: int,
    dtype: DType,
    x: Any,
    mesh: Mesh,
    timeout: float | None,
    interpret: Any,
    sends: bool,
) -> MeshProduct | None:
    """The fused kernel for the product, or None. `sends`: as of `MeshProduct`."""
    if dtype not in (kd.float16, kd.bfloat16) or own % TILE_M or depth % 8 or columns % 8 or mesh.hosts:
        return None
    target = target_of(x, interpret)
    if not target.supports(TMA_WGMMA | Feature.SETMAXNREG):
        return None
    width = WIDE if columns > WIDE // 2 else 128 if columns > NARROW else NARROW
    tile = TILE_M * (width if sends else NARROW) * dtype.itemsize  # what waits in SMEM until it is stored
    stages = (SMEM_LEFT - tile) // ((TILE_M + width) * TILE_K * dtype.itemsize)
    tiles = own // TILE_M * kd.cdiv(columns, width)
    blocks = min(tiles * mesh.size, BLOCKS, target.limits.multiprocessors)
    p = MeshProduct(own * mesh.size, columns, depth, dtype, mesh, width, max(stages, 2), blocks, timeout, sends)
    return p if p.room else None
