"""Products: nothing spills in what large problems and odd sizes take, by each family of kernels."""

from __future__ import annotations

import re
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl.library.product_kernels.lane_product import LaneConfig, lane_kernel
from kernel_dsl.library.product_kernels.persistent_matmul import matmul_kernel
from kernel_dsl.library.product_routes.any_rows import opened
from kernel_dsl.library.products.matmul_config import MatmulConfig
from kernel_dsl.library.products.problem import Problem
from tests.hopper.helpers import assemble

from .routed import routed

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f32, f64, e4m3 = kd.bfloat16, kd.float32, kd.float64, kd.float8_e4m3fn
Spec = kd.ShapeDtypeStruct


@pytest.mark.parametrize(("dtype", "precision"), [(f32, "tf32x3"), (e4m3, "highest")], ids=str)
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (2050, 100, 4098), (16, 4000, 8191), (777, 999, 8192)], ids=str)
@pytest.mark.sampled(60, "machine code")
def test_promoted_sums_do_not_spill(dtype: Any, precision: str, shape: Any) -> None:
    """Nor are their products waited for one by one."""
    M, N, K = shape
    for target in (None, "sm_80", "sm_89", "sm_100a", "sm_120a"):
        found = routed(M, N, K, dtype, False, True, target, precision=precision)
        kernel, sides = found.multiply(132), [Spec((M, K), dtype), Spec((N, K), dtype)]
        sides = [x if p is None else p.out for x, p in zip(sides, found.packings, strict=True)]
        if target is None:
            assert found.kernel == "fast" and assemble(kernel, *sides).resources.spills == 0
        else:
            assert kernel.lower(*sides, target=target).compile().resources.spills == 0


@pytest.mark.parametrize(("ta", "tb"), [(False, False), (True, True)])
@pytest.mark.sampled(60, "machine code")
def test_turned_through_registers_does_not_spill(ta: bool, tb: bool) -> None:
    found = routed(4096, 4096, 4096, f32, ta, tb, precision="tf32")
    compiled = assemble(found.multiply(132), Spec((4096, 4096), f32), Spec((4096, 4096), f32))
    assert compiled.resources.registers == 168


@pytest.mark.parametrize("vector", [1, 2, 4])
@pytest.mark.sampled(60, "machine code")
def test_stores_by_lanes_do_not_spill(vector: int) -> None:
    p = Problem(4097, 4096 + vector, 4096, bf16, bf16, bf16, b_transposed=True, lanes=vector)
    specs = Spec((4097, 4096), bf16), Spec((4096 + vector, 4096), bf16)
    assert assemble(matmul_kernel(p, MatmulConfig(), 132), *specs).resources.registers == 168


@pytest.mark.parametrize("dtype", [f32, kd.int32, kd.int64], ids=str)
@pytest.mark.parametrize("K", [1, 16, 17])
@pytest.mark.sampled(60, "machine code")
def test_short_sums_by_lanes_do_not_spill(dtype: Any, K: int) -> None:
    found = routed(4097, 4097, K, dtype, True, True)
    stages = found.multiply(132).lower(Spec((K, 4097), dtype), Spec((4097, K), dtype), target="sm_80")
    assert found.kernel == "lane" and stages.compile().resources.spills == 0


@pytest.mark.parametrize(("ta", "tb"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.sampled(60, "machine code")
def test_float64_does_not_spill(ta: bool, tb: bool) -> None:
    for n in (2048, 2047):
        found = routed(n, n, n, f64, ta, tb)
        assert found.kernel == "tile"
        compiled = found.multiply(132).lower(Spec((n, n), f64), Spec((n, n), f64), target="sm_90a").compile()
        assert compiled.resources.spills == 0 and "m16n8k16" in compiled.ptx


@pytest.mark.parametrize("opens", [False, True], ids=["one M", "any M"])
@pytest.mark.parametrize("high", [False, True])
def test_long_tiles_of_lanes_load_a_row_ahead(high: bool, opens: bool) -> None:
    """Those whose long side lies along K, too: they have the registers for it, and none spills."""
    m, n, config = (3063, 56, LaneConfig(128, 8)) if high else (6, 4528, LaneConfig(8, 128))
    p = Problem(m, n, 2432, f32, f32, f32, b_transposed=True, parts=6)
    kernel = lane_kernel(opened(p) if opens else p, config)
    a, b = Spec((m, 2432), f32), Spec((n, 2432), f32)
    made = kernel.lower(a, b, target="sm_90a").compile()
    assert made.resources.registers >= 90 and made.resources.spills == 0


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.sampled(60, "machine code")
def test_large_tiles_of_lanes_for_any_m_do_not_spill(ta: bool) -> None:
    """Nor do copies of whole slices compare rows with M: with masks in each copy they ran at 0.90 to 0.95 of those of one M."""
    p = Problem(500, 1024, 1024, f32, f32, f32, a_transposed=ta, b_transposed=True, parts=4)
    sides = Spec((1024, 500) if ta else (500, 1024), f32), Spec((1024, 1024), f32)
    made = lane_kernel(opened(p, 4 if ta else 1), LaneConfig()).lower(*sides, target="sm_90a").compile()
    copies = [block for block in re.split(r"\n\$L|\tbra", made.ptx) if "cp.async.c" in block and "fma" not in block]
    assert made.resources.spills == 0 and any("setp" not in block for block in copies)
