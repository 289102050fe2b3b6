"""Stores of tiles to rows that begin within lines: right for all words, edges, batches and parts, and by whole lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.product_kernels import whole_lines
from kernel_dsl.library.product_kernels.persistent_matmul import matmul_kernel
from kernel_dsl.library.product_kernels.tile_product import TileConfig, tile_kernel
from kernel_dsl.library.product_routes.choose import tiles_between
from kernel_dsl.library.product_routes.fast_sizes import configure
from kernel_dsl.library.product_routes.routes import route
from kernel_dsl.library.products.arguments import request
from kernel_dsl.library.products.matmul_options import MatmulOptions
from kernel_dsl.library.products.problem import Problem
from kernel_dsl.stages import target_named
from tests.hopper.helpers import random, relative

from .test_waves import problem

Spec = kd.ShapeDtypeStruct
bf16, f16, f32, s8, e4m3 = kd.bfloat16, kd.float16, kd.float32, kd.int8, kd.float8_e4m3fn
BOUNDS = {f16: 1e-3, bf16: 4e-3, e4m3: 5e-2}
# dtype, dtype of the result, elements that all rows begin at a multiple of: words of 1, 2, 4 and 8 bytes
WORDS = [
    (bf16, bf16, 1),
    (bf16, bf16, 2),
    (bf16, f16, 4),
    (s8, kd.int32, 1),
    (bf16, f32, 2),
    (bf16, e4m3, 1),
    (bf16, e4m3, 4),
]


def odd(M: int, N: int, K: int, dtype: Any, out_dtype: Any, lanes: int) -> Any:
    return replace(problem(M, N, K, dtype), out_dtype=out_dtype, lanes=lanes)


def checked(kernel: Any, p: Any, interpret: Any, rng: Any, count: int = 1) -> None:
    """Compare a product of `count` pairs of matrices with float64."""
    batch = (count,) if count > 1 else ()
    a, b = random(rng, (*batch, p.M, p.K), p.dtype), random(rng, (*batch, p.N, p.K), p.b_dtype)
    got = kernel(a, b, interpret=interpret).astype(np.float64)
    got = got.sum(axis=0) if p.parts > 1 else got
    expected = a.astype(np.float64) @ np.swapaxes(b.astype(np.float64), -1, -2)
    assert relative(got, expected) < BOUNDS.get(p.out_dtype, 1e-6)


@pytest.mark.parametrize("tile", [(64, 256, 1), (128, 256, 2), (128, 144, 2), (192, 128, 3)], ids=str)
@pytest.mark.parametrize("word", WORDS, ids=str)
@pytest.mark.sampled(14)
def test_fast_products(word: Any, tile: Any, interpret: Any, rng: Any) -> None:
    dtype, out_dtype, lanes = word
    columns = {1: 253, 2: 131, 4: 67}[lanes]  # words in a row: one tile, or a bit of a second one
    for M, N, K in ((70, columns * lanes, 48), (195, 16 * 3 + lanes, 272)):
        p = odd(M, N, K, dtype, out_dtype, lanes)
        t = configure(p, *tile)
        assert t is not None
        checked(matmul_kernel(p, t, 2), p, interpret, rng)


@pytest.mark.parametrize("tile", [(64, 128), (32, 256), (64, 64)], ids=str)
@pytest.mark.parametrize("word", WORDS, ids=str)
@pytest.mark.sampled(14)
def test_products_by_mma(word: Any, tile: Any, interpret: Any, rng: Any) -> None:
    dtype, out_dtype, lanes = word
    p = odd(70, 131 * lanes, 48, dtype, out_dtype, lanes)
    checked(tile_kernel(p, TileConfig(*tile, 64 // dtype.itemsize, 2)), p, interpret, rng)


@pytest.mark.parametrize("out_dtype", [bf16, f32], ids=str)
def test_batches_and_parts(out_dtype: Any, interpret: Any, rng: Any) -> None:
    """Where a row begins depends on the matrices before it."""
    p = replace(odd(65, 259, 64, bf16, out_dtype, 1), batch=(3,), a_batch=(3,), b_batch=(3,))
    t = configure(p, 64, 256, 1)
    assert t is not None and whole_lines.stores_lines(p, t)
    checked(matmul_kernel(p, t, 2), p, interpret, rng, 3)
    p = replace(odd(65, 259, 256, bf16, f32, 1), parts=2)
    t = configure(p, 128, 128, 2)
    assert t is not None and whole_lines.stores_lines(p, t)
    checked(matmul_kernel(p, t, 2), p, interpret, rng)


@pytest.mark.parametrize("lanes", [1, 2])
def test_lanes_store_whole_lines(lanes: int, interpret: Any, monkeypatch: Any) -> None:
    """Lane i of a warp stores the words whose number in the array is i, modulo 32."""
    M, N = 70, 253 * lanes
    p = odd(M, N, 40, bf16, f32, lanes)
    t = configure(p, 128, 256, 2)
    assert t is not None

    def number(target: Any, place: Any, x: Any, **more: Any) -> None:
        kd.store(target, place, kd.broadcasted_iota(kd.int32, x.shape, 2).astype(target.dtype), **more)

    class Numbered:
        store = staticmethod(number)

        def __getattr__(self, name: str) -> Any:
            return getattr(kd, name)

    monkeypatch.setattr(whole_lines, "kd", Numbered())
    made: Any = matmul_kernel.__wrapped__(p, t, 2)
    got = made(np.zeros((M, 40), bf16.numpy), np.zeros((N, 40), bf16.numpy), interpret=interpret)
    words = (got if lanes == 1 else got.view(np.uint64)).reshape(-1)
    assert np.array_equal(words, np.arange(words.size) % 32)


def test_dropout_of_low_tiles(interpret: Any, rng: Any) -> None:
    """A lane of a tile of 16 rows has bits of all columns, so the tile is finished at once."""
    a, b = random(rng, (16, 8), f16), random(rng, (8, 131), f16)
    got = kd.library.matmul(a, b, dropout=(0.25, 3), out_dtype=f32, interpret=interpret)
    kept = got != 0
    expected = a.astype(np.float64) @ b.astype(np.float64) / 0.75
    assert 0.6 < kept.mean() < 0.9 and relative(got[kept], expected[kept]) < 1e-5


def test_rows_that_cut_sectors(interpret: Any, rng: Any) -> None:
    """Lanes store what TMA stores slowly, if that is most of the work; also to an array with gaps."""
    for K, lanes in ((64, 8), (1024, 0)):
        made = request(*(kd.ShapeDtypeStruct(s, bf16) for s in ((9000, K), (K, 9000))), MatmulOptions(), None)
        assert (
            route(made.problem, made.left, made.right, made.family, None, target_named("sm_90a")).problem.lanes == lanes
        )
    a, b = random(rng, (70, 64), bf16), random(rng, (64, 264), bf16)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    p = odd(70, 264, 64, bf16, bf16, 8)
    t = configure(p, 128, 256, 2)
    assert t is not None and whole_lines.stores_lines(p, t)
    for width in (264, 280):
        held = np.zeros((70, width), bf16.numpy)
        matmul_kernel(p, t, 2)(a, np.ascontiguousarray(b.T), out=held[:, :264], interpret=interpret)
        assert relative(held[:, :264].astype(np.float64), expected) < BOUNDS[bf16] and not held[:, 264:].any()


@pytest.mark.parametrize("out_dtype", [bf16, f32, e4m3], ids=str)
@pytest.mark.parametrize("tile", [(64, 256, 1), (128, 256, 2), (256, 128, 2), (192, 128, 3)], ids=str)
@pytest.mark.sampled(60, "machine code")
def test_no_spills(out_dtype: Any, tile: Any) -> None:
    for lanes, K in ((1, 64), (2, 1024)):
        p = odd(1000, 1001 * lanes, K, bf16, out_dtype, lanes)
        t = configure(p, *tile)
        assert t is not None
        a, b = (kd.ShapeDtypeStruct((n, K), bf16) for n in (p.M, p.N))
        assert matmul_kernel(p, t, 132).lower(a, b, target="sm_90a").compile().resources.spills == 0
        if K == 64:
            made = tile_kernel(p, TileConfig(64, 128, 32, 2)).lower(a, b, target="sm_90a")
            assert made.compile().resources.spills == 0


BETWEEN = pytest.mark.parametrize("dtypes", [(f32, f32), (bf16, bf16), (s8, kd.int32), (e4m3, bf16)], ids=str)


def between(dtypes: Any) -> tuple[Problem, list[Any]]:
    """A problem with odd rows, and its tiles of the widths between powers of two."""
    dtype, out = dtypes
    p = Problem(150, 133, 128, dtype, dtype, out, b_transposed=True, lanes=1)
    return p, tiles_between(p)


@BETWEEN
def test_parts_of_every_width(dtypes: Any) -> None:
    """Tiles of these widths, transposed and not: each has parts that SMEM can hold."""
    p, tiles = between(dtypes)
    assert {t.swapped for t in tiles} == {False, True}
    for t in tiles:
        lowered = matmul_kernel(p, t, 3).lower(Spec((p.M, p.K), p.dtype), Spec((p.N, p.K), p.dtype), target="sm_90a")
        assert "wgmma" in lowered.llvm


@BETWEEN
@pytest.mark.sampled(2)
def test_a_transposed_tile_between_powers_of_two(dtypes: Any, interpret: Any, rng: Any) -> None:
    p, tiles = between(dtypes)
    t = next(t for t in tiles if t.swapped and t.tile_n == 144)
    a, b = random(rng, (p.M, p.K), p.dtype), random(rng, (p.N, p.K), p.dtype)
    got = np.asarray(matmul_kernel(p, t, 3)(a, b, interpret=interpret))
    # float32 takes part as TF32
    assert relative(got, a.astype(np.float64) @ b.astype(np.float64).T) <= (0 if p.out_dtype == kd.int32 else 8e-3)
