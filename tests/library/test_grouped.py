"""kd.library.grouped_matmul and its weight gradient: ragged groups, all that is done beside, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from benchmarks.bounds import fp8_error
from kernel_dsl.library import MatmulConfig
from kernel_dsl.library.grouped.product import grouped_kernel
from kernel_dsl.library.grouped.tiles import RowGroups
from kernel_dsl.library.grouped.wgrad_product import wgrad_kernel
from kernel_dsl.library.products.problem import Problem
from tests.hopper.helpers import assemble, random, relative

from .grouped import Call, any_call, grouped, wgrad

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f16, f32, f64, e4m3, s8 = kd.bfloat16, kd.float16, kd.float32, kd.float64, kd.float8_e4m3fn, kd.int8
Spec = kd.ShapeDtypeStruct
SMALL = MatmulConfig(64, 64, 64, 3, 1, epilogue_n=32)
PAIRED = MatmulConfig(128, 64, 64, 2, 2, epilogue_n=64, epilogue_stages=1)
SQUARES = MatmulConfig(128, 64, 64, 2, 2, epilogue_n=64, epilogue_stages=1, cluster=2, cluster_n=2)
LAYOUTS = [("plain", "plain"), ("plain", "turned"), ("turned", "plain"), ("turned", "turned")]


@pytest.mark.parametrize("places", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "config", [SMALL, PAIRED, replace(SMALL, cluster=2), SQUARES], ids=["one", "two", "pair", "four"]
)
@pytest.mark.sampled(57)
def test_layouts(places: Any, config: Any, interpret: Any) -> None:
    if places[0] == "turned":
        config = replace(config, cluster_n=1)
    for seed, offsets in ((1, False), (2, True)):
        Call(bf16, bf16, (200, 5, 72, 104), places, offsets=offsets, config=config).run(seed, interpret)


@pytest.mark.parametrize(
    "sizes", [(0, 0, 0), (128, 0, 64), (192, 0, 0), (0, 0, 192), (1, 127, 64), (63, 65, 1)], ids=str
)
@pytest.mark.sampled(57)
@pytest.mark.parametrize("config", [SMALL, replace(SMALL, cluster=2, cluster_n=2)], ids=["alone", "four"])
def test_sizes(sizes: Any, config: Any, interpret: Any, rng: Any) -> None:
    """Tiles that end where groups do, before, and after; rows of no group, in one kernel for all."""
    p, groups = Problem(192, 72, 40, f16, f16, f32, b_batch=(3,)), RowGroups(3, 192)
    a, b = random(rng, (192, 40), f16), random(rng, (3, 40, 72), f16)
    out = np.full((192, 72), np.nan, np.float32)
    got = grouped_kernel(p, groups, config, 48)(a, b, np.int32(sizes), out=out, interpret=interpret)
    expected = grouped(a, b, np.cumsum([0, *sizes]))
    assert relative(got, expected) < 1e-6 and not got[sum(sizes) :].any()


def test_sizes_that_do_not_fit_are_cut_off(rng: Any) -> None:
    """What a GPU does, where nobody looks at sizes before: the kernel alone, in the interpreter."""
    p = Problem(96, 40, 32, bf16, bf16, f32, b_batch=(3,))
    a, b = random(rng, (96, 32), bf16), random(rng, (3, 32, 40), bf16)
    cases = [
        (False, [50, -7, 200], [0, 50, 50, 96]),
        (False, [2**31 - 1, 2**31 - 1, 1], [0, 96, 96, 96]),
        (True, [-4, 60, 20, 300], [0, 60, 60, 96]),
        (True, [70, 10, 80, 90], [70, 70, 80, 90]),
    ]
    for by_offsets, given, bounds in cases:
        kernel = grouped_kernel(p, RowGroups(3, 96, by_offsets), SMALL, 2)
        got = kernel(a, b, np.int32(given), interpret=True)
        assert relative(got, grouped(a, b, bounds)) < 1e-6, given
        w = Problem(32, 40, 96, bf16, bf16, f32, a_transposed=True)
        sums = wgrad_kernel(w, RowGroups(3, 96, by_offsets), SMALL, 2)(
            a, a[:, :1] + np.zeros((1, 40), a.dtype), np.int32(given), interpret=True
        )
        for group in range(3):
            own = slice(bounds[group], bounds[group + 1])
            column = a[own].astype(np.float64).T @ a[own, :1].astype(np.float64)
            assert np.abs(sums[group] - column).max() < 1e-4, given


@pytest.mark.parametrize("config", [SMALL, PAIRED], ids=["one", "two"])
@pytest.mark.parametrize("places", LAYOUTS, ids=str)
@pytest.mark.sampled(57)
def test_weight_gradients(places: Any, config: Any, interpret: Any) -> None:
    for seed in (1, 2):
        wgrad(seed, interpret, (bf16, bf16), (*places, "plain"), config)


def test_what_other_groups_hold_does_not_matter(rng: Any) -> None:
    """A weight gradient reads the next group's rows, and leaves out even what is no number."""
    a, d = random(rng, (100, 64), bf16), random(rng, (100, 72), bf16)
    a[40:50], d[45:60] = np.nan, np.inf
    sizes = np.int32([40, 0, 20, 40])
    got = kd.library.grouped_matmul_wgrad(a, d, sizes, config=SMALL, interpret=True)
    wide = [x.astype(np.float64) for x in (a, d)]
    for group, own in ((0, slice(0, 40)), (3, slice(60, 100))):
        assert relative(got[group], wide[0][own].T @ wide[1][own]) < 1e-6
    assert not got[1].any() and not np.isfinite(got[2].astype(np.float64)).any()


STEPS: list[tuple[Any, tuple[str, ...], tuple[str, str]]] = [
    (bf16, ("bias", "activation", "weights"), ("column", "row")),
    (bf16, ("indices", "bias", "gated", "weights", "scatter"), ("column", "row")),
    (f16, ("a_scale", "b_scale", "gated", "activation"), ("rows", "columns")),
    (f32, ("indices", "a_scale", "b_scale", "gated", "activation", "scatter"), ("column", "groups")),
    (e4m3, ("a_scale", "b_scale", "bias"), ("blocks", "squares")),
    (e4m3, ("indices", "a_scale", "b_scale", "gated"), ("blocks", "blocks")),
    (s8, ("a_scale", "b_scale", "weights"), ("blocks", "groups")),
    (f64, ("bias", "gated", "scatter", "weights"), ("number", "number")),
    (kd.int32, ("b_scale", "bias", "gated", "scatter"), ("column", "row")),  # two launches, with floats between them
    (kd.int32, ("gated",), ("number", "number")),
]


@pytest.mark.parametrize("case", STEPS, ids=str)
@pytest.mark.sampled(156)
def test_steps(case: Any, interpret: Any) -> None:
    dtype, steps, forms = case
    depth = 150 if dtype.itemsize == 1 else 40
    Call(dtype, dtype, (100, 3, 136, depth), ("plain", "turned"), steps, forms).run(3, interpret)


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (8, 0, 8, 8), (8, 3, 0, 8), (8, 3, 8, 0), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("steps", [(), ("bias", "activation"), ("scatter",)], ids=str)
@pytest.mark.sampled(16)
def test_the_smallest(shape: Any, steps: Any) -> None:
    rows, groups, N, K = shape
    sizes = np.zeros(groups, np.int32)
    if groups:
        Call(bf16, bf16, shape, steps=steps).run(5, True)
        return
    got = kd.library.grouped_matmul(
        np.ones((rows, K), bf16.numpy), np.ones((0, K, N), bf16.numpy), sizes, interpret=True
    )
    assert got.shape == (rows, N) and not got.any()
    assert (
        kd.library.grouped_matmul_wgrad(
            np.ones((rows, K), f32.numpy), np.ones((rows, N), f32.numpy), sizes, interpret=True
        ).size
        == 0
    )


def test_random_calls() -> None:
    rng = np.random.default_rng(11)
    for number in range(2):
        any_call(rng).run(number, kd.InterpretParams(seed=number, report_unwritten=True))
        wgrad(number, kd.InterpretParams(seed=number, report_unwritten=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_random_calls(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for number in range(50):
        any_call(rng).run(number, kd.InterpretParams(seed=number, report_unwritten=True))
        wgrad(1000 * seed + number, kd.InterpretParams(seed=number, report_unwritten=True))


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(16))
def test_random_calls_on_a_gpu(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    for number in range(10):
        any_call(rng).run(number, False)
        wgrad(1000 * seed + number, False)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2048, 8, 512, 1024), (4099, 64, 768, 2048), (1000, 128, 1536, 512)], ids=str)
@pytest.mark.parametrize("steps", [(), ("gated",), ("indices", "weights", "scatter")], ids=str)
def test_real_sizes(shape: Any, steps: Any) -> None:
    Call(bf16, bf16, shape, ("plain", "turned"), steps).run(1, False)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2048, 8, 512, 1024), (4099, 64, 768, 512)], ids=str)
def test_real_sizes_of_gradients(shape: Any, rng: Any) -> None:
    rows, groups, N, K = shape
    a, d = random(rng, (rows, K), bf16), random(rng, (rows, N), bf16)
    ends = np.sort(rng.integers(0, rows + 1, groups))
    sizes = np.diff(ends, prepend=0).astype(np.int32)
    got = kd.library.grouped_matmul_wgrad(a, d, sizes, interpret=False)
    for group in range(groups):
        own = slice(ends[group] - sizes[group], ends[group])
        exact = a[own].astype(np.float64).T @ d[own].astype(np.float64)
        assert np.abs(got[group] - exact).max() <= 1e-5 * max(np.abs(exact).max(), 1.0)


SHAPES = [(8, 32768, 4096, 7168), (16, 32768, 768, 2048), (128, 65536, 1536, 2048)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.sampled(60, "machine code")
def test_no_spills(shape: Any) -> None:
    """Nor products that wait for each other, in what large problems take: plain, by columns, gated, scaled, gradients."""
    groups, rows, N, K = shape
    sizes, a, b = Spec((groups,), kd.int32), Spec((rows, K), bf16), Spec((groups, K, N), bf16)
    run = kd.library.grouped_matmul
    kernels = [
        run.lower(a, b, sizes),
        run.lower(a, (b, b), sizes, gated="swiglu"),
        run.lower(
            a, b, offsets=Spec((groups + 1,), kd.int32), bias=Spec((groups, N), bf16), weights=Spec((rows,), f32)
        ),
        kd.library.grouped_matmul_wgrad.lower(a, Spec((rows, N), bf16), sizes),
    ]
    names = ["grouped_matmul"] * 3 + ["grouped_matmul_wgrad"]
    assert [kernel.name for kernel in kernels] == names
    for kernel in kernels:
        assert_clean(kernel.compile())


def assert_clean(compiled: Any) -> None:
    assert compiled.resources.spills == 0
    assert not [r for r in compiled.remarks if "C75" in r.text], compiled.remarks


@pytest.mark.parametrize("form", ["squares", "columns"])
@pytest.mark.sampled(60, "machine code")
def test_no_spills_with_scales(form: str) -> None:
    rows, groups, N, K = 32768, 8, 4096, 7168
    p = Problem(rows, N, K, e4m3, e4m3, bf16, b_transposed=True, b_batch=(groups,), a_scaled=True,
                b_scaled="blocks" if form == "squares" else form)  # fmt: skip
    tiles = (
        MatmulConfig(128, 192 if form == "squares" else 160, 128, 4, 2, epilogue_n=32),
        MatmulConfig(192, 128, 128, 4, 3),
    )
    scale = (groups, K // 128, N // 128 if form == "squares" else N)
    sides = Spec((rows, K), e4m3), Spec((groups, N, K), e4m3), Spec((groups,), kd.int32)
    for tile in tiles:
        kernel = grouped_kernel(p, RowGroups(groups, rows), tile, 132)
        assemble(kernel, *sides, Spec((rows, K // 128), f32), Spec(scale, f32))


@pytest.mark.parametrize("tile", [(192, 128, 3), (128, 192, 2), (128, 128, 2)], ids=str)
@pytest.mark.parametrize("form", ["squares", "blocks"])
@pytest.mark.parametrize("K", [272, 656])  # fewer steps than stages and a half, and more than twice as many
@pytest.mark.sampled(9)
def test_factors_come_with_the_stages(tile: Any, form: str, K: int, interpret: Any, rng: Any) -> None:
    """Of the rows of each tile of a group, and of the group's columns."""
    rows, N = 300, 264
    sizes = np.array([150, 0, 131], np.int32)
    p = Problem(rows, N, K, e4m3, e4m3, f32, b_transposed=True, b_batch=(3,), a_scaled=True,
                b_scaled="blocks" if form == "squares" else "columns")  # fmt: skip
    t = MatmulConfig(*tile[:2], 128, 3, tile[2], epilogue_n=32)
    a, b = random(rng, (rows, K), e4m3), random(rng, (3, N, K), e4m3)
    depth = -(-K // 128)
    left = rng.random((rows, depth)).astype(np.float32) + 0.5
    right = rng.random((3, depth, -(-N // 128) if form == "squares" else N)).astype(np.float32) + 0.5
    got = grouped_kernel(p, RowGroups(3, rows), t, 2)(a, b, sizes, left, right, interpret=interpret)
    wide = np.repeat(right, 128, 1)[:, :K]
    wide = np.repeat(wide, 128, 2)[..., :N] if form == "squares" else wide
    scaled, first = a.astype(np.float64) * np.repeat(left, 128, 1)[:, :K], 0
    expected = np.zeros((rows, N))
    for group, count in enumerate(sizes):
        mine = slice(first, first + count)
        expected[mine] = scaled[mine] @ (b[group].T.astype(np.float64) * wide[group])
        first += count
    lost = fp8_error(K, 128) if interpret is False else 0.0
    assert relative(got, expected) < 1e-6 + lost


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("dtype", [bf16, f32, s8, f64], ids=str)
@pytest.mark.sampled(39)
def test_other_targets(target: str, dtype: Any) -> None:
    sizes, a, b = Spec((16,), kd.int32), Spec((4096, 512), dtype), Spec((16, 512, 1024), dtype)
    for kernel in (
        kd.library.grouped_matmul.lower(a, b, sizes, target=target),
        kd.library.grouped_matmul_wgrad.lower(a, Spec((4096, 256), dtype), sizes, target=target),
    ):
        assert kernel.compile().resources.spills == 0
        assert "mma.sync" in kernel.ptx or dtype == f32


def test_one_kernel_for_all_sizes(rng: Any) -> None:
    """A second call with other sizes is the same kernel, and nothing is traced."""
    a, b = random(rng, (70, 40), bf16), random(rng, (4, 40, 24), bf16)
    plans = kd.library.grouped_matmul._plans
    for sizes in ([70, 0, 0, 0], [1, 2, 3, 4], [0, 0, 0, 70]):
        got = kd.library.grouped_matmul(a, b, np.int32(sizes), interpret=True)
        assert relative(got.astype(np.float64), grouped(a, b, np.cumsum([0, *sizes]))) < 4e-3
        assert len([1 for key in plans if key[0][0][0] == (70, 40)]) == 1


A, B, S = np.ones((16, 32), np.float16), np.ones((3, 32, 24), np.float16), np.int32([4, 5, 6])
W = np.ones(16, np.float32)
PAIR = np.ones((3, 2, 1), np.float32), np.ones((3, 2, 24), np.float32)
WRONG: list[tuple[Any, Any, dict[str, Any], str]] = [
    (A, B, {}, "neither group_sizes nor offsets"),
    (A, B, {"group_sizes": S, "offsets": np.int32([0, 4, 9, 15])}, "group_sizes beside offsets"),
    (A, B, {"group_sizes": [4, 5, 6]}, "group_sizes is a list"),
    (A, B, {"group_sizes": S.astype(np.int64)}, "group_sizes is int64"),
    (A, B, {"group_sizes": S[:2]}, r"group_sizes is \(2,\)"),
    (A, B, {"offsets": S}, r"offsets is \(3,\)"),
    (A, B, {"group_sizes": np.int32([4, -1, 6])}, "group_sizes has -1"),
    (A, B, {"group_sizes": np.int32([4, 5, 8])}, "group_sizes add up to 17"),
    (A, B, {"offsets": np.int32([0, 9, 4, 15])}, "offsets decrease from 9 to 4 at group 1"),
    (A, B, {"offsets": np.int32([0, 4, 9, 17])}, "offsets go from 0 to 17"),
    (A, B, {"offsets": np.int32([-1, 4, 9, 15])}, "offsets go from -1 to 15"),
    (A[:, :31], B, {"group_sizes": S}, r"a is \(16, 31\) and b is \(3, 32, 24\)"),
    (A, B[0], {"group_sizes": S}, "b is an ndarray of shape"),
    (A[0], B, {"group_sizes": S}, "a is an ndarray of shape"),
    (A.astype(np.complex64), B, {"group_sizes": S}, "a is complex64"),
    (A, (B, B), {"group_sizes": S}, "b is a tuple"),
    (A, (B, B, B), {"group_sizes": S, "gated": "glu"}, "b has 3 parts"),
    (A, B[:, :, :23], {"group_sizes": S, "gated": "glu"}, "b has 23 columns"),
    (A, (B, B[:, :, 1:]), {"group_sizes": S, "gated": "glu"}, "and b is"),
    (A, B, {"group_sizes": S, "gated": "silu"}, "gated='silu'"),
    (A, B, {"group_sizes": S, "activation": 3}, "activation is an int"),
    (A, B, {"group_sizes": S, "activation": lambda x: x.sum()}, "the activation made"),
    (A, B, {"group_sizes": S, "bias": np.ones(24, np.float16)}, r"bias is \(24,\)"),
    (A, B, {"group_sizes": S, "a_scale": np.ones(15, np.float32)}, r"a_scale is \(15,\)"),
    (A, B, {"group_sizes": S, "a_scale": W.astype(np.float64)}, "a_scale is float64"),
    (A, B, {"group_sizes": S, "a_scale": True}, "a_scale is a bool"),
    (A, B, {"group_sizes": S, "b_scale": np.ones((3, 2, 24), np.float32)}, r"b_scale is \(3, 2, 24\)"),
    (np.ones((16, 200), np.float16), np.ones((3, 200, 24), np.float16), {"group_sizes": S, "a_scale": np.ones((16, 2), np.float32)},
     "a_scale by blocks of K"),
    (np.ones((16, 200), e4m3.numpy), (np.ones((3, 200, 24), e4m3.numpy),) * 2, {"group_sizes": S, "gated": "glu", "b_scale": PAIR},
     "b_scale is a pair of"),
    (A, B, {"group_sizes": S, "weights": W[:15]}, r"weights is \(15,\)"),
    (A, B, {"group_sizes": S, "weights": W.reshape(4, 4)}, "weights is an ndarray"),
    (A, B, {"group_sizes": S, "scatter": np.zeros(15, np.int32)}, r"scatter is \(15,\)"),
    (A, B, {"group_sizes": S, "scatter": np.zeros(16, np.int64)}, "scatter is int64"),
    (A, B, {"group_sizes": S, "scatter": np.full(16, 16, np.int32)}, "scatter has 16"),
    (A, B, {"group_sizes": S, "indices": np.full(15, -1, np.int32)}, "indices has -1"),
    (A, B, {"group_sizes": S, "indices": np.zeros((4, 4), np.int32)}, "indices is an ndarray"),
    (A, B, {"group_sizes": S, "out": np.ones((15, 24), np.float16)}, r"out is \(15, 24\)"),
    (A, B, {"group_sizes": S, "out": np.ones((16, 24), np.float32)}, "out is float32"),
    (A, B, {"group_sizes": S, "out_dtype": np.complex64}, "out_dtype is complex64"),
    (A, B, {"group_sizes": S, "config": 3}, "config is an int"),
    (A, B, {"group_sizes": S, "config": MatmulConfig(swapped=True)}, "turns or sides"),
    (A.T.copy().T, B, {"group_sizes": S, "config": SQUARES}, "config.cluster_n=2"),
    (A, B, {"group_sizes": S, "config": MatmulConfig(tile_m=64)}, "config.tile_m=64"),
]  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=lambda c: c[-1])
def test_errors(case: Any) -> None:
    a, b, options, words = case
    with pytest.raises(kd.Error, match=words):
        kd.library.grouped_matmul(a, b, interpret=True, **options)


GRADIENTS: list[tuple[Any, Any, dict[str, Any], str]] = [
    (A, A[:15], {"group_sizes": S}, "the same rows"),
    (A, A, {}, "neither group_sizes nor offsets"),
    (A, A, {"offsets": np.int32([0, 9, 4])}, "offsets decrease"),
    (A, A, {"group_sizes": np.int32([17])}, "add up to 17"),
    (A, A, {"group_sizes": S, "config": MatmulConfig(cluster=2)}, "config has clusters"),
    (A, A, {"group_sizes": S, "config": MatmulConfig(ping_pong=True)}, "turns or sides"),
    (A, A, {"group_sizes": S, "out": np.ones((3, 32, 31), np.float32)}, r"out is \(3, 32, 31\)"),
    (A, 3, {"group_sizes": S}, "dout is an int"),
]


@pytest.mark.parametrize("case", GRADIENTS, ids=lambda c: c[-1])
def test_errors_of_gradients(case: Any) -> None:
    a, dout, options, words = case
    with pytest.raises(kd.Error, match=words):
        kd.library.grouped_matmul_wgrad(a, dout, interpret=True, **options)
