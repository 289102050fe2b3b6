"""Tiles that blocks share along K: each count of tiles, of blocks and of steps, against NumPy; the same bits every time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from benchmarks.bounds import fp8_error
from kernel_dsl.errors import BadCallValue
from kernel_dsl.library.product_kernels.persistent_matmul import matmul_kernel
from kernel_dsl.library.product_routes.fast_sizes import configure
from kernel_dsl.library.products.matmul_config import MatmulConfig
from kernel_dsl.library.products.problem import Problem
from tests.hopper.helpers import assemble, random, relative
from tests.schedules import interpret as interpret

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f32, s8, e4m3 = kd.bfloat16, kd.float32, kd.int8, kd.float8_e4m3fn
Spec = kd.ShapeDtypeStruct
SMALL = MatmulConfig(tile_m=128, tile_n=64, stages=2, epilogue_n=32, streamed=True)


def product(
    M: int, N: int, K: int, blocks: int, config: MatmulConfig, interpret: Any, rng: Any, dtype: Any = bf16
) -> Any:
    """(the result, what it should be)"""
    out = f32 if dtype.is_float else kd.int32
    p = Problem(M, N, K, dtype, dtype, out, b_transposed=True)
    config = replace(config, tile_k=128 // dtype.itemsize)
    a, b = random(rng, (M, K), dtype), random(rng, (N, K), dtype)
    got = matmul_kernel(p, config, blocks)(a, b, interpret=interpret)
    return np.asarray(got).astype(np.float64), a.astype(np.float64) @ b.astype(np.float64).T


CASES = {
    "a tile of three blocks": (128, 64, 448, 3, SMALL),
    "less than a wave": (256, 128, 320, 5, SMALL),
    "one and a third waves": (256, 128, 448, 3, SMALL),
    "two and a quarter waves": (128, 576, 192, 4, SMALL),
    "whole waves": (256, 128, 192, 2, SMALL),
    "fewer steps than blocks": (128, 64, 128, 4, SMALL),
    "edges": (200, 136, 328, 5, SMALL),
    "clusters": (256, 192, 256, 4, replace(SMALL, cluster=2)),
    "swapped": (136, 200, 328, 3, replace(SMALL, swapped=True)),
    "one consumer": (200, 136, 328, 5, replace(SMALL, tile_m=64, consumers=1)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(6)
def test_shares(name: str, interpret: Any, rng: Any) -> None:
    got, expected = product(*CASES[name], interpret, rng)
    assert relative(got, expected) < 1e-5


@pytest.mark.parametrize("dtype", [s8, f32], ids=str)
def test_dtypes(dtype: Any, interpret: Any, rng: Any) -> None:
    got, expected = product(256, 128, 1500 // dtype.itemsize // 16 * 16, 3, SMALL, interpret, rng, dtype)
    assert relative(got, expected) <= (1e-3 if dtype.is_float else 0)


def test_blocks_of_scales(interpret: Any, rng: Any) -> None:
    """Sums in registers, from the pieces on, with the factors of each piece's own steps."""
    M, N, K = 150, 380, 128 * 7 - 16
    p = Problem(M, N, K, e4m3, e4m3, f32, b_transposed=True, a_scaled=True, b_scaled="blocks")
    config = configure(p, 128, 192, 2)
    assert config is not None
    a, b = random(rng, (M, K), e4m3), random(rng, (N, K), e4m3)
    rows, blocks = (rng.random(shape).astype(np.float32) + 0.5 for shape in ((M, 7), (7, 3)))
    got = matmul_kernel(p, replace(config, streamed=True), 3)(a, b, rows, blocks, interpret=interpret)
    wide = np.repeat(rows, 128, 1)[:, :K], np.repeat(np.repeat(blocks, 128, 0)[:K], 128, 1)[:, :N].T
    lost = fp8_error(K, 128) if interpret is False else 0.0
    assert relative(got, (a.astype(np.float64) * wide[0]) @ (b.astype(np.float64) * wide[1]).T) < 1e-6 + lost


def test_with_steps(interpret: Any, rng: Any) -> None:
    """The steps are applied once, to whole sums, of each product of a batch; a side in registers."""
    a, b = random(rng, (2, 150, 640), s8), random(rng, (2, 640, 72), bf16)
    bias = random(rng, (72,), f32)
    got = kd.library.matmul(
        a, b, bias=bias, activation=lambda x: kd.maximum(x, 0.0), out_dtype=f32, config=SMALL, interpret=interpret
    )
    expected = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    assert relative(got, expected) < 4e-3


def test_any_rows(rng: Any) -> None:
    """A kernel for any M divides the work of each launch."""
    b = random(rng, (512, 72), bf16)
    for M in (100, 260, 140):
        a = random(rng, (M, 512), bf16)
        got = kd.library.matmul(a, b, out_dtype=f32, config=SMALL, interpret=True)
        assert relative(got, a.astype(np.float64) @ b.astype(np.float64)) < 1e-5


def test_the_same_bits(rng: Any) -> None:
    """Sums have one order, whichever block is first."""
    seen: set[bytes] = set()
    for seed in range(3):
        params = kd.InterpretParams(schedule="random", seed=seed)
        got, _ = product(256, 128, 448, 3, SMALL, params, np.random.default_rng(5))
        seen.add(got.tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("tile", [(128, 256, 2), (256, 128, 2), (128, 192, 2), (64, 256, 1)])
def test_nothing_spills(tile: Any) -> None:
    for p in (
        Problem(1792, 1792, 8192, bf16, bf16, bf16, b_transposed=True),
        Problem(1792, 1792, 8192, e4m3, e4m3, bf16, b_transposed=True, a_scaled=True, b_scaled="blocks"),
    ):
        config = configure(p, *tile)
        if config is None or (p.scaled and tile != (128, 192, 2)):
            continue
        more = (Spec((1792, 64), f32), Spec((64, 14), f32)) if p.scaled else ()
        sides = [Spec((1792, 8192), p.dtype)] * 2
        assert assemble(matmul_kernel(p, replace(config, streamed=True), 132), *sides, *more).resources.spills == 0


@pytest.mark.parametrize("options", [{"ping_pong": True, "tile_n": 128}, {"sparse": True}, {"pairs": True}], ids=str)
def test_refused(options: dict[str, Any], rng: Any) -> None:
    """Consumers that take turns, and loops of a static number of steps, have no such form."""
    a, b = random(rng, (128, 512), e4m3), random(rng, (512, 128), e4m3)
    config = replace(SMALL, tile_k=128)
    more: dict[str, Any] = {}
    if options.get("sparse"):
        a = kd.library.sparse_compress(random(rng, (128, 512), bf16), prune=True, interpret=True)
        b, config = random(rng, (512, 128), bf16), replace(SMALL, tile_k=128)
    elif options.get("pairs"):
        config = replace(config, tile_m=64, consumers=1)
        more = {"a_scale": np.ones((128, 4), np.float32), "b_scale": np.ones((4, 1), np.float32)}
    else:
        config = replace(config, **options)
    with pytest.raises(BadCallValue, match="streamed"):
        kd.library.matmul(a, b, config=config, interpret=True, **more)
