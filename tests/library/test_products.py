"""kd.library.matmul beside its fast path: layouts, alignments, dtypes, precision, parts of K, batches, other targets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from benchmarks.bounds import fp8_error
from kernel_dsl.library.product_kernels.combine import combine_kernel, height_of, in_flight
from kernel_dsl.library.product_kernels.lane_product import TILES, LaneConfig, lane_kernel
from kernel_dsl.library.product_kernels.pack import Packing, pack_kernel
from kernel_dsl.library.product_kernels.persistent_matmul import matmul_kernel
from kernel_dsl.library.product_kernels.promoted_product import RUN
from kernel_dsl.library.product_kernels.tile_product import TileConfig, tile_kernel
from kernel_dsl.library.product_routes.routes import route, routes
from kernel_dsl.library.products.arguments import request
from kernel_dsl.library.products.matmul_config import MatmulConfig
from kernel_dsl.library.products.matmul_options import MatmulOptions
from kernel_dsl.library.products.operands import why_not_tma
from kernel_dsl.library.products.plan import plan_by
from kernel_dsl.library.products.problem import Problem
from kernel_dsl.refs import strides_of
from kernel_dsl.stages import target_named
from tests.hopper.helpers import random, relative

from .products import PAIRS, PLACES, Call, any_call, place
from .routed import Lying, routed

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

f16, bf16, f32, f64, s8 = kd.float16, kd.bfloat16, kd.float32, kd.float64, kd.int8
e4m3 = kd.float8_e4m3fn
LAYOUTS = [(False, False), (False, True), (True, False), (True, True)]
Spec = kd.ShapeDtypeStruct


@pytest.mark.parametrize(
    ("shape", "dtype"), [((512, 512, 8192), bf16), ((1001, 1003, 1005), bf16), ((512, 512, 8192), s8)], ids=str
)
@pytest.mark.sampled(3)
def test_a_kernel_that_starts_early_waits_first(shape: Any, dtype: Any) -> None:
    """Kernels that read what the one before wrote start while it ends: they touch no memory before they have waited."""
    M, N, K = shape
    found = routed(M, N, K, dtype, False, False)
    assert found.kernel == "fast" and (found.whole is not None or any(found.packings))
    p, pack = found.problem, found.pack()
    lying = [Spec((M, K), dtype), Spec((K, N), dtype)]
    sides = [x if packing is None else packing.out for x, packing in zip(lying, found.packings, strict=True)]
    kernels: list[tuple[Any, Any, bool]] = [(found.multiply(132), sides, pack is not None)]
    if pack is not None:
        kernels.append((pack, [x for x, packing in zip(lying, found.packings, strict=True) if packing], False))
    if found.whole is not None:
        kernels.append((found.combine(), [Spec((p.parts, M, N), p.out_dtype)], True))
    triggers = 0
    for kernel, args, early in kernels:
        stages = kernel.lower(*args)
        assert stages.kernel.launch.programmatic_dependent_launch == early
        words = stages.ptx.split()
        touching = [i for i, word in enumerate(words) if word.startswith(("ld.global", "st.global", "cp.async.bulk"))]
        assert not early or words.index("griddepcontrol.wait;") < min(touching)
        triggers += "griddepcontrol.launch_dependents;" in words
    assert triggers == (pack is not None)


@pytest.mark.parametrize("count", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_random_calls(count: int) -> None:
    rng = np.random.default_rng(11)
    for number in range(count):
        any_call(rng).run(number, interpret=kd.InterpretParams(seed=number))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_random_calls(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number in range(100):
        any_call(rng).run(number, interpret=kd.InterpretParams(seed=number))


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(4))
def test_random_calls_on_a_gpu(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    for number in range(40):
        any_call(rng).run(number, interpret=False)


@pytest.mark.parametrize(("ta", "tb"), LAYOUTS)
@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
@pytest.mark.sampled(33)
def test_float32_on_tensor_cores(ta: bool, tb: bool, precision: str, interpret: Any) -> None:
    """All layouts; one operand that does not lie along K goes through registers, and nothing is laid out anew for it."""
    Call(f32, f32, (72, 136, 100), ("turned" if ta else "plain", "turned" if tb else "plain"), precision=precision).run(
        3, interpret=interpret
    )
    found = routed(4096, 4096, 4096, f32, ta, tb, precision=precision)
    packed = sum(p is not None for p in found.packings)
    assert found.kernel == "fast" and packed == (2 if precision == "tf32x3" else int(ta and not tb))
    assert found.config.swapped == (precision == "tf32" and not tb)


def test_three_products_are_as_good_as_float32(rng: Any) -> None:
    a, b = random(rng, (16, 1000), f32), random(rng, (1000, 24), f32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    errors = {
        p: relative(kd.library.matmul(a, b, precision=p, interpret=True), exact) for p in (None, "tf32x3", "tf32")
    }
    assert errors["tf32x3"] < 1e-6 and errors[None] < 1e-6 and errors["tf32"] > 1e-5


@pytest.mark.parametrize("K", [256, 272, 608, 1024])
@pytest.mark.parametrize("tile", [(128, 64, 2), (64, 32, 1), (128, 192, 2)], ids=str)
@pytest.mark.sampled(60)
def test_promoted_sums(tile: Any, K: int, interpret: Any, rng: Any) -> None:
    """Runs of 256 of K, the last of which may be shorter; on tiles and in stages of any number, and in turns."""
    a, b = random(rng, (150, K), e4m3), random(rng, (40, K), e4m3)
    p = Problem(150, 40, K, e4m3, e4m3, f32, b_transposed=True, promoted=True)
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    for stages, ping_pong in ((2, False), (3, tile[2] == 2)):
        t = MatmulConfig(tile[0], tile[1], 128, stages, tile[2], epilogue_n=32, ping_pong=ping_pong)
        got = matmul_kernel(p, t, 2)(a, b, interpret=interpret)
        assert relative(got, exact) < 1e-6 + (fp8_error(K, RUN) if interpret is False else 0.0)


def test_the_highest_precision_of_fp8(rng: Any) -> None:
    """Sums leave the tensor cores: another kernel, and on targets without wgmma products of float16, which holds fp8."""
    found = routed(4096, 4096, 4096, e4m3, False, True, precision="highest")
    assert found.kernel == "fast" and found.problem.promoted
    assert routed(4096, 4096, 4096, e4m3, False, True, "sm_89", precision="highest").problem.dtype == f16
    assert not routed(4096, 4096, 4096, e4m3, False, True).problem.promoted
    Call(e4m3, e4m3, (40, 24, 700), ("plain", "turned"), precision="highest", steps=("bias", "gated")).run(
        3, interpret=True
    )
    Call(e4m3, e4m3, (8, 8, 4000), ("turned", "plain"), ((2,), (2,)), precision="highest").run(3, interpret=True)


def test_parts_beyond_tf32(interpret: Any) -> None:
    """High and low parts of what is large, tiny, infinite and no number."""
    row = np.float32([1e38, 3.4028235e38, 1e-30, np.inf, -np.inf, np.nan, 1 + 2**-13, -0.0, 1 / 3, 2**24 + 1])
    packed = pack_kernel((Packing(1, 10, f32, f32, split=True),))(row[None], interpret=interpret)
    high, low = packed[0, :10], packed[0, 32:42]
    finite = np.isfinite(row) & (np.abs(row) < 3.4e38)
    assert np.abs(high[finite] + low[finite] - row[finite]).max() <= 2.0**-23 * np.abs(row[finite]).max()
    assert not (high.view(np.uint32) & 0x1FFF)[finite].any() and not (low.view(np.uint32) & 0x1FFF)[finite].any()
    assert np.isinf(high[3:5]).all() and np.isnan(high[5]) and (low[3:6] == 0).all() and not packed[0, 10:32].any()


@pytest.mark.parametrize(("a", "b"), [(bf16, bf16), (f16, f16), (f64, f64), (s8, s8), (f64, f32)], ids=str)
@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_precision_is_never_ignored(a: Any, b: Any, precision: str) -> None:
    with pytest.raises(ValueError, match="precision='tf32"):
        kd.library.matmul.lower(Spec((16, 16), a), Spec((16, 16), b), precision=precision)


def _refused(call: Any) -> bool:
    """Whether a call refuses its precision."""
    try:
        call()
    except ValueError as error:
        assert "precision=" in str(error)
        return True
    return False


@pytest.mark.parametrize("precision", [None, "highest", "tf32", "tf32x3"])
@pytest.mark.sampled(2)
def test_dot_and_matmul_refuse_the_same_precisions(precision: str | None) -> None:
    """Of each pair of dtypes, also without elements and with scales; others than None and "highest" are for float32."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((16, 16), f32))
    def plain(a: Any, b: Any, out: Any) -> None:
        out[...] = kd.dot(a, b, precision=precision).astype(f32)

    @kd.kernel(out_type=kd.ShapeDtypeStruct((16, 16), f32))
    def scaled(a: Any, b: Any, scale: Any, out: Any) -> None:
        out[...] = kd.dot(a, b, a_scale=scale, precision=precision)

    refused = {}
    for pair in PAIRS:
        for K in (0, 16):
            a, b = Spec((16, K), pair[0]), Spec((K, 16), pair[1])
            scale = Spec((16, 1), f32)
            calls = (lambda: plain.lower(a, b), lambda: scaled.lower(a, b, scale))  # noqa: B023
            expected = _refused(lambda: kd.library.matmul.lower(a, b, precision=precision))  # noqa: B023
            assert all(_refused(call) == expected for call in calls), (pair, K)
            refused[pair] = expected
    assert any(refused.values()) == (precision in ("tf32", "tf32x3")) and not all(refused.values())


def test_the_highest_precision_of_dot(interpret: Any, rng: Any) -> None:
    """Tensor cores add float8 in too few bits; they add float16, which holds it, in float32."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((64, 16), f32))
    def kernel(a: Any, b: Any, out: Any) -> None:
        out[...] = kd.dot(a, b, precision="highest")

    a, b = random(rng, (64, 96), e4m3), random(rng, (96, 16), kd.float8_e5m2)
    ptx = kernel.lower(a, b, target="sm_90a").ptx
    assert "f32.f16.f16.f32" in ptx and "e4m3.e5m2" not in ptx
    assert relative(kernel(a, b, interpret=interpret), a.astype(np.float64) @ b.astype(np.float64)) < 1e-6


@pytest.mark.parametrize("how", PLACES)
@pytest.mark.parametrize("dtype", [bf16, s8, f32, f64], ids=str)
@pytest.mark.sampled(120)
def test_places(how: str, dtype: Any, interpret: Any) -> None:
    """Operands and results at odd strides and addresses."""
    Call(dtype, dtype, (67, 33, 45), (how, how), out=how).run(5, interpret=interpret)


@pytest.mark.parametrize(
    "shape", [(3, 4, 0), (0, 4, 3), (3, 0, 4), (0, 0, 0), (1, 1, 1), (1, 130, 1), (130, 1, 70)], ids=str
)
@pytest.mark.parametrize("dtype", [bf16, s8, f32, f64, kd.int32], ids=str)
@pytest.mark.sampled(24)
def test_the_smallest(shape: Any, dtype: Any) -> None:
    Call(dtype, dtype, shape, ("plain", "plain")).run(5, interpret=True)
    bias = np.ones(shape[1], dtype.numpy)
    a, b = np.ones((shape[0], shape[2]), dtype.numpy), np.ones((shape[2], shape[1]), dtype.numpy)
    assert (kd.library.matmul(a, b, bias=bias, interpret=True).astype(np.float64) == shape[2] + 1).all()


BATCHES = [
    ((3,), (3,)),
    ((3,), ()),
    ((), (3,)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((1,), (2, 2)),
    ((2, 1, 2), (2, 3, 1)),
    ((0,), (1,)),
]


@pytest.mark.parametrize("batches", BATCHES, ids=str)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.sampled(18)
def test_batches(batches: Any, dtype: Any) -> None:
    out = "plain" if all(0 not in batch for batch in batches) else None
    Call(dtype, dtype, (17, 40, 24), ("padded", "turned"), batches, out=out).run(5, interpret=True)


def test_more_axes_than_tma_copies() -> None:
    Call(bf16, bf16, (8, 16, 24), ("plain", "plain"), ((2, 1, 2, 1), (1, 2, 1, 2))).run(5, interpret=True)


def _lying(rng: np.random.Generator, batch: tuple[int, ...], rows: int, columns: int, dtype: Any) -> Lying:
    """A stack of matrices in any layout: turned, padded, at an odd address, batch axes exchanged."""
    shape = (*batch, rows, columns)
    order = list(range(len(batch)))
    rng.shuffle(order)
    order += [len(batch) + i for i in ((1, 0) if rng.random() < 0.5 else (0, 1))]
    strides, reach = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = reach
        reach *= shape[axis]
        if rng.random() < 0.3:
            reach += int(rng.choice([1, 16 - reach % 16]))
    return Lying(shape, dtype, tuple(strides), int(rng.choice([0, dtype.itemsize, 16])))


@pytest.mark.parametrize("seed", range(10))
def test_routes_give_tma_what_it_can_address(seed: int) -> None:
    """Operands as they lie or as they are laid out anew, and results, parts of K too, of any number of axes."""
    rng, fast = np.random.default_rng(seed), 0
    for _ in range(12):
        dtype = (bf16, f32, s8, kd.float8_e4m3fn)[rng.integers(4)]
        batch = tuple(int(n) for n in rng.integers(1, 4, rng.integers(0, 5)))
        M, N, K = (int(rng.choice(sizes)) for sizes in ((1, 16, 333, 1000), (1, 16, 333, 1000), (64, 1000, 32768)))
        a, b = _lying(rng, batch, M, K, dtype), _lying(rng, batch, K, N, dtype)
        out = _lying(rng, batch, M, N, f32) if rng.random() < 0.5 else None
        r = request(a, b, MatmulOptions(precision="tf32" if dtype == f32 else None, out_dtype=f32), out)
        found = route(r.problem, r.left, r.right, r.family, None, target_named(None))
        if found.kernel != "fast":
            continue
        fast += 1
        for operand, packing in zip((r.left, r.right), found.packings, strict=True):
            made = None if packing is None else packing.out
            words = "" if made is None else why_not_tma(made.shape, strides_of(made.shape), made.dtype.itemsize, 0)
            assert not words and (made is not None or operand.tma), (operand, packing, words)
        p = found.problem
        result = p.results(*((p.parts,) if p.parts > 1 else ()))
        if found.whole is not None:
            assert p.lanes or not why_not_tma(result.shape, strides_of(result.shape), result.dtype.itemsize, 0)
        elif out is not None and not p.lanes:
            strides = out.strides if not r.flipped else (*out.strides[:-2], out.strides[-1], out.strides[-2])
            own = [s // 4 for s in strides[len(strides) - len(result.shape) :]]
            assert not why_not_tma(result.shape, own, 4, out.__array_interface__["data"][0])
    assert fast


@pytest.mark.sampled(8)
def test_parts_of_many_batches(interpret: Any) -> None:
    """Three axes, rows, columns and parts are more than TMA stores."""
    Call(bf16, bf16, (8, 16, 8192), ("plain", "turned"), ((1, 2, 1), (1, 2, 1))).run(5, interpret=interpret)
    a = Lying((1, 2, 1, 8, 8192), bf16)
    r = request(a, Lying((1, 2, 1, 8192, 16), bf16), MatmulOptions(), None)
    found = route(r.problem, r.left, r.right, r.family, None, target_named(None))
    assert found.kernel == "fast" and found.problem.parts > 1 and found.problem.lanes


def test_a_batch_of_rows_is_one_matrix(rng: Any) -> None:
    """A stack of a times one b has rows alone, and so does what is added to it."""
    a, b, c = random(rng, (2, 5, 40), bf16), random(rng, (40, 24), bf16), random(rng, (2, 5, 24), f32)
    assert kd.library.matmul.lower(a, b).ir.params[0].type.shape == (10, 40)
    got = kd.library.matmul(a, b, c=c, bias=random(rng, (24,), f32) * 0, interpret=True)
    assert got.shape == (2, 5, 24) and relative(got, a.astype(np.float64) @ b.astype(np.float64) + c) < 4e-3
    wide = kd.library.matmul(a, b, c=c[:1], interpret=True)  # this one is not: its rows are shared
    assert relative(wide, a.astype(np.float64) @ b.astype(np.float64) + c[:1]) < 4e-3


@pytest.mark.parametrize("parts", [2, 3, 7])
@pytest.mark.parametrize("family", ["fast", "tile", "lane"])
@pytest.mark.sampled(36)
def test_parts_of_k(family: str, parts: int, interpret: Any, rng: Any) -> None:
    """Each part has its own sums, the last one what is left; together they are the product."""
    dtype = f32 if family == "lane" else bf16
    a, b = random(rng, (2, 40, 200), dtype), random(rng, (200, 24), dtype)
    p = Problem(40, 24, 200, dtype, dtype, f32, batch=(2,), a_batch=(2,), parts=parts)
    kernel = {
        "fast": lambda: matmul_kernel(p, MatmulConfig(128, 64, 64, 2, epilogue_n=32), 3),
        "tile": lambda: tile_kernel(p, TileConfig(64, 64, 32, 3)),
        "lane": lambda: lane_kernel(p, LaneConfig(32, 32)),
    }[family]()
    got = kernel(a, b, interpret=interpret)
    assert got.shape == (parts, 2, 40, 24)
    assert relative(got.astype(np.float64).sum(0), a.astype(np.float64) @ b.astype(np.float64)) < 1e-6


def test_what_is_cut_is_added_up_in_order(rng: Any) -> None:
    """A deep product of few rows: parts of K, added with the bias and the activation; twice the same, to the bit."""
    found = routed(16, 16, 8192, bf16, False, False)
    assert found.problem.parts > 8 and found.problem.out_dtype == f32
    a, b, bias = random(rng, (16, 2048), bf16), random(rng, (2048, 16), bf16), random(rng, (16,), f32)
    got = [
        kd.library.matmul(a, b, bias=bias, activation=relu, interpret=kd.InterpretParams(seed=seed))
        for seed in range(2)
    ]
    expected = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    assert relative(got[0], expected) < 4e-3 and np.array_equal(*got)


@pytest.mark.parametrize("parts", [2, 10, 16, 17, 20, 48, 64])
def test_parts_are_added_up_in_order(parts: int, interpret: Any, rng: Any) -> None:
    """The same bits as adding one after the other, however many are loaded at once; many, if the number allows it."""
    sums = random(rng, (parts, 9, 132), f32)
    expected = sums[0]
    for part in sums[1:]:
        expected = expected + part
    kernel = combine_kernel(Problem(9, 132, 8, f32, f32, f32, parts=parts))
    assert np.array_equal(kernel(sums, interpret=interpret), expected)
    assert in_flight(parts) == {2: 2, 10: 10, 16: 16, 17: 1, 20: 10, 48: 16, 64: 16}[parts]


@pytest.mark.parametrize(
    ("M", "N", "height", "together"), [(32, 112, 1, 64), (128, 512, 2, 64), (512, 512, 8, 16), (1, 40, 1, 64)]
)
def test_few_sums_have_low_tiles(M: int, N: int, height: int, together: int, rng: Any) -> None:
    """More multiprocessors add them up, each with more parts in flight; in the same order."""
    p = Problem(M, N, 8, f32, f32, f32, parts=64)
    assert (height_of(p), in_flight(64, height_of(p))) == (height, together)
    sums = rng.standard_normal((64, min(M, 40), 40)).astype(np.float32)
    expected = sums[0]
    for part in sums[1:]:
        expected = expected + part
    assert np.array_equal(combine_kernel(replace(p, M=min(M, 40), N=40))(sums, interpret=True), expected)


@pytest.mark.parametrize(
    ("shape", "dtype", "transposed", "precision", "wanted"),
    [
        ((22788, 12313, 27), kd.int8, (False, True), None, "tile 64x128"),
        ((6163, 32, 2826), f32, (False, False), "tf32", "tile 64x64"),
        ((16383, 8191, 32), e4m3, (False, True), None, "fast 128x256"),
    ],
    ids=str,
)
def test_routes_that_were_measured(shape: Any, dtype: Any, transposed: Any, precision: Any, wanted: str) -> None:
    found = routed(*shape, dtype, *transposed, precision=precision)
    assert f"{found.kernel} {found.config.tile_m}x{found.config.tile_n}" == wanted


def test_thin_broken_rows_are_copied() -> None:
    """8 rows of 16 bytes for each of K: TMA takes as long for them as for the other side."""
    found = routed(8, 6648, 5512, kd.float16, True, True)
    assert [pack is not None for pack in found.packings] == [True, False]


def test_odd_rows_of_tf32_are_laid_out_anew() -> None:
    """Copies of 4 bytes each are what a product of any size would wait for; thin ones have few of them."""
    found = routed(1001, 1003, 1005, f32, False, True, precision="tf32")
    assert found.kernel == "fast" and all(found.packings)
    assert routed(1000, 1000, 1000, f32, False, True, precision="tf32").packings == (None, None)


def relu(x: Any) -> Any:
    return kd.maximum(x, 0.0)


@pytest.mark.parametrize("name", ["c", "residual"])
@pytest.mark.parametrize("shape", [(40, 24), (16, 1), (1, 40), (2, 24, 16)], ids=str)
@pytest.mark.sampled(4)
def test_sums_grow_in_place_by_columns(name: str, shape: Any, rng: Any) -> None:
    """What is added may be `out`, however it is stored."""
    a, b = random(rng, (*shape[:-1], 8), f32), random(rng, (8, shape[-1]), f32)
    held = random(rng, (*shape[:-2], shape[-1], shape[-2]), f32).swapaxes(-1, -2)
    expected = held + a.astype(np.float64) @ b.astype(np.float64)
    assert kd.library.matmul(a, b, out=held, **{name: held}) is held
    assert relative(held, expected) < 1e-5


def test_results_by_columns(interpret: Any, rng: Any) -> None:
    """The transposed product is stored by TMA, with what is added to it turned too."""
    a, b = random(rng, (72, 40), bf16), random(rng, (40, 64), bf16)
    bias, c = random(rng, (64,), f32), random(rng, (72, 64), f32)
    out = place(np.full((72, 64), 7, bf16.numpy), "turned")
    assert kd.library.matmul(a, b, bias=bias, c=c, out=out, interpret=interpret) is out
    assert relative(out, a.astype(np.float64) @ b.astype(np.float64) + bias + c) < 4e-3


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("dtype", [bf16, s8, kd.float8_e4m3fn, f64, f32], ids=str)
@pytest.mark.sampled(24)
def test_other_targets(target: str, dtype: Any) -> None:
    """mma.sync from at least three stages that cp.async fills, no spills; exact float32 by multiply-adds."""
    for ta, tb in LAYOUTS if dtype == bf16 else LAYOUTS[:2]:
        precision = "tf32" if dtype == f32 else None
        found = routed(4096, 4096, 4096, dtype, ta, tb, target, precision=precision)
        assert found.kernel == "tile" and found.config.stages >= 3
        p, shapes = found.problem, [(4096, 4096)] * 2
        stages = found.multiply(100).lower(
            *[Spec(s, d) for s, d in zip(shapes, (p.dtype, p.b_dtype), strict=True)], target=target
        )
        for word in ("cp.async", "mma.sync", *(("ldmatrix.sync",) if p.dtype.itemsize < 8 and (tb or not ta) else ())):
            assert word in stages.ptx, word
        assert stages.compile().resources.spills == 0


@pytest.mark.parametrize(
    "pair", [(bf16, bf16), (f16, s8), (s8, s8), (f32, f32), (kd.float8_e5m2, kd.float8_e4m3fn)], ids=str
)
@pytest.mark.sampled(4)
def test_products_of_other_targets(pair: Any, rng: Any) -> None:
    """Their kernels, run: the interpreter's device takes what older ones have."""
    a, b = random(rng, (40, 70), pair[0]), random(rng, (70, 33), pair[1])
    r = request(a, b, MatmulOptions(precision="tf32" if pair[0] == f32 else None), None)
    found = route(r.problem, r.left, r.right, r.family, None, target_named("sm_80"))
    sides: list[Any] = []
    for x, turn, packing in zip((a, b), r.turns, found.packings, strict=True):
        lying = x.T if turn else x
        sides.append(lying if packing is None else pack_kernel((packing,))(lying, interpret=True))
    got = found.multiply(100)(*sides, interpret=True)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert relative(got, exact) <= (0 if got.dtype == np.int32 else 4e-3)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("dtype", [f32, kd.int32], ids=str)
@pytest.mark.sampled(16)
def test_products_by_lanes_are_multiply_adds(tile: Any, dtype: Any) -> None:
    """No layout changes, 16-byte loads from SMEM, two large blocks a multiprocessor."""
    for n in (4096, 4095):
        _check_multiply_adds(n, dtype, LaneConfig(*tile))


def test_sums_of_64_bits_are_multiply_adds() -> None:
    _check_multiply_adds(4095, kd.int64, LaneConfig(64, 64))


@pytest.mark.parametrize("wide", [f32, kd.int32], ids=str)
@pytest.mark.parametrize(("rows", "before"), [(36, True), (37, False)])
@pytest.mark.sampled(4)
def test_operands_that_lanes_turn_before(wide: Any, rows: int, before: bool, rng: Any) -> None:
    """Where a and b lie along K, they are turned by the copies to SMEM, or once before; the result is the same.

    Before only if the rows of a are whole vectors: so kernels for any M see how many there are.
    """
    a, b = random(rng, (rows, 70), wide), random(rng, (45, 70), wide).T
    r = request(a, b, MatmulOptions(), None)
    found = {
        tuple(pack is not None for pack in x.packings): x
        for _, x in routes(r.problem, r.left, r.right, r.family, target_named(None))
        if x.problem.parts == 1
    }
    assert set(found) == {(False, False), *([(True, True)] if before else [])}
    expected = a.astype(np.float64) @ b.astype(np.float64)
    for way in found.values():
        got = plan_by(r, way, 132).run(a, [b], [], None, None, True)
        assert relative(got, expected) < 1e-6


def _check_multiply_adds(n: int, dtype: Any, config: LaneConfig) -> None:
    stages = lane_kernel(Problem(n, n, n, dtype, dtype, dtype), config).lower(
        Spec((n, n), dtype), Spec((n, n), dtype), target="sm_90a"
    )
    word, wanted = "fma.rn.f32" if dtype == f32 else "mad.lo.s", config.layout.registers * config.tile_k
    # before each row of sums the next row's loads, which the assembler may not put behind it
    assert stages.ptx.count("bar.warp.sync") == config.tile_k
    assert not stages.notes and wanted <= stages.ptx.count(word) <= wanted + (0 if dtype == f32 else 16)
    resources = stages.compile().resources
    assert resources.spills == 0 and resources.blocks_per_multiprocessor >= 2


@pytest.mark.parametrize("dtype", [bf16, f32, f64, s8], ids=str)
@pytest.mark.sampled(8)
def test_few_and_many_stages_by_mma_sync(dtype: Any, rng: Any) -> None:
    """Each K that ends in, at and after a stage, with and without a loop; results of rows that vectors can't store, and can."""
    t = TileConfig(64, 64, 64 // max(dtype.itemsize, 2), 3)
    for number, K in enumerate(n * t.tile_k + rest for n in (0, 1, 3, 4) for rest in (-1, 0, 1) if n or rest == 1):
        N = (65, 66, 72, 80)[number % 4]
        p = Problem(70, N, K, dtype, dtype, kd.int32 if dtype == s8 else dtype, b_transposed=True)
        p = replace(p, lanes=0 if N % 8 == 0 else 1 if N % 2 else 2)
        a, b = random(rng, (70, K), dtype), random(rng, (N, K), dtype)
        got = tile_kernel(p, replace(t, stages=min(t.stages, kd.cdiv(K, t.tile_k))))(a, b, interpret=True)
        expected = a.astype(np.float64) @ b.astype(np.float64).T
        assert relative(got, expected) < (4e-3 if dtype.itemsize < 8 else 1e-14), K


PACKINGS = [
    Packing(4096, 4096, s8, s8, turned=True),
    Packing(4096, 4096, f32, f32, turned=True),
    Packing(4096, 4096, f32, f32, split=True),
    Packing(4095, 4095, bf16, bf16, aligned=False),
    Packing(4095, 4095, s8, s8, turned=True, aligned=False),
    Packing(4096, 4096, s8, f16, turned=True),
]


@pytest.mark.parametrize("p", PACKINGS, ids=str)
def test_packing_in_registers(p: Packing, interpret: Any, rng: Any) -> None:
    """Whole vectors in and out where the operand allows it, through no SMEM; the rest of a row is zeros."""
    shape = (p.columns, p.rows) if p.turned else (p.rows, p.columns)
    stages = pack_kernel((p,)).lower(Spec(shape, p.dtype), target="sm_90a")
    resources = stages.compile().resources
    assert (
        not stages.notes and resources.spills == 0 and resources.shared_bytes == 0 and "st.global.v4.b32" in stages.ptx
    )
    small = Packing(70, 37, p.dtype, p.to, (2,), p.turned, p.split, aligned=False)
    x = random(rng, (2, 37, 70) if p.turned else (2, 70, 37), p.dtype)
    got = pack_kernel((small,))(x, interpret=interpret).astype(np.float64)
    expected = (x.swapaxes(1, 2) if p.turned else x).astype(np.float64)
    parts = got[..., :37] + got[..., small.width :][..., :37] if p.split else got[..., :37]
    assert relative(parts, expected) < 1e-7 and not got[..., 37 : small.width].any()


def test_two_operands_are_laid_out_by_one_launch(rng: Any) -> None:
    found = routed(333, 777, 999, bf16, False, False)
    assert found.kernel == "fast" and all(found.packings)
    x, y = random(rng, (30, 17), bf16), random(rng, (9, 50), s8)
    kernel = pack_kernel(
        (Packing(30, 17, bf16, bf16, aligned=False), Packing(50, 9, s8, f16, turned=True, aligned=False))
    )
    one, other = kernel(x, y, interpret=True)
    assert np.array_equal(one[:, :17], x) and np.array_equal(other[:, :9], y.T.astype(f16.numpy))


@pytest.mark.gpu
@pytest.mark.parametrize(("ta", "tb"), LAYOUTS)
@pytest.mark.parametrize("dtype", [bf16, s8, kd.float8_e4m3fn, f32, f64], ids=str)
@pytest.mark.parametrize("shape", [(1000, 1016, 1032), (333, 777, 999), (2050, 100, 4098), (16, 4000, 8191)], ids=str)
def test_all_layouts_on_a_gpu(shape: Any, dtype: Any, ta: bool, tb: bool) -> None:
    places = ("turned" if ta else "plain", "turned" if tb else "plain")
    for precision in (None, "tf32", "tf32x3") if dtype == f32 else (None,):
        call = Call(dtype, dtype, shape, places, precision=precision, out="plain")
        call.run(1, interpret=False)
