"""No kernel of attention with options spills: gradients of these sizes and of any, ragged lengths and pages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import attention_backward
from kernel_dsl.library.attention_forward.options import AttentionOptions
from kernel_dsl.library.attention_gradients.checks import ORDERED

from . import attention_reference as reference

bf16, f32 = kd.bfloat16, kd.float32

SPILLS: list[tuple[str, dict[str, Any]]] = [
    ("window", {"causal": True, "window": 1024}),
    ("softcap", {"causal": "bottom_right", "softcap": 30.0}),
    ("bias", {"bias": kd.ShapeDtypeStruct((1, 1, 4090, 4090), bf16)}),
    ("softcap and bias", {"softcap": 30.0, "bias": kd.ShapeDtypeStruct((1, 16, 1, 4090), f32)}),
    ("full bias", {"bias": kd.ShapeDtypeStruct((1, 16, 4090, 4090), f32)}),
    ("tiles of a bias", {"bias": kd.ShapeDtypeStruct((1, 16, 4096, 4096), bf16)}),
    ("tiles of a bias in turn", {"bias": kd.ShapeDtypeStruct((1, 16, 4096, 4096), bf16), "deterministic": True}),
    ("alibi", {"score_mod": reference.alibi}),
    ("ragged", {"causal": True, "q_seqlens": kd.ShapeDtypeStruct((9,), kd.int32)}),
    ("ragged softcap", {"softcap": 9.0, "q_seqlens": kd.ShapeDtypeStruct((9,), kd.int32)}),
    ("in turn", {"window": 1024, "deterministic": True}),
    ("ragged in turn", {"causal": True, "q_seqlens": kd.ShapeDtypeStruct((9,), kd.int32), "deterministic": True}),
    (
        "ragged softcap in turn",
        {"softcap": 9.0, "q_seqlens": kd.ShapeDtypeStruct((9,), kd.int32), "deterministic": True},
    ),
]


@pytest.mark.parametrize("dims", [(64, 64), (80, 80), (128, 128), (192, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("case", SPILLS, ids=lambda c: c[0])
@pytest.mark.sampled(60, "machine code")
def test_no_spills(dims: tuple[int, int], case: Any) -> None:
    options = case[1]
    ragged = "q_seqlens" in options
    if ragged and "deterministic" in options and max(dims) > ORDERED:
        pytest.skip("the general kernel does it")
    n = 4096 if "tiles" in case[0] else 4090
    q, k, v, out = (
        kd.ShapeDtypeStruct((n, h, d) if ragged else (1, h, n, d), bf16)
        for h, d in ((16, dims[0]), (4, dims[0]), (4, dims[1]), (16, dims[1]))
    )
    lse = kd.ShapeDtypeStruct((16, n) if ragged else (1, 16, n), f32)
    stages = attention_backward.lower(out, q, k, v, out, lse, **options, target="sm_90a")
    assert stages[1].name.startswith("attention_backward_scored")
    for one in [stages[1], *(x for x in stages if x.name == "attention_backward_bias")]:
        compiled = one.compile()
        assert compiled.resources.spills == 0 and not compiled.remarks, one.name


ANY: list[tuple[str, tuple[int, int], bool, dict[str, Any]]] = [
    ("softcap", (128, 64), False, {"softcap": 60.0}),
    ("softcap, top left", (128, 128), False, {"softcap": 60.0, "causal": True}),
    ("softcap in turn", (128, 128), True, {"softcap": 60.0, "causal": "bottom_right"}),
    ("alibi in turn", (128, 128), True, {"score_mod": reference.alibi, "causal": True}),
    ("bias, bottom right", (120, 128), False, {"bias": (1, 1, f32), "causal": "bottom_right"}),
    ("bias, top left", (128, 64), False, {"bias": (1, 1, f32), "causal": True}),
    ("bias in turn", (128, 128), True, {"bias": (1, 1, bf16), "causal": "bottom_right"}),
    ("softcap and bias", (64, 128), False, {"bias": (0, 1, f32), "softcap": 60.0, "causal": True}),
    ("wide", (256, 64), False, {"bias": (0, 1, f32), "causal": True}),
    ("wide with all scores", (256, 256), False, {"bias": (1, 1, bf16)}),
]


@pytest.mark.parametrize("heads", [(16, 4), (16, 16)], ids=str)
@pytest.mark.parametrize("case", ANY, ids=lambda c: c[0])
@pytest.mark.sampled(33)
def test_any_size(case: Any, heads: tuple[int, int]) -> None:
    """The kernel of the second sizes takes any; with few heads, blocks share the steps of the same keys."""
    _, dims, in_turn, options = case
    given, arrays, plan = options, (), None
    for batch, n in ((1, 4096), (2, 2048)):
        q, k, v, out = (
            kd.ShapeDtypeStruct((batch, h, n, d), bf16)
            for h, d in ((heads[0], dims[0]), (heads[1], dims[0]), (heads[1], dims[1]), (heads[0], dims[1]))
        )
        lse = kd.ShapeDtypeStruct((batch, heads[0], n), f32)
        if "bias" in options:
            by_batch, by_head, dtype = options["bias"]
            shape = (batch if by_batch else 1, heads[0] if by_head else 1, n, n)
            given = options | {"bias": kd.ShapeDtypeStruct(shape, dtype)}
        arrays, wanted = (out, q, k, v, out, lse), AttentionOptions(**given)
        plan: Any = attention_backward._plan(arrays, wanted, in_turn, None, None).main
    assert plan.sizes is not None
    padded = -(-n // plan.config.block_q) * plan.config.block_q
    stats = kd.ShapeDtypeStruct((batch, heads[0], 2, padded), f32)
    numbers = [np.int32(1), kd.ShapeDtypeStruct((plan.sizes.splits,), f32)]
    more = [given["bias"]] if "bias" in given else []
    compiled = plan.main.lower(q, k, v, out, stats, *numbers, *more, target="sm_90a").compile()
    assert compiled.resources.spills == 0 and not compiled.remarks


@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("causal", [False, "bottom_right"])
@pytest.mark.parametrize("dim", [24, 40, 64, 80, 96, 128, 256])
@pytest.mark.sampled(60, "machine code")
def test_ragged_does_not_spill(dim: int, causal: Any, softcap: float | None) -> None:
    q, starts = kd.ShapeDtypeStruct((8192, 16, dim), bf16), kd.ShapeDtypeStruct((9,), kd.int32)
    options: dict[str, Any] = {"q_seqlens": starts, "causal": causal, "softcap": softcap, "return_lse": True}
    compiled = kd.library.attention.lower(q, q, q, **options, target="sm_90a").compile()
    assert compiled.resources.spills == 0 and not compiled.remarks


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("dim, page", [(64, 128), (80, 64), (136, 16), (256, 16)])
@pytest.mark.sampled(60, "machine code")
def test_pages_do_not_spill(dim: int, page: int, ragged: bool) -> None:
    """Nor where a producer keeps the numbers of several pages."""
    q = kd.ShapeDtypeStruct((4090, 16, dim) if ragged else (2, 16, 1000, dim), bf16)
    k, lengths = kd.ShapeDtypeStruct((200, 16, page, dim), bf16), kd.ShapeDtypeStruct((2,), kd.int32)
    options: dict[str, Any] = {"page_table": kd.ShapeDtypeStruct((2, 4096 // page), kd.int32), "kv_seqlens": lengths}
    options |= {"q_seqlens": kd.ShapeDtypeStruct((3,), kd.int32)} if ragged else {}
    compiled = kd.library.attention.lower(q, k, k, **options, return_lse=True, target="sm_90a").compile()
    assert compiled.resources.spills == 0 and not compiled.remarks


@pytest.mark.parametrize("causal", [False, "bottom_right"])
@pytest.mark.parametrize("page", [8, 16, 64, 128, 256])
@pytest.mark.parametrize("dim", [64, 128, 192, 256])
@pytest.mark.sampled(12)
def test_pages_of_any_length_do_not_spill(dim: int, page: int, causal: Any) -> None:
    """The kernel of the second lengths, whose counter hands out tiles to the blocks."""
    attention = type(kd.library.attention)()
    given, q, k = AttentionOptions(), None, None
    for batch in (40, 64):
        q = kd.ShapeDtypeStruct((batch, 16, 300, dim), bf16)
        k = kd.ShapeDtypeStruct((batch * 4096 // page, 4, page, dim), bf16)
        table = kd.ShapeDtypeStruct((batch, 4096 // page), kd.int32)
        lengths = kd.ShapeDtypeStruct((batch,), kd.int32)
        given = AttentionOptions(causal=causal, page_table=table, kv_seqlens=lengths)
        plan = attention._plan(q, k, k, given, False, None, "sm_90a")
    assert plan.opened
    stages = plan.lower(q, k, k, given, "sm_90a")
    assert any(op.op_name == "atomic_rmw" for op in stages.ir.walk())
    compiled = stages.compile()
    assert compiled.resources.spills == 0 and not compiled.remarks
