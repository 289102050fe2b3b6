"""The cost model's choice: there is one for each problem, and it does not spill."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.product_routes import choose, fast_costs
from kernel_dsl.library.products.problem import EpilogueStep, Problem

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f16, f32, e4m3, s8 = kd.bfloat16, kd.float16, kd.float32, kd.float8_e4m3fn, kd.int8
Spec = kd.ShapeDtypeStruct
GATE, ADDEND = EpilogueStep("gate", word="glu"), EpilogueStep("add", (("m", "n"),))
SHAPES = ((1, 1, 1), (16, 4000, 8192), (4096, 16, 500), (333, 777, 999), (4096, 4096, 4096))
# (dtypes of both sides, whether they lie along K, more of the problem)
KINDS: tuple[tuple[Any, Any, bool | None, dict[str, Any]], ...] = (
    (bf16, bf16, None, {}),
    (bf16, bf16, None, {"gate": GATE}),
    (bf16, bf16, None, {"gate": GATE, "keeps": True}),
    (bf16, bf16, None, {"softmax": 2}),
    (bf16, bf16, None, {"sparse": True}),
    (s8, bf16, None, {}),
    (bf16, s8, True, {"int4": 128}),
    (bf16, s8, True, {"int4": 64, "int4_zeros": True}),
    (bf16, s8, True, {"int4": 32}),
    (f32, f32, True, {}),
    (f32, f32, True, {"gate": GATE}),
    (f32, f32, True, {"thrice": True, "promoted": True}),
    (f32, f32, True, {"thrice": True, "promoted": True, "gate": GATE}),
    (s8, s8, True, {}),
    (s8, s8, True, {"gate": GATE}),
    (e4m3, e4m3, True, {"promoted": True}),
    (e4m3, e4m3, True, {"promoted": True, "gate": GATE}),
    (e4m3, e4m3, True, {"a_scaled": True, "b_scaled": "blocks"}),
    (e4m3, e4m3, True, {"a_scaled": True, "b_scaled": "columns"}),
    (e4m3, e4m3, True, {"sparse": True}),
)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.sampled(4)
def test_each_problem_has_a_configuration(kind: Any) -> None:
    """Of any layout, dtype of the result and number of steps, stored by TMA and by lanes."""
    a, b, along_k, more = kind
    for out, steps, lanes in product((bf16, f32, e4m3, kd.float64), (0, 1, 4), (0, 1)):
        for ta, tb in ((False, True),) if along_k else ((False, False), (False, True), (True, False), (True, True)):
            p = Problem(
                1, 1, 1, a, b, out, a_transposed=ta, b_transposed=tb, steps=(ADDEND,) * steps, lanes=lanes, **more
            )
            if choose.needs_swap(p) and p.gate is not None:
                continue  # has a launch for each of both products
            for M, N, K in SHAPES:
                t = choose.choose(replace(p, M=M, N=N, K=K), 132, p.plain)
                assert t.stages >= 2 and (t.swapped or choose.gates(p, t)), (p, t)


@pytest.mark.parametrize(
    "kind", [(bf16, bf16, False), (f32, f32, True), (s8, bf16, False), (bf16, s8, False), (s8, s8, True)], ids=str
)
def test_the_choice_has_the_best_estimate(kind: Any) -> None:
    """Also where only the transposed product is possible, whose tiles lie otherwise, and whose lanes store no whole lines."""
    a, b, wide = kind
    for shape, lanes, reads in product(
        ((16, 4000, 8192), (1444, 29772, 52), (800, 208, 608)), (0, 1, 4), ((1.0, 1.0), (2.0, 1.0), (1.0, 1.3))
    ):
        for ta, tb in product((False, True), repeat=2):
            p = Problem(*shape, a, b, f32 if wide else bf16, a_transposed=ta, b_transposed=tb, lanes=lanes)
            if (a == s8 and ta) or (b == s8 and not tb) or (a == f32 and ta and not tb):
                continue  # is packed before
            found = choose.space(p, 132, True, reads)
            times = [fast_costs.clocks(p, t, 132, reads) for _, t in found]
            best = fast_costs.clocks(p, choose.choose(p, 132, True, reads), 132, reads)
            assert best == min(times), (p, reads)
            for (estimate, t), time in zip(found, times, strict=True):
                assert time <= estimate <= time * choose.VARIED**4, (p, t)


@pytest.mark.parametrize(("shape", "dtype"), [((9000, 9000, 40), bf16), ((12016, 25360, 16), e4m3)], ids=str)
def test_shallow_products_store_long_pieces_of_rows(shape: Any, dtype: Any) -> None:
    p = Problem(*shape, dtype, dtype, bf16, a_transposed=False, b_transposed=True)
    t = choose.choose(p, 132)
    assert (t.tile_m, t.tile_n, t.swapped) == (128, 256, False)


@pytest.mark.parametrize(("shape", "most"), [((568, 56, 152), 3), ((144, 16, 16), 2), ((512, 512, 8192), 12)], ids=str)
def test_blocks_of_one_tile_fill_all_stages(shape: Any, most: int) -> None:
    """The next tile's loads fill the others, if there is one."""
    p = Problem(*shape, bf16, bf16, bf16, b_transposed=True)
    assert 2 <= choose.choose(p, 132).stages <= most
    assert choose.choose(replace(p, M=100 * p.M, N=20 * p.N), 132).stages > 2


@pytest.mark.parametrize("scaled", ["blocks", "columns"])
def test_scales_by_blocks_of_k_have_short_bands(scaled: str) -> None:
    p = Problem(8192, 8192, 8192, e4m3, e4m3, bf16, b_transposed=True, a_scaled=True, b_scaled=scaled)
    t = choose.choose(p, 132)
    assert t.group * t.tile_m == 1152


@pytest.mark.parametrize("precision", ["tf32x3", "highest"])
@pytest.mark.parametrize("out_dtype", [e4m3, bf16], ids=str)
@pytest.mark.sampled(4)
def test_gates_of_promoted_sums(precision: str, out_dtype: Any, rng: Any) -> None:
    """A result of bytes is stored in parts of fewer columns, for a tile has only half as many."""
    dtype = f32 if precision == "tf32x3" else e4m3
    a, b, c = (rng.standard_normal(shape).astype(dtype.numpy) for shape in ((70, 48), (48, 144), (48, 144)))
    got = kd.library.matmul(a, (b, c), precision=precision, gated="glu", out_dtype=out_dtype, interpret=True)
    gate, value = (a.astype(np.float64) @ x.astype(np.float64) for x in (b, c))
    expected = value / (1 + np.exp(-gate))
    assert (
        np.abs(got.astype(np.float64) - expected).max()
        <= (0.07 if out_dtype == e4m3 else 4e-3) * np.abs(expected).max()
    )


def halved(x: Any, y: Any, z: Any) -> Any:
    return x * y + kd.tanh(z)


# (rows, columns, K, dtypes of a, b and the result, extra steps): each spilled with 128 sums a lane
BUSY: tuple[Any, ...] = (
    (4096, 2048, 1152, e4m3, bf16, f32, {"activation": kd.tanh, "residual": True, "absmax": True, "out_scale": 2.0}),
    (4096, 6096, 256, s8, s8, e4m3, {"scale": 1.5, "operands": True, "b_scale": True}),
    (4096, 2048, 128, e4m3, e4m3, bf16, {"a_scale": True, "b_scale": True, "dropout": (0.1, 5), "operands": True}),
    (2048, 6355, 512, s8, bf16, e4m3, {"scale": 1.5, "c": True, "absmax": True}),
    (9854, 2048, 64, bf16, f16, bf16, {"b_scale": True, "scale": 1.5, "activation": kd.tanh, "residual": True}),
)


@pytest.mark.parametrize("case", BUSY, ids=lambda case: str(case[:6]))
@pytest.mark.sampled(60, "machine code")
def test_many_steps_do_not_spill(case: Any) -> None:
    """Beside many steps, sums take fewer registers."""
    M, N, K, a, b, out, given = case
    options = {"bias": Spec((N,), f32), "out_dtype": out, **given}
    arrays = {"a_scale": Spec((M, 1), f32), "b_scale": Spec((1, N), f32), "c": Spec((M, N), f32)}
    arrays |= {"residual": arrays["c"], "operands": (arrays["a_scale"], arrays["c"])}
    options |= {name: arrays[name] for name, x in given.items() if x is True and name in arrays}
    if "operands" in options:
        options["epilogue"] = halved
    made = kd.library.matmul.lower(Spec((M, K), a), Spec((K, N), b), target="sm_90a", **options).compile()
    assert made.resources.spills == 0


@pytest.mark.parametrize("target", ["sm_80", "sm_100a"])
@pytest.mark.parametrize("shape", [(500, 600, 89), (500, 600, 120), (300, 5000, 152), (500, 600, 60)], ids=str)
@pytest.mark.sampled(60, "machine code")
def test_few_steps_do_not_spill(target: str, shape: Any) -> None:
    """ptxas unrolls loops of some ten iterations, unless a loop says that it may not."""
    M, N, K = shape
    for dtype, precision in ((f32, "tf32x3"), (f32, None)):
        stages = kd.library.matmul.lower(Spec((M, K), dtype), Spec((K, N), dtype), precision=precision, target=target)
        assert '.pragma "nounroll"' in stages.ptx and stages.compile().resources.spills == 0
