"""Tiles of two heights: each row is computed once, by the consumers that have it; chosen where they fill waves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from benchmarks.bounds import fp8_error
from kernel_dsl.errors import BadCallValue
from kernel_dsl.library.product_kernels.low_tiles import LowTiles
from kernel_dsl.library.product_kernels.persistent_matmul import matmul_kernel
from kernel_dsl.library.product_routes import choose
from kernel_dsl.library.product_routes.routes import Route
from kernel_dsl.library.products.matmul_config import MatmulConfig
from kernel_dsl.library.products.problem import Problem
from tests.hopper.helpers import assemble, random, relative
from tests.schedules import interpret as interpret

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f32, e4m3 = kd.bfloat16, kd.float32, kd.float8_e4m3fn
Spec = kd.ShapeDtypeStruct
TALL = MatmulConfig(tile_m=192, tile_n=64, tile_k=128, stages=2, consumers=3, epilogue_n=32, group=2)


def scaled(M: int, N: int, K: int, form: str = "blocks", out: Any = bf16) -> Problem:
    return Problem(M, N, K, e4m3, e4m3, out, b_transposed=True, a_scaled=True, b_scaled=form)


CASES = {
    "both heights": (512, 128, 384, 3, replace(TALL, low_tiles=1), "blocks"),
    "edges": (444, 136, 208, 3, replace(TALL, low_tiles=2), "blocks"),
    "low ones alone": (200, 72, 512, 2, replace(TALL, low_tiles=2), "blocks"),
    "a low one beyond the end": (136, 72, 128, 2, replace(TALL, low_tiles=2), "blocks"),
    "a scale for each column": (512, 128, 384, 3, replace(TALL, low_tiles=1), "columns"),
    "two consumers": (300, 72, 640, 3, replace(TALL, tile_m=128, consumers=2, low_tiles=2), "blocks"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(3)
def test_results(name: str, interpret: Any, rng: Any) -> None:
    M, N, K, blocks, config, form = CASES[name]
    a, b = random(rng, (M, K), e4m3), random(rng, (N, K), e4m3)
    count = -(-K // 128)
    rows = rng.random((M, count)).astype(np.float32) + 0.5
    columns = rng.random((count, N if form == "columns" else -(-N // 128))).astype(np.float32) + 0.5
    got = matmul_kernel(scaled(M, N, K, form, f32), config, blocks)(a, b, rows, columns, interpret=interpret)
    down, across = np.repeat(rows, 128, 1)[:, :K], np.repeat(columns, 128, 0)[:K]
    across = across if form == "columns" else np.repeat(across, 128, 1)[:, :N]
    lost = fp8_error(K, 128) if interpret is False else 0.0
    assert relative(got, (a.astype(np.float64) * down) @ (b.T.astype(np.float64) * across)) < 1e-6 + lost


@pytest.mark.parametrize(("M", "low", "across"), [(4096, 8, 32), (4096, 5, 56), (300, 2, 3), (190, 2, 5)], ids=str)
def test_each_row_has_one_tile(M: int, low: int, across: int) -> None:
    t = replace(TALL, low_tiles=low, group=8)
    tiles = LowTiles(t, t.high_tiles(M), across)
    count = (t.high_tiles(M) + low) * across

    def body(out: Any) -> None:
        row, column = tiles.place(kd.program_id(0))
        out[kd.program_id(0), 0], out[kd.program_id(0), 1] = row, column

    places = kd.kernel(body, out_type=Spec((count, 2), kd.int32), grid=(count,))(interpret=True)
    found = sorted(map(tuple, np.asarray(places).tolist()), key=lambda place: place[::-1])
    heights = [t.tile_m] * t.high_tiles(M) + [t.low_rows] * low
    starts = [sum(heights[:i]) for i in range(len(heights))]
    assert found == [(m, n) for n in range(across) for m in starts] and sum(heights) >= M


@pytest.mark.parametrize("shape", [(4096, 4096, 7168), (4096, 7168, 2048), (4096, 7168, 16384)], ids=str)
@pytest.mark.parametrize("form", ["blocks", "columns"])
def test_chosen(shape: Any, form: str) -> None:
    """Where the last wave of tall tiles would be less than half full; not for any M, and not in groups."""
    p = scaled(*shape, form)
    t = choose.choose(p, 132)
    assert t.low_tiles > 0 and t.consumers == 3
    assert not choose.choose(p, 132, even=True).low_tiles
    assert not choose.choose(replace(p, M=64, batch=(64,), a_batch=(64,), b_batch=(64,)), 132).low_tiles


@pytest.mark.sampled(60, "machine code")
def test_nothing_spills() -> None:
    M, N, K = 4096, 4096, 7168
    for form, columns in (("blocks", N // 128), ("columns", N)):
        p = scaled(M, N, K, form)
        specs = Spec((M, K), e4m3), Spec((N, K), e4m3), Spec((M, K // 128), f32), Spec((K // 128, columns), f32)
        assert assemble(matmul_kernel(p, choose.choose(p, 132), 132), *specs).resources.spills == 0


def test_any_rows_have_even_tiles() -> None:
    """A kernel for the second M takes any M, and the cost model's best even tiles."""
    for M in (4096 - 64, 4096):
        p = scaled(M, 4096, 7168)
        first = Route("fast", p, choose.choose(p, 132))
        assert first.config.low_tiles
        made = first.serving(132)
    assert made.config == replace(choose.choose(p, 132, even=True), stages=made.config.stages)
    assert not isinstance(made.problem.M, int)


@pytest.mark.parametrize(
    ("options", "scales"),
    [({}, False), ({"ping_pong": True, "tile_m": 64}, True), ({"streamed": True}, True), ({"cluster": 2}, True)],
    ids=str,
)
def test_refused(options: dict[str, Any], scales: bool, rng: Any) -> None:
    a, b = random(rng, (256, 384), e4m3), random(rng, (384, 128), e4m3)
    more: dict[str, Any] = (
        {"a_scale": np.ones((256, 3), np.float32), "b_scale": np.ones((3, 1), np.float32)} if scales else {}
    )
    with pytest.raises(BadCallValue, match="low_tiles"):
        kd.library.matmul(a, b, config=replace(TALL, low_tiles=1, **options), interpret=True, **more)


def test_refused_in_groups(rng: Any) -> None:
    a, b = random(rng, (16, 128), e4m3), random(rng, (2, 128, 64), e4m3)
    for config in (replace(TALL, low_tiles=1), replace(TALL, streamed=True)):
        with pytest.raises(BadCallValue, match="low tiles"):
            kd.library.grouped_matmul(a, b, np.full(2, 8, np.int32), config=config, interpret=True)
