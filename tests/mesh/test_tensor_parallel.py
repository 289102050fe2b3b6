"""Products on a mesh with their collectives, against float64: the one kernel of each and what takes its place elsewhere."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import library
from kernel_dsl.errors import BadArgument, BadArgumentType
from kernel_dsl.library.mesh_products import gathering_product, paced_tiles
from kernel_dsl.library.mesh_products.scattering_product import scattering_kernel
from kernel_dsl.library.mesh_products.shared import MeshProduct

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


# devices, rows of x, K, N, columns of a tile, blocks, everywhere, schedule: blocks have several tiles, of 1 to 7 steps; a
# tile waits in SMEM while the next one is loaded
SEVERAL = [
    pytest.param(1, 384, 64, 64, 64, 1, False, {"seed": 0}),
    pytest.param(2, 512, 64, 136, 64, 2, False, {"seed": 1}, marks=SLOW),
    pytest.param(2, 256, 448, 64, 64, 1, True, {"seed": 2}),
    pytest.param(3, 384, 136, 200, 128, 2, False, {"schedule": "late"}),
    pytest.param(5, 640, 64, 64, 64, 1, True, {"seed": 3}),  # a loop over the devices
    pytest.param(6, 768, 136, 72, 64, 2, False, {"schedule": "late"}, marks=SLOW),
    pytest.param(2, 512, 320, 264, 256, 3, False, {"schedule": "eager"}, marks=SLOW),
    pytest.param(4, 512, 200, 136, 128, 3, True, {"seed": 5}, marks=SLOW),
    pytest.param(2, 1024, 448, 136, 64, 5, False, {"schedule": "late"}, marks=SLOW),
]


@pytest.mark.parametrize(("n", "rows", "depth", "columns", "tile_n", "blocks", "everywhere", "schedule"), SEVERAL)
def test_blocks_with_several_tiles(
    n: int,
    rows: int,
    depth: int,
    columns: int,
    tile_n: int,
    blocks: int,
    everywhere: bool,
    schedule: dict[str, Any],
) -> None:
    mesh = kd.Mesh(("x",), (n,))
    xs, ws = operands(n, rows, depth, columns, BF16)
    p = MeshProduct(rows, columns, depth, kd.bfloat16, mesh, tile_n, 3, blocks, sends=True)
    out, _ = scattering_kernel(p, everywhere)(xs, ws, interpret=kd.InterpretParams(**schedule))
    check("matmul_all_reduce" if everywhere else "matmul_reduce_scatter", out, xs, ws, BF16)


@pytest.mark.parametrize(
    ("n", "rows", "depth", "tile_n", "blocks", "parts", "schedule"),
    [
        pytest.param(2, 128, 136, 64, 1, 2, {"seed": 0}),  # a piece every few steps
        pytest.param(2, 256, 200, 64, 3, 16, {"schedule": "late"}, marks=SLOW),
        pytest.param(3, 128, 640, 128, 2, 4, {"schedule": "eager"}, marks=SLOW),
        pytest.param(2, 128, 2048, 64, 3, 4, {"seed": 4}, marks=SLOW),  # parts of several pieces
    ],
)
def test_rows_that_are_sent_between_the_loads_of_several_tiles(
    n: int,
    rows: int,
    depth: int,
    tile_n: int,
    blocks: int,
    parts: int,
    schedule: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathering_product, "PARTS", parts)
    xs, ws = operands(n, rows, depth, 3 * tile_n, BF16)
    p = MeshProduct(n * rows, 3 * tile_n, depth, kd.bfloat16, kd.Mesh(("x",), (n,)), tile_n, 3, blocks)
    out, _ = gathering_product.gathering_kernel.__wrapped__(p)(xs, ws, interpret=kd.InterpretParams(**schedule))
    check("all_gather_matmul", out, xs, ws, BF16)


def test_a_gather_on_eight_devices_does_not_spill() -> None:
    mesh, like = kd.Mesh(("x",), (8,)), lambda *shape: kd.ShapeDtypeStruct(shape, kd.bfloat16)
    kernel = gathering_product.gathering_kernel(MeshProduct(8192, 4096, 2048, kd.bfloat16, mesh, 256, 4, 132, 5))
    assert kernel.lower(like(1024, 2048), like(2048, 4096), target="sm_90a").compile().resources.spills == 0


def test_an_all_reduce_on_four_devices_does_not_spill() -> None:
    mesh, like = kd.Mesh(("x",), (4,)), lambda *shape: kd.ShapeDtypeStruct(shape, kd.bfloat16)
    p = MeshProduct(8192, 4096, 2048, kd.bfloat16, mesh, 256, 3, 132, 5, sends=True)
    kernel = scattering_kernel.__wrapped__(p, True)
    assert kernel.lower(like(8192, 2048), like(2048, 4096), target="sm_90a").compile().resources.spills == 0


@SLOW
def test_rows_go_to_more_peers_than_are_unrolled() -> None:
    mesh = kd.Mesh(("x",), (5,))
    xs, ws = operands(5, 128, 64, 64, BF16)
    check(
        "all_gather_matmul", library.all_gather_matmul(xs, ws, mesh, interpret=kd.InterpretParams(seed=3)), xs, ws, BF16
    )


@pytest.mark.parametrize(("arrivals", "n"), [(1, 1), (2, 1), (4, 2)], ids=["free", "held", "terms"])
def test_a_place_in_smem_that_is_used_too_early_is_found(
    arrivals: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Without:
        def __getattr__(self, name: str) -> Any:
            return getattr(kd, name)

        def barrier_wait(self, barrier: Any) -> None:
            if barrier.root.type.arrivals != arrivals:
                kd.barrier_wait(barrier)

    monkeypatch.setattr(paced_tiles, "kd", Without())
    xs, ws = operands(n, 512, 64, 64 * n, BF16)
    p = MeshProduct(512, 64 * n, 64, kd.bfloat16, kd.Mesh(("x",), (n,)), 64 * n, 2, 1, sends=True)
    with pytest.raises(kd.HazardError):
        scattering_kernel.__wrapped__(p, False)(xs, ws, interpret=kd.InterpretParams(seed=0))


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
