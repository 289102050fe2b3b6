"""fp8 with scales: of tensors, rows and columns, and by blocks of 128 of K, whose sums are promoted to float32."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from benchmarks.bounds import fp8_error
from kernel_dsl.library.product_kernels.pack import pack_kernel
from kernel_dsl.library.product_kernels.persistent_matmul import matmul_kernel
from kernel_dsl.library.product_routes.choose import choose
from kernel_dsl.library.product_routes.routes import route
from kernel_dsl.library.products.arguments import request
from kernel_dsl.library.products.matmul_config import MatmulConfig
from kernel_dsl.library.products.matmul_options import MatmulOptions
from kernel_dsl.library.products.problem import Problem
from kernel_dsl.stages import target_named
from tests.hopper.helpers import assemble, random, relative

from .products import scales

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

e4m3, e5m2, f32, bf16 = kd.float8_e4m3fn, kd.float8_e5m2, kd.float32, kd.bfloat16
Spec = kd.ShapeDtypeStruct
A_FORMS = ("", "tensor", "number", "rows", "column", "blocks")
B_FORMS = ("", "tensor", "number", "columns", "row", "squares", "blocks")


def check(
    rng: Any, shape: Any, forms: tuple[str, str], *, ta: bool = False, tb: bool = True, batch: tuple[int, ...] = (),
    b_dtype: Any = e4m3, interpret: Any = True, **options: Any,
) -> None:  # fmt: skip
    """One product against float64."""
    M, N, K = shape
    a = random(rng, (*batch, K, M), e4m3).swapaxes(-1, -2) if ta else random(rng, (*batch, M, K), e4m3)
    b = random(rng, (N, K), b_dtype).T if tb else random(rng, (K, N), b_dtype)
    a_form, b_form = (
        "blocks of a" if forms[0] == "blocks" else forms[0],
        "blocks of b" if forms[1] == "blocks" else forms[1],
    )
    (a_scale, a_wide), (b_scale, b_wide) = (scales(rng, form, M, N, K, batch) for form in (a_form, b_form))
    expected = (a.astype(np.float64) * a_wide) @ (b.astype(np.float64) * b_wide)
    got = kd.library.matmul(a, b, a_scale=a_scale, b_scale=b_scale, interpret=interpret, **options)
    assert got.dtype == options.get("out_dtype", bf16)
    lost = fp8_error(K, 128 if forms[0] == "blocks" else None) if interpret is False else 0.0
    assert relative(got, expected) < lost + (1e-6 if got.dtype == np.float32 else 4e-3)


@pytest.mark.parametrize("b_form", B_FORMS)
@pytest.mark.parametrize("a_form", A_FORMS)
@pytest.mark.sampled(60)
def test_forms(a_form: str, b_form: str, rng: Any) -> None:
    """Each form of either side with each of the other; odd sizes, and a last block of K that is not whole."""
    check(rng, (40, 200, 300), (a_form, b_form), out_dtype=f32)


@pytest.mark.parametrize(("ta", "tb"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize(
    "shape", [(136, 272, 400), (67, 33, 141), (5, 140, 1300), (16, 16, 8192), (1, 300, 129)], ids=str
)
@pytest.mark.sampled(42)
def test_blocks(shape: Any, ta: bool, tb: bool, rng: Any) -> None:
    """All layouts; thin products, and parts of K."""
    for form in ("squares", "blocks"):
        check(rng, shape, ("blocks", form), ta=ta, tb=tb, b_dtype=e5m2 if tb else e4m3)


@pytest.mark.parametrize(
    "config", [(192, 128, 3), (128, 192, 2), (128, 176, 2), (128, 160, 2), (128, 128, 2), (64, 64, 1)], ids=str
)
@pytest.mark.parametrize("form", ["blocks", "columns"])
@pytest.mark.parametrize("K", [272, 128, 512, 1296])
@pytest.mark.sampled(120)
def test_tiles(config: Any, form: str, K: int, interpret: Any, rng: Any) -> None:
    """Columns of a tile that belong to several blocks, and tiles beyond the edge; fewer steps than a run, one run, more."""
    M, N = 200, 528
    tile_m, tile_n, consumers = config
    p = Problem(M, N, K, e4m3, e4m3, f32, False, True, a_scaled=True, b_scaled=form)
    t = MatmulConfig(tile_m, tile_n, 128, 3, consumers, epilogue_n=math.gcd(tile_n, 32))
    a, b = random(rng, (M, K), e4m3), random(rng, (N, K), e4m3)
    rows, a_wide = scales(rng, "blocks of a", M, N, K)
    columns, b_wide = scales(rng, "squares" if form == "blocks" else "blocks of b", M, N, K)
    got = matmul_kernel(p, t, 2)(a, b, rows, columns, interpret=interpret)
    lost = fp8_error(K, 128) if interpret is False else 0.0
    assert relative(got, (a.astype(np.float64) * a_wide) @ (b.T.astype(np.float64) * b_wide)) < 1e-6 + lost


def test_consumers_in_turn(interpret: Any, rng: Any) -> None:
    """Each waits for the loads of its own tiles, of which a block has several."""
    M, N, K = 264, 264, 416
    p = Problem(M, N, K, e4m3, e4m3, f32, False, True, a_scaled=True, b_scaled="blocks")
    t = MatmulConfig(128, 64, 128, 3, 2, epilogue_n=64, epilogue_stages=1, ping_pong=True)
    a, b = random(rng, (M, K), e4m3), random(rng, (N, K), e4m3)
    (rows, a_wide), (columns, b_wide) = scales(rng, "blocks of a", M, N, K), scales(rng, "squares", M, N, K)
    got = matmul_kernel(p, t, 2)(a, b, rows, columns, interpret=interpret)
    lost = fp8_error(K, 128) if interpret is False else 0.0
    assert relative(got, (a.astype(np.float64) * a_wide) @ (b.T.astype(np.float64) * b_wide)) < 1e-6 + lost


@pytest.mark.parametrize(
    ("dtype", "out"),
    [(kd.float16, bf16), (bf16, bf16), (e4m3, bf16), (kd.int8, bf16), (f32, f32), (kd.float64, kd.float64)],
    ids=str,
)
@pytest.mark.sampled(15)
def test_results_are_bfloat16(dtype: Any, out: Any, rng: Any) -> None:
    """By default, where there are scales: of all but operands of 32 and 64 bits."""
    a, b = random(rng, (16, 32), dtype), random(rng, (32, 24), dtype)
    for name, size in (("a_scale", 16), ("b_scale", 24)):
        got = kd.library.matmul(a, b, interpret=True, **{name: np.ones(size, np.float32)})
        assert got.dtype == out.numpy
        assert kd.library.matmul(a, b, interpret=True, out_dtype=f32, **{name: 2.0}).dtype == np.float32


def test_batches(rng: Any) -> None:
    """A stack of a times one b is one matrix, and so are its scales; stacks of both keep theirs apart."""
    check(rng, (9, 40, 300), ("blocks", "squares"), batch=(3,), out_dtype=f32)
    a, b = random(rng, (2, 9, 300), e4m3), random(rng, (2, 300, 40), e4m3)
    rows = (rng.random((2, 9, 3)) + 0.5).astype(np.float32)
    squares = (rng.random((2, 3, 1)) + 0.5).astype(np.float32)
    got = kd.library.matmul(a, b, a_scale=rows, b_scale=squares, out_dtype=f32, interpret=True)
    wide = np.repeat(rows, 128, 2)[..., :300], np.repeat(squares, 128, 1)[:, :300]
    assert relative(got, (a.astype(np.float64) * wide[0]) @ (b.astype(np.float64) * wide[1])) < 1e-6


def test_with_steps(rng: Any) -> None:
    bias = random(rng, (200,), f32)
    a, b = random(rng, (40, 300), e4m3), random(rng, (300, 200), e4m3)
    (rows, a_wide), (squares, b_wide) = scales(rng, "blocks of a", 40, 200, 300), scales(rng, "squares", 40, 200, 300)
    exact = (a.astype(np.float64) * a_wide) @ (b.astype(np.float64) * b_wide)
    out = np.zeros((200, 40), np.float32).T
    kd.library.matmul(a, b, a_scale=rows, b_scale=squares, scale=0.5, bias=bias, out=out, out_dtype=f32, interpret=True)
    assert relative(out, exact * 0.5 + bias) < 1e-6
    got = kd.library.matmul(
        a, (b, b), gated="reglu", a_scale=rows, b_scale=(squares, squares), out_dtype=f32, interpret=True
    )
    assert relative(got, np.maximum(exact, 0) * exact) < 1e-6


@pytest.mark.parametrize("target", ["sm_80", "sm_89", "sm_100a", "sm_120a"])
@pytest.mark.sampled(4)
def test_other_targets(target: str, rng: Any) -> None:
    """mma.sync, in fp8 where the target has it and else in float16, without spills; and right."""
    M, N, K = 70, 140, 300
    a, b = random(rng, (M, K), e4m3), random(rng, (K, N), e4m3)
    (rows, a_wide), (squares, b_wide) = scales(rng, "blocks of a", M, N, K), scales(rng, "squares", M, N, K)
    r = request(a, b, MatmulOptions(a_scale=rows, b_scale=squares, out_dtype=f32), None)
    found = route(r.problem, r.left, r.right, r.family, None, target_named(target))
    assert found.kernel == "tile" and found.problem.dtype == (kd.float16 if target == "sm_80" else e4m3)
    sides: list[Any] = []
    for x, turn, packing in zip((a, b), r.turns, found.packings, strict=True):
        lying = x.T if turn else x
        sides.append(lying if packing is None else pack_kernel((packing,))(lying, interpret=True))
    got = found.multiply(100)(*sides, rows, squares, interpret=True)
    got = got.sum(0) if found.problem.parts > 1 else got
    assert relative(got, (a.astype(np.float64) * a_wide) @ (b.astype(np.float64) * b_wide)) < 1e-6
    specs = [Spec(x.shape, kd.dtypes.as_dtype(x.dtype)) for x in (*sides, rows, squares)]
    assert found.multiply(100).lower(*specs, target=target).compile().resources.spills == 0


SHAPES = [
    (4096, 4096, 7168), (4096, 24576, 1536), (4096, 32768, 512), (4096, 7168, 2048), (8192, 8192, 8192), (128, 7168, 16384),
    (64, 7168, 16384),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("form", ["blocks", "columns"])
@pytest.mark.sampled(60, "machine code")
def test_nothing_spills(shape: Any, form: str) -> None:
    M, N, K = shape
    p = Problem(M, N, K, e4m3, e4m3, bf16, False, True, a_scaled=True, b_scaled=form)
    columns = N if form == "columns" else -(-N // 128)
    specs = Spec((M, K), e4m3), Spec((N, K), e4m3), Spec((M, K // 128), f32), Spec((K // 128, columns), f32)
    compiled = assemble(matmul_kernel(p, choose(p, 132), 132), *specs)
    # a step is its products and a multiply-add an accumulator, in registers that the products wrote
    assert "wgmma.mma_async" in compiled.ptx


@pytest.mark.parametrize("form", ["blocks", "columns"])
def test_rings_are_written_out(form: str) -> None:
    """A scale is stored from the register that its load wrote: an iteration of the loop that loads has a whole ring of stages."""
    p = Problem(8192, 8192, 8192, e4m3, e4m3, bf16, False, True, a_scaled=True, b_scaled=form)
    t = choose(p, 132)
    assert (t.tile_m, t.tile_n, t.consumers, 64 % t.stages) == (192, 128, 3, 0)
    columns = 8192 if form == "columns" else 64
    specs = Spec((8192, 8192), e4m3), Spec((8192, 8192), e4m3), Spec((8192, 64), f32), Spec((64, columns), f32)
    ptx = matmul_kernel(p, t, 132).lower(*specs, target="sm_90a").ptx
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared", ptx)) == 2 * t.stages
    # and a loop that multiplies: its next wait begins beside the promotion
    assert ptx.count("wgmma.mma_async") == 4 * (t.stages if form == "blocks" else 1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_whole_rings(shape: Any) -> None:
    """Stages divide the steps, so no step is left for other code."""
    M, N, K = shape
    t = choose(Problem(M, N, K, e4m3, e4m3, bf16, False, True, a_scaled=True, b_scaled="blocks"), 132)
    assert t.tile_m < 128 or (K // 128) % t.stages == 0


A, B = np.ones((16, 300), e4m3.numpy), np.ones((300, 200), e4m3.numpy)
REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    (A, B, {"a_scale": np.ones((16, 2), np.float32)}, r"a_scale is \(16, 2\)"),
    (A, B, {"a_scale": np.ones((3, 16), np.float32)}, r"a_scale is \(3, 16\)"),
    (A, B, {"b_scale": np.ones((2, 3), np.float32)}, r"b_scale is \(2, 3\)"),
    (A, B, {"b_scale": np.ones((3, 3), np.float32)}, r"b_scale is \(3, 3\)"),
    (A, B, {"b_scale": np.ones((3, 2), np.float64)}, "b_scale is float64"),
    *((A, (B, B), {"gated": "glu", "b_scale": pair}, "b_scale is a pair of")
      for ones, other in ((np.ones((3, 2), np.float32), np.ones((3, 200), np.float32)), (np.ones((3, 2), np.float32), 2.0))
      for pair in ((ones, other), (other, ones))),
    (A, B, {"a_scale": np.ones((2, 16, 3), np.float32)}, r"a_scale is \(2, 16, 3\)"),
    (A.astype(np.float16), B.astype(np.float16), {"a_scale": np.ones((16, 3), np.float32)}, "a_scale by blocks of K for float16"),
    (A.astype(np.int8), B.astype(np.int32), {"b_scale": np.ones((3, 2), np.float32)}, "b_scale by blocks of K for int32"),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c[-1])
def test_refused(case: Any) -> None:
    a, b, options, words = case
    with pytest.raises(kd.Error, match=words):
        kd.library.matmul(a, b, interpret=True, **options)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "forms", [("blocks", "squares"), ("blocks", "blocks"), ("rows", "columns"), ("tensor", "tensor")], ids=str
)
@pytest.mark.parametrize(("ta", "tb"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("shape", [(1000, 1016, 1024), (333, 777, 999), (128, 1024, 16384), (64, 7168, 2048)], ids=str)
def test_scales_on_a_gpu(shape: Any, forms: Any, ta: bool, tb: bool, rng: Any) -> None:
    check(rng, shape, forms, ta=ta, tb=tb, interpret=False, out_dtype=f32)


@pytest.mark.gpu
def test_promotion_on_a_gpu(rng: Any) -> None:
    """A long sum is more precise where it is promoted every 128 of K than where it is not."""
    a, b = np.abs(random(rng, (256, 16384), e4m3)), np.abs(random(rng, (16384, 256), e4m3))
    ones = np.ones((256, 128), np.float32), np.ones((128, 2), np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    promoted = kd.library.matmul(a, b, a_scale=ones[0], b_scale=ones[1], out_dtype=f32, interpret=False)
    plain = kd.library.matmul(a, b, out_dtype=f32, interpret=False, config=MatmulConfig(128, 128, 128, 4))
    highest = kd.library.matmul(a, b, out_dtype=f32, interpret=False, precision="highest")
    # numbers of one sign lose more than `fp8_error` says, as each product is cut by the sum's unit: 6.8e-4 after 128 and 2.3e-3
    # after 256 on one NVIDIA H200
    assert relative(promoted, exact) < 2 * fp8_error(16384, 128) < relative(plain, exact)
    assert relative(promoted, exact) < relative(highest, exact) < relative(plain, exact)
