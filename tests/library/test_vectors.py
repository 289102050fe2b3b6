"""Products of a matrix and a few vectors that lanes compute where the operands lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.product_kernels.vector_product import LANES
from kernel_dsl.library.product_routes.routes import Route, route, routes
from kernel_dsl.library.products.arguments import request
from kernel_dsl.library.products.matmul_options import MatmulOptions
from kernel_dsl.library.products.plan import plan_by
from kernel_dsl.stages import target_named
from tests.hopper.helpers import random, relative

from .products import PLACES, place
from .routed import Lying

pytestmark = pytest.mark.wgmma  # ways are asked for as on Hopper

Spec = kd.ShapeDtypeStruct
f16, bf16, f32, s8, e4m3 = kd.float16, kd.bfloat16, kd.float32, kd.int8, kd.float8_e4m3fn
PAIRS = ((f16, f16), (bf16, bf16), (f32, f32), (s8, s8), (e4m3, e4m3), (bf16, s8), (kd.float64, kd.float64))


def ways(r: Any, target: str) -> list[Route]:
    """The routes by this kernel."""
    found = routes(r.problem, r.left, r.right, r.family, target_named(target))
    return [made for _, made in sorted(found, key=lambda x: x[0]) if made.kernel == "vector"]


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.sampled(24)
def test_random_vectors(seed: int, interpret: Any) -> None:
    """All dtypes, places in memory, batches and parts of K; several steps follow."""
    rng = np.random.default_rng(seed)
    extent, K = int(rng.choice((1, 2, 7, 130, 300))), int(rng.choice((1, 31, 204, 513, 3000)))
    count = int(rng.choice((1, 2, 3, 5, 8)))
    M, N = (extent, count) if rng.random() < 0.5 else (count, extent)
    pair = PAIRS[rng.integers(len(PAIRS))]
    batch = (2,) if rng.random() < 0.3 else ()
    a = place(random(rng, (*batch, M, K), pair[0]), str(rng.choice(PLACES)))
    b = place(random(rng, (*(batch if rng.random() < 0.5 else ()), K, N), pair[1]), str(rng.choice(PLACES)))
    if rng.random() < 0.5:
        pair, a, b, M, N = pair[::-1], b.swapaxes(-1, -2), a.swapaxes(-1, -2), N, M
    bias, factor = random(rng, (N,), f32), (rng.random((M, 1)) + 0.5).astype(np.float32)
    precision = "tf32" if pair[0] == f32 else None
    r = request(a, b, MatmulOptions(precision=precision, out_dtype=f32, a_scale=factor, bias=bias), None)
    expected = a.astype(np.float64) @ b.astype(np.float64) * factor + bias
    found = ways(r, "sm_90a")
    for made in {id(x): x for x in (found[0], found[rng.integers(len(found))])}.values():
        got = plan_by(r, made, 132).run(a, [b], [factor, bias], None, None, interpret)
        assert relative(got.astype(np.float64).reshape(expected.shape), expected) < 3e-6, (made.config, made.problem)


@pytest.mark.parametrize("dtype", [f16, f32, s8, e4m3, kd.float64], ids=str)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.sampled(15)
def test_odd_matrices_take_one_launch(dtype: Any, turned: bool, count: int) -> None:
    """If TMA can't read a matrix, the tiles' kernels would first copy it. Nothing is spilled, on any target."""
    shape = (1191, 4097)
    a = np.zeros(shape[::-1], dtype.numpy).T if turned else np.zeros(shape, dtype.numpy)
    b = np.zeros((shape[1], count), dtype.numpy)
    r = request(a, b, MatmulOptions(precision="tf32" if dtype == f32 else None), None)
    for target in ("sm_90a", "sm_80", "sm_100a", "sm_120a"):
        found = route(r.problem, r.left, r.right, r.family, None, target_named(target))
        assert target != "sm_90a" or count > 1 or found.kernel == "vector"
        stages = (
            ways(r, target)[0]
            .multiply(132)
            .lower(*(x.T if turn else x for x, turn in zip((a, b), r.turns, strict=True)), target=target)
        )
        assert stages.compile().resources.spills == 0


def laid(rows: int, columns: int, dtype: Any, turned: bool, shift: int) -> Any:
    """A matrix by rows or by columns, `shift` numbers off an aligned address, with as many between its rows."""
    if turned:
        return laid(columns, rows, dtype, False, shift).T
    item = dtype.itemsize
    memory = np.empty(rows * (columns + shift) * item + 16, np.uint8)
    first = -memory.ctypes.data % 16
    whole = memory[first : first + rows * (columns + shift) * item].view(dtype.numpy)
    return whole.reshape(rows, columns + shift)[:, shift:]


# microseconds on one NVIDIA H200: of this kernel, of another way, of torch; those of which no kernel is a vector's are of the
# choice, of another way, of torch
MEASURED = (
    ((32285, 1, 1222), f32, "NN", (0, 0), "vector"),  # 46.9, 85.8, 57.6
    ((1, 4272, 28768), f32, "NT", (0, 1), "vector"),  # 137, 201, 150
    ((413, 3, 12725), f16, "NN", (0, 1), "vector"),  # 11.9, 18.9, 16.9
    ((656, 4, 1376), f16, "NN", (1, 0), "vector"),  # 5.0, 9.6, 9.8
    ((27781, 3, 6), e4m3, "NN", (0, 0), "fast"),  # 17.0, 8.0, 17.7: blocks of four rows have little to do
    ((4, 13785, 111), e4m3, "NT", (0, 1), "fast"),  # 13.0, 7.9, 21.7
    ((19616, 5, 4512), s8, "NN", (0, 0), "fast"),  # 75.1, 33.8, 50.5: TMA reads its rows
    ((1, 18951, 217), f16, "NT", (0, 1), "vector"),  # 9.1, 12.8, 10.1: a step has 256 of K
    ((6, 1, 548), f32, "TN", (0, 1), "vector"),  # 4.5, 7.0, 5.4: lanes share a row
    ((14896, 18656, 16), s8, "TN", (0, 0), "fast"),  # 325, 405 by tiles, 298
    ((1444, 29772, 52), f32, "NN", (1, 0), "fast"),  # 69.9, 113 by tiles, 117
    ((2656, 528, 16), s8, "NT", (0, 0), "tile"),  # 6.5, 8.0 by the fast kernel, 7.8: rows of the result cut lines
)


@pytest.mark.parametrize(("shape", "dtype", "layout", "shifts", "kernel"), MEASURED, ids=str)
@pytest.mark.sampled(12)
def test_choices(shape: Any, dtype: Any, layout: str, shifts: Any, kernel: str) -> None:
    M, N, K = shape
    a, b = laid(M, K, dtype, layout[0] == "T", shifts[0]), laid(K, N, dtype, layout[1] == "T", shifts[1])
    r = request(a, b, MatmulOptions(precision="tf32" if dtype == f32 else None), None)
    assert route(r.problem, r.left, r.right, r.family, None, target_named("sm_90a")).kernel == kernel


@pytest.mark.parametrize(
    ("shape", "layout", "shifts"),
    [((1, 37, 217), "NT", (0, 1)), ((29, 3, 77), "NT", (1, 0)), ((1, 18, 3), "TT", (0, 0)), ((6, 1, 548), "TN", (0, 1)),
     ((2, 20, 60), "NN", (0, 0))],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [f16, f32, s8], ids=str)
@pytest.mark.sampled(15)
def test_short_sides(shape: Any, layout: str, shifts: Any, dtype: Any, interpret: Any, rng: Any) -> None:
    """Where K is short a step is no deeper than K needs, and lanes share a row that is one of few. Each way is right."""
    M, N, K = shape
    a, b = laid(M, K, dtype, layout[0] == "T", shifts[0]), laid(K, N, dtype, layout[1] == "T", shifts[1])
    for x in (a, b):
        x[...] = random(rng, x.shape, dtype)
    r = request(a, b, MatmulOptions(precision="tf32" if dtype == f32 else None), None)
    found = ways(r, "sm_90a")
    assert all(x.config.tile_k < 2 * max(K, LANES * x.config.vector) or not x.config.along_k for x in found)
    assert any(x.config.share > 1 for x in found) or found[0].config.along_k or max(M, N) < 4
    for made in {x.config: x for x in found}.values():
        got = plan_by(r, made, 132).run(a, [b], [], None, None, interpret)
        assert relative(got.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64)) < 1e-3, made.config


def test_later_sizes_compile_nothing() -> None:
    rng, later, own = np.random.default_rng(0), list[int](), type(kd.library.matmul)()
    for rows in (33, 57, 41, 90):
        a, b = random(rng, (rows, 205), f16), random(rng, (205, 1), f16)
        got = own(a, b, out_dtype=f32, interpret=True)
        later.append(len(own.specialisations()))
        assert relative(got.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64)) < 1e-6
    assert later[0] < later[1] == later[3], later


@pytest.mark.parametrize("dtype", [f16, s8, f32], ids=str)
@pytest.mark.parametrize("shape", [(1, 99, 551), (2, 37, 150), (43, 1, 1300), (1, 401, 151)], ids=str)
@pytest.mark.sampled(6)
def test_lanes_that_share_rows(shape: Any, dtype: Any, interpret: Any, rng: Any) -> None:
    """Of odd rows with neighbours along them: a step with all of K, or several; right, chosen, and without spills."""
    M, N, K = shape
    a, b = random(rng, (M, K), dtype), random(rng, (K, N), dtype)
    a = np.asfortranarray(a) if N == 1 else a
    r = request(a, b, MatmulOptions(precision="tf32" if dtype == f32 else None, out_dtype=None), None)
    found = [x for x in ways(r, "sm_90a") if x.config.share > 1 and x.problem.parts == 1]
    assert {x.config.share for x in found} == {4, 8}
    assert route(r.problem, r.left, r.right, r.family, None, target_named("sm_90a")).config.share > 1
    expected = a.astype(np.float64) @ b.astype(np.float64)
    for made in found:
        t = made.config
        assert -(-K // t.tile_k) == 1 or t.tile_k // t.shares > 18
        got = plan_by(r, made, 132).run(a, [b], [], None, None, interpret)
        assert relative(np.asarray(got).astype(np.float64), expected) < (2e-3 if dtype == f16 else 1e-6), t
        specs = [kd.ShapeDtypeStruct(x.shape, dtype) for x in (a.T if N == 1 else a, b)]
        for target in ("sm_80", "sm_90a"):
            assert made.multiply(132).lower(*specs, target=target).compile().resources.spills == 0


@pytest.mark.parametrize("dtype", [f16, e4m3, s8, f32], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_loads_of_a_step_do_not_wait_for_each_other(dtype: Any, turned: bool) -> None:
    """There are registers for all numbers of a step that are loaded one by one, and for the sums; none are spilled."""
    a = Spec((1, 10749), dtype)
    b = Lying((10749, 1095), dtype, (1, 10749) if turned else None, dtype.itemsize)
    r = request(a, b, MatmulOptions(precision="tf32" if dtype == f32 else None), None)
    for made in {(x.config.rows, x.config.tile_k): x for x in ways(r, "sm_90a")}.values():
        t, matrix = made.config, Spec((1095, 10749) if turned else (10749, 1095), dtype)
        resources = made.multiply(132).lower(a, matrix, target="sm_90a").compile().resources
        loads = t.rows * t.tile_k // LANES + t.count * t.deep
        assert t.vector == 1 and resources.spills == 0
        assert resources.registers > loads + t.count * t.rows // (1 if t.along_k else t.beside), t


@pytest.mark.parametrize("dtype", [f16, e4m3, s8, f32], ids=str)
@pytest.mark.parametrize("shape", [(225, 3, 156), (3, 301, 44), (1, 77, 16), (130, 4, 40), (7, 50, 24)], ids=str)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.sampled(8)
def test_lanes_with_short_rows_of_their_own(shape: Any, dtype: Any, turned: bool, interpret: Any, rng: Any) -> None:
    """Along K a few lanes have all of a short row, for vectors along K and across; right, and without spills."""
    M, N, K = shape
    a, b = random(rng, (M, K), dtype), random(rng, (N, K), dtype).T
    a, b = (a, np.ascontiguousarray(b)) if turned and N <= M else (np.asfortranarray(a) if turned else a, b)
    r = request(a, b, MatmulOptions(precision="tf32" if dtype == f32 else None, out_dtype=None), None)
    found = [x for x in ways(r, "sm_90a") if x.config.apart and x.problem.parts == 1]
    assert found or K * dtype.itemsize % 4 or K * min(M, N) > 8 * 64
    expected = a.astype(np.float64) @ b.astype(np.float64)
    for made in found:
        t = made.config
        assert t.tile_k >= K and t.rows * t.apart == LANES
        got = plan_by(r, made, 132).run(a, [b], [], None, None, interpret)
        assert relative(np.asarray(got).astype(np.float64), expected) <= {f32: 1e-6, s8: 0.0}.get(dtype, 4e-2), t
        specs = [Spec(x.shape, dtype) for x in (a.T if turned and N > M else a, b if turned and N <= M else b.T)]
        for target in ("sm_80", "sm_90a"):
            assert made.multiply(132).lower(*specs, target=target).compile().resources.spills == 0
