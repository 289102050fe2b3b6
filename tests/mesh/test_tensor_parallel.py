"""Products on a mesh with their collectives, against float64: the one kernel of each and what takes its place elsewhere."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import library
from kernel_dsl.errors import BadArgument, BadArgumentType
from kernel_dsl.library.mesh_product import MeshProduct
from kernel_dsl.library.scattering_product import scattering_kernel

BF16 = ml_dtypes.bfloat16
NAMES = ["all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"]


def operands(n: int, rows: int, depth: int, columns: int, dtype: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((rows, depth)).astype(dtype) for _ in range(n)]
    return xs, [rng.standard_normal((depth, columns)).astype(dtype) for _ in range(n)]


def wanted(name: str, xs: list[np.ndarray], ws: list[np.ndarray]) -> list[np.ndarray]:
    X, W = [[a.astype(np.float64) for a in arrays] for arrays in (xs, ws)]
    if name == "all_gather_matmul":
        return [np.concatenate(X) @ w for w in W]
    total = np.sum([x @ w for x, w in zip(X, W, strict=True)], axis=0)
    return np.split(total, len(X)) if name == "matmul_reduce_scatter" else [total] * len(X)


def check(name: str, got: Any, xs: list[np.ndarray], ws: list[np.ndarray], dtype: Any) -> None:
    """Each product is rounded once before they are added, and the sum once."""
    step = {BF16: 2.0**-8, np.float16: 2.0**-11, np.float32: 2.0**-22}[dtype]
    for g, want in zip(got, wanted(name, xs, ws), strict=True):
        size = np.sqrt(xs[0].shape[1] * len(xs)) * 5
        assert g.shape == want.shape and g.dtype == dtype
        assert np.abs(g.astype(np.float64) - want).max() <= 2 * step * size


# devices, rows of x, K, N, dtype, schedule: all but the last are one kernel
SLOW = pytest.mark.slow
CASES = [
    pytest.param(2, 256, 64, 64, BF16, {"seed": 0}),
    pytest.param(2, 256, 136, 72, BF16, {"seed": 0}, marks=SLOW),
    pytest.param(2, 512, 64, 200, np.float16, {"schedule": "late"}, marks=SLOW),
    pytest.param(4, 512, 72, 64, BF16, {"seed": 5}, marks=SLOW),
    pytest.param(2, 6, 20, 33, np.float32, {"seed": 1}, marks=SLOW),
]


@pytest.mark.parametrize(("n", "rows", "depth", "columns", "dtype", "schedule"), CASES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(4)
def test_each(name: str, n: int, rows: int, depth: int, columns: int, dtype: Any, schedule: dict[str, Any]) -> None:
    mesh = kd.Mesh(("x",), (n,))
    rows = max(rows // n, 128) if name == "all_gather_matmul" and rows > 128 else rows
    xs, ws = operands(n, rows, depth, columns, dtype)
    check(name, getattr(library, name)(xs, ws, mesh, interpret=kd.InterpretParams(**schedule)), xs, ws, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", NAMES)
def test_each_under_many_schedules(name: str, seed: int) -> None:
    mesh = kd.Mesh(("a", "b"), (2, 2)) if seed % 4 == 0 else kd.Mesh(("x",), (2,))
    xs, ws = operands(mesh.size, 128 if name == "all_gather_matmul" else 128 * mesh.size, 96, 136, BF16)
    schedule = {"seed": seed} if seed % 5 else {"schedule": ("late", "eager")[seed % 2]}
    for _ in range(2):
        check(name, getattr(library, name)(xs, ws, mesh, interpret=kd.InterpretParams(**schedule)), xs, ws, BF16)


def test_tiles_of_few_columns_wait_for_the_store_of_the_tile_before() -> None:
    """A block has several tiles of its own rows, each of one part, and two places for parts in SMEM."""
    mesh = kd.Mesh(("x",), (1,))
    xs, ws = operands(1, 384, 64, 64, BF16)
    kernel = scattering_kernel(MeshProduct(384, 64, 64, kd.bfloat16, mesh, 64, 2, blocks=1, staged=2), False)
    check("matmul_reduce_scatter", kernel(xs, ws, interpret=kd.InterpretParams(seed=0))[0], xs, ws, BF16)


@SLOW
def test_outputs_given_and_the_order_of_sums() -> None:
    mesh = kd.Mesh(("x",), (2,))
    xs, ws = operands(2, 256, 64, 64, BF16)
    outs = [np.zeros((256, 64), BF16) for _ in range(2)]
    got = library.matmul_all_reduce(xs, ws, mesh, out=outs, interpret=True)
    assert got[0] is outs[0] and outs[0].tobytes() == outs[1].tobytes(), "the same bits on all devices"
    check("matmul_all_reduce", outs, xs, ws, BF16)


def test_arrays_that_tma_does_not_take_go_in_two_steps() -> None:
    mesh = kd.Mesh(("x",), (2,))
    xs, ws = operands(2, 128, 64, 64, np.float16)
    turned = [np.asfortranarray(w) for w in ws]
    check("all_gather_matmul", library.all_gather_matmul(xs, turned, mesh, interpret=True), xs, ws, np.float16)


def test_what_is_refused() -> None:
    mesh = kd.Mesh(("x",), (2,))
    xs, ws = operands(2, 4, 8, 8, np.float32)
    with pytest.raises(BadArgument, match="w has as many rows"):
        library.all_gather_matmul(xs, [w[1:] for w in ws], mesh)
    with pytest.raises(BadArgumentType, match="floats of one dtype"):
        library.matmul_all_reduce(xs, [w.astype(np.float64) for w in ws], mesh)
    with pytest.raises(BadArgument, match="3 rows, for 2 devices"):
        library.matmul_reduce_scatter([x[:3] for x in xs], ws, mesh)
    with pytest.raises(BadArgument, match="shares memory"):
        square = [np.zeros((8, 8), np.float32) for _ in range(2)]
        library.matmul_all_reduce(square, ws, mesh, out=square)
    with pytest.raises(BadArgumentType, match="a list of 2 arrays"):
        library.matmul_all_reduce(xs[0], ws, mesh)
