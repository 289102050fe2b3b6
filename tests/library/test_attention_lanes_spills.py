"""The kernels whose lanes multiply, of every dtype and head dimension, do not spill."""

from __future__ import annotations

from typing import Any

import pytest

import kernel_dsl as kd

bf16, f32, f64 = kd.bfloat16, kd.float32, kd.float64
Struct = kd.ShapeDtypeStruct
TARGETS = {bf16: "sm_80", f32: "sm_90a", f64: "sm_90a"}  # whose tensor cores the library does not use for these
DIMS = [
    (n, n)
    for n in (1, 4, 7, 12, 16, 20, 24, 40, 64, 72, 80, 96, 100, 104, 120, 128, 136, 160, 192, 200, 224, 256, 300, 512)
]
UNLIKE = [(104, 80), (136, 128), (64, 256), (256, 64), (192, 128), (33, 200)]
OPTIONS: list[dict[str, Any]] = [{}, {"softcap": 30.0, "causal": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: " ".join(o) or "plain")
@pytest.mark.parametrize("dtype", TARGETS, ids=str)
@pytest.mark.parametrize("dims", [*DIMS, *UNLIKE], ids=str)
@pytest.mark.sampled(12, "machine code")
def test_no_spills(dims: tuple[int, int], dtype: kd.DType, options: dict[str, Any]) -> None:
    dim, v_dim = dims
    q, k, v, out = (
        Struct((2, n, m, d), dtype) for n, m, d in ((4, 333, dim), (2, 500, dim), (2, 500, v_dim), (4, 333, v_dim))
    )
    lse = Struct((2, 4, 333), f32)
    forward = kd.library.attention.lower(q, k, v, **options, target=TARGETS[dtype])
    for stages in (
        forward,
        *kd.library.attention_backward.lower(out, q, k, v, out, lse, **options, target=TARGETS[dtype]),
    ):
        assert "general" in stages.name
        assert stages.compile().resources.spills == 0, stages.name
