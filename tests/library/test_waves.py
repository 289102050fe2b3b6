"""Tiles of widths between the usual ones, by which products fill a wave of multiprocessors: right, and chosen where they help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.product_kernels.persistent_matmul import matmul_kernel
from kernel_dsl.library.product_routes import choose
from kernel_dsl.library.product_routes.fast_costs import BETWEEN
from kernel_dsl.library.product_routes.fast_sizes import configure
from kernel_dsl.library.product_routes.routes import route
from kernel_dsl.library.products.arguments import request
from kernel_dsl.library.products.matmul_options import MatmulOptions
from kernel_dsl.library.products.problem import Problem
from kernel_dsl.stages import target_named
from tests.hopper.helpers import random, relative

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f16, s8 = kd.bfloat16, kd.float16, kd.int8
Spec = kd.ShapeDtypeStruct
BLOCKS = 132
STORED = [(bf16, f16, 24), (bf16, kd.float32, 24), (s8, kd.int32, 48), (s8, bf16, 48)]


def problem(M: int, N: int, K: int, dtype: Any = bf16, layout: str = "NT") -> Problem:
    return Problem(M, N, K, dtype, dtype, bf16, a_transposed=layout[0] == "T", b_transposed=layout[1] == "T")


@pytest.mark.parametrize("swapped", [False, True], ids=["straight", "swapped"])
@pytest.mark.parametrize(
    "tile",
    [(128, n, 2) for n in BETWEEN]
    + [(256, n, 2) for n in choose.HIGH_WIDTHS]
    + [(192, n, 3) for n in choose.TALL_WIDTHS],
    ids=str,
)
@pytest.mark.parametrize("dtype", [bf16, s8], ids=str)
@pytest.mark.sampled(102)
def test_widths(tile: tuple[int, int, int], swapped: bool, dtype: Any, interpret: Any, rng: Any) -> None:
    """Two tiles and a part of one across, and along K a stage and a part of one, with a bias."""
    sizes = [tile[0] + 22, 2 * tile[1] + 8, 320 // dtype.itemsize]
    M, N, K = sizes if not swapped else [sizes[1], sizes[0] + 2, sizes[2]]
    config = configure(replace(problem(*sizes, dtype), out_dtype=kd.float32), *tile)
    assert config is not None
    a, b = random(rng, (M, K), dtype), random(rng, (N, K), dtype).T
    if swapped and dtype == bf16:
        b = np.ascontiguousarray(b)
    bias = random(rng, (N,), kd.float32)
    got = kd.library.matmul(
        a, b, bias=bias, out_dtype=kd.float32, config=replace(config, swapped=swapped), interpret=interpret
    )
    assert relative(got.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64) + bias) < 1e-5


def test_choice() -> None:
    """What missed a wave fits in one; what filled its waves, and what has no side along K, is as it was."""
    for layout in ("NT", "NN", "TT"):
        for shape in ((1536, 1536, 4096), (1536, 1536, 16384)):
            t = choose.choose(problem(*shape, layout=layout), BLOCKS)
            tiles = -(-1536 // t.tile_m) * -(-1536 // t.tile_n)
            assert t.tile_n in BETWEEN and 120 <= tiles <= BLOCKS, (shape, layout, t)
    for shape in ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 512), (16, 16384, 8192)):
        for layout in ("NN", "NT"):
            assert choose.choose(problem(*shape, layout=layout), BLOCKS).tile_n not in BETWEEN
    assert choose.choose(problem(1536, 1536, 4096, layout="TN"), BLOCKS).tile_n not in BETWEEN


@pytest.mark.sampled(60, "machine code")
def test_no_spills() -> None:
    cases: tuple[dict[str, Any], ...] = ({}, {"bias": Spec((1536,), kd.float32)})
    for steps in cases:
        made = kd.library.matmul.lower(Spec((1536, 4096), bf16), Spec((4096, 1536), bf16), target="sm_90a", **steps)
        compiled = made.compile()
        assert compiled.resources.spills == 0 and not [r for r in compiled.remarks if "C75" in r.text]


@pytest.mark.parametrize("layout", ["NT", "TN"])
@pytest.mark.parametrize("dtype", [bf16, s8, kd.float8_e4m3fn], ids=str)
@pytest.mark.sampled(60, "machine code")
def test_high_tiles_do_not_spill(dtype: Any, layout: str) -> None:
    """Tiles of 192 and 256 rows, stored by TMA, alone and in clusters."""
    if dtype != bf16 and layout == "TN":
        return
    p = problem(1520, 1504, 1024, dtype, layout)
    for t in choose.high_tiles(p, BLOCKS):
        for cluster in (1, 2):
            made = matmul_kernel(p, replace(t, cluster_n=cluster), BLOCKS)
            compiled = made.lower(Spec((1520, 1024), dtype), Spec((1024, 1504), dtype), target="sm_90a").compile()
            assert compiled.resources.spills == 0 and not [r for r in compiled.remarks if "C75" in r.text], t


@pytest.mark.parametrize(("dtype", "out_dtype", "K"), [(*x[:2], 400 // x[0].itemsize) for x in STORED[:3]], ids=str)
@pytest.mark.sampled(102)
def test_high_tiles_of_odd_rows(dtype: Any, out_dtype: Any, K: int, interpret: Any, rng: Any) -> None:
    """Lanes store them by whole lines."""
    p = replace(problem(300, 331, K, dtype), out_dtype=out_dtype, lanes=1)
    a, b = random(rng, (300, K), dtype), random(rng, (331, K), dtype)
    tiles = choose.high_tiles(p, 4)
    for t in (tiles[0], tiles[-1]):
        got = matmul_kernel(p, t, 2)(a, b, interpret=interpret)
        bound = 1e-3 if out_dtype == f16 else 1e-6
        assert relative(got.astype(np.float64), a.astype(np.float64) @ b.T.astype(np.float64)) < bound, t


def test_products_that_miss_waves_have_high_tiles() -> None:
    """520 x 3784 x 10952 took 118 us with 128 rows, 86 with 192; 3088 x 4416 x 5936 in e4m3 142 and 132."""
    target = target_named("sm_90a")
    for dtype, shape, layout, tall in (
        (bf16, (520, 3784, 10952), "TT", 192),
        (kd.float8_e4m3fn, (3088, 4416, 5936), "NT", 256),
    ):
        M, N, K = shape
        a = np.empty((K, M) if layout[0] == "T" else (M, K), dtype.numpy)
        b = np.empty((N, K) if layout[1] == "T" else (K, N), dtype.numpy)
        r = request(a.T if layout[0] == "T" else a, b.T if layout[1] == "T" else b, MatmulOptions(), None)
        assert route(r.problem, r.left, r.right, r.family, None, target).config.tile_m == tall


@pytest.mark.parametrize("N", [264, 259], ids=["even", "odd"])
@pytest.mark.parametrize("tile", [(64, 256, 1), (128, 128, 2), (128, 192, 2)], ids=str)
@pytest.mark.parametrize(("dtype", "out_dtype", "K"), STORED, ids=str)
@pytest.mark.sampled(108)
def test_shallow_products(dtype: Any, out_dtype: Any, K: int, tile: Any, N: int, interpret: Any, rng: Any) -> None:
    """Products that mostly store: buffers for whole tiles, of which two blocks have several, and long runs of odd rows."""
    M, item = 330, out_dtype.itemsize
    aligned = N * item % 16 == 0
    p = replace(problem(M, N, K, dtype), out_dtype=out_dtype, lanes=0 if aligned else 1)
    t = configure(p, *tile)
    assert t is not None
    if aligned:
        assert t.epilogue_stages == t.tile_n // t.epilogue_n
    else:
        assert t.epilogue_n == t.tile_n
    a, b = random(rng, (M, K), dtype), random(rng, (N, K), dtype)
    got = matmul_kernel(p, t, 2)(a, b, interpret=interpret)
    bound = {f16: 1e-3, bf16: 4e-3}.get(out_dtype, 1e-6)
    assert relative(got.astype(np.float64), a.astype(np.float64) @ b.T.astype(np.float64)) < bound


@pytest.mark.parametrize("dtype", [bf16, s8, kd.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("out_dtype", [bf16, kd.float32, kd.float8_e4m3fn], ids=str)
@pytest.mark.sampled(60, "machine code")
def test_stores_by_lanes_do_not_spill(dtype: Any, out_dtype: Any) -> None:
    p = replace(problem(1000, 1003, 256, dtype), out_dtype=out_dtype, lanes=1)
    for t in (*(configure(p, *tile) for tile in choose.TILES), *choose.high_tiles(p, BLOCKS)):
        if t is None:
            continue
        made = matmul_kernel(p, t, BLOCKS).lower(Spec((1000, 256), dtype), Spec((1003, 256), dtype), target="sm_90a")
        assert made.compile().resources.spills == 0, t


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["NN", "NT", "TT"])
def test_real_sizes(layout: str, rng: Any) -> None:
    for M, N, K in ((1536, 1536, 4096), (2048, 2304, 1024), (1530, 1528, 1000)):
        a, b = (random(rng, (r, c) if x == "N" else (c, r), f16) for x, r, c in ((layout[0], M, K), (layout[1], K, N)))
        a, b = a.T if layout[0] == "T" else a, b.T if layout[1] == "T" else b
        out = np.full((M, N), np.nan, np.float32)
        got = kd.library.matmul(a, b, out_dtype=kd.float32, out=out, interpret=False)
        assert relative(got.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64)) < 1e-5
