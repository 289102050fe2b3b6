"""kd.library.attention: groups, head dimensions, and how tiles are dealt."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.attention_forward.kernel import attention_kernel
from kernel_dsl.library.attention_forward.sizes import (
    AttentionConfig,
    AttentionProblem,
    dealt,
    default_config,
    heads_together,
)
from tests.hopper.helpers import random, relative

from . import attention_reference as reference

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f16, f32 = kd.bfloat16, kd.float16, kd.float32


# (batch, heads, key heads, queries, keys, dim, causal)
ATTENTIONS = [
    (1, 2, 2, 256, 256, 128, False),
    (1, 2, 1, 256, 256, 128, True),
    (2, 1, 1, 200, 300, 64, False),
    (1, 4, 2, 200, 300, 64, True),
    (1, 1, 1, 200, 170, 256, True),
    (1, 1, 1, 300, 191, 64, True),
    (1, 1, 1, 130, 100, 256, False),
    (1, 1, 1, 1, 77, 128, False),
]


@pytest.mark.parametrize("case", ATTENTIONS, ids=str)
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.sampled(33)
def test_attention(case: Any, dtype: Any, rng: Any) -> None:
    B, H, G, Q, S, D, causal = case
    q = random(rng, (B, H, Q, D), dtype)
    k, v = random(rng, (B, G, S, D), dtype), random(rng, (B, G, S, D), dtype)
    expected, lse = reference.plain(q, k, v, causal)
    schedule = kd.InterpretParams(schedule="late" if dtype == bf16 else "random")
    got, sums = kd.library.attention(q, k, v, causal=causal, return_lse=True, interpret=schedule)
    assert kd.library.attention.lower(q, k, v, causal=causal).name == "attention"
    assert relative(got, expected) < (8e-3 if dtype == bf16 else 2e-3)
    assert np.abs(sums - lse).max() < 1e-5
    assert np.array_equal(kd.library.attention(q, k, v, causal=causal, interpret=schedule), got)


LONGER = [
    (None, (1, 4, 2, 400, 400, 64, True)),
    (None, (1, 2, 2, 300, 330, 64, False)),
    (None, (1, 2, 1, 300, 300, 128, True)),
    (None, (1, 2, 2, 200, 130, 128, False)),
    (None, (1, 2, 1, 150, 200, 256, True)),
    (AttentionConfig(2, 96, 3, turns=True), (1, 2, 1, 300, 300, 64, True)),
    (AttentionConfig(2, 128, 2), (1, 2, 1, 300, 300, 128, True)),
    (AttentionConfig(1, 64, 2), (1, 2, 1, 200, 200, 64, True)),
]


@pytest.mark.parametrize(("config", "case"), LONGER, ids=str)
@pytest.mark.sampled(39)
def test_attention_on_few_blocks(config: Any, case: Any, interpret: Any, rng: Any) -> None:
    """Three blocks, so that each has several tiles; the default configurations where none is given."""
    B, H, G, Q, S, D, causal = case
    q = (random(rng, (B, H, Q, D), f32) * 3).astype(bf16.numpy)  # so that maxima rise beyond the slack
    k, v = random(rng, (B, G, S, D), bf16), random(rng, (B, G, S, D), bf16)
    expected, lse = reference.plain(q, k, v, causal)
    problem = AttentionProblem(B, H, G, Q, S, D, bf16, causal, D**-0.5, True)
    got, sums = attention_kernel(problem, config or default_config(problem), 3)(q, k, v, interpret=interpret)
    assert relative(got, expected) < 8e-3
    assert np.abs(sums - lse).max() < 1e-5


@pytest.mark.parametrize(("length", "heads", "tile", "keys"), [
    (16384, 16, 128, 128), (4096, 64, 128, 128), (16384, 16, 192, 128), (4096, 64, 192, 128), (4096, 64, 128, 80),
])  # fmt: skip
def test_causal_tiles_are_dealt_evenly(length: int, heads: int, tile: int, keys: int) -> None:
    """No block of 132 has much more than its share, and few heads are under way at a time."""
    lengths = [-(-(i + 1) * tile // keys) + 1 for i in range(-(-length // tile))]
    together = heads_together(lengths, heads, 132)
    order = dealt(lengths, heads, together)
    assert sorted(order) == sorted(lengths * heads) and together <= 8
    assert max(sum(order[i::132]) for i in range(132)) <= 1.03 * sum(order) / 132


@pytest.mark.parametrize(
    "dims", [(64, 64), (192, 192), (256, 256), (80, 80), (192, 128), (200, 200), (248, 256)], ids=str
)
@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.sampled(14, "machine code")
def test_every_head_dimension_has_tiles_of_few_consumers(dims: Any, consumers: int) -> None:
    """One consumer has as many registers as its output needs: half of a multiprocessor's, or more."""
    q, k, v = (kd.ShapeDtypeStruct((2, 4, 64, dim), bf16) for dim in (dims[0], *dims))
    how: dict[str, Any] = {"config": AttentionConfig(consumers, 32, 2), "target": "sm_90a"}
    assert kd.library.attention.lower(q, k, v, **how).compile().resources.spills == 0


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.sampled(60, "machine code")
def test_attention_has_no_spills(dim: int, causal: bool) -> None:
    spec = kd.ShapeDtypeStruct((1, 16, 4096, dim), bf16)
    compiled = kd.library.attention.lower(spec, spec, spec, causal=causal).compile()
    assert compiled.resources.spills == 0 and not compiled.remarks


def test_heads_that_are_one_in_memory(interpret: Any) -> None:
    """Keys and values whose heads were made by `expand`: their strides are 0."""
    torch = pytest.importorskip("torch")
    device = "cpu" if interpret else "cuda"
    q = torch.randn(1, 4, 128, 64, device=device).bfloat16()
    k, v = (torch.randn(1, 1, 128, 64, device=device).bfloat16().expand(1, 4, 128, 64) for _ in range(2))
    got = kd.library.attention(q, k, v, interpret=interpret)
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert relative(got.double().cpu().numpy(), expected.cpu().numpy()) < 8e-3


def test_strides_of_one_element(rng: Any, caplog: Any) -> None:
    """The stride of an axis with one element is any number: TMA does not use it."""
    q, k, v = (random(rng, (1, 2, 70, 64), bf16) for _ in range(3))
    expected = kd.library.attention(q, k, v, interpret=True)
    odd = [np.lib.stride_tricks.as_strided(x, x.shape, (2 * 7, *x.strides[1:])) for x in (q, k, v)]
    with caplog.at_level(logging.INFO, "kernel_dsl"):
        assert np.array_equal(kd.library.attention(*odd, interpret=True), expected)
    assert "general kernel" not in caplog.text


@pytest.mark.parametrize(("dtype", "dim", "bound"), [
    (f32, 40, 1e-5), (kd.float64, 40, 1e-5), (kd.float8_e5m2, 64, 8e-3), (bf16, 8, 8e-3), (f16, 36, 2e-3), (bf16, 264, 8e-3),
], ids=str)  # fmt: skip
def test_general_attention(dtype: Any, dim: int, bound: float, rng: Any, caplog: Any) -> None:
    """The dtypes and dimensions that tensor cores don't take: right, and said in the log."""
    q, k, v = (random(rng, (1, heads, length, dim), dtype) for heads, length in ((2, 9), (1, 30), (1, 30)))
    expected, lse = reference.plain(q, k, v, True)
    with caplog.at_level(logging.INFO, "kernel_dsl"):
        got, sums = kd.library.attention(q, k, v, causal=True, return_lse=True, interpret=True)
    assert relative(got, expected) < bound and np.abs(sums - lse).max() < 1e-5
    assert (
        f"{dtype} is no 16-bit float" in caplog.text or f"dimension of {dim} is no multiple of 8 from 16" in caplog.text
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1024, 1000])
def test_long_attention_on_a_gpu(dim: int, causal: bool, length: int, rng: Any) -> None:
    q = random(rng, (2, 4, length, dim), bf16)
    k, v = random(rng, (2, 2, length, dim), bf16), random(rng, (2, 2, length, dim), bf16)
    expected, lse = reference.plain(q, k, v, causal)
    got, sums = kd.library.attention(q, k, v, causal=causal, return_lse=True, interpret=False)
    assert relative(got, expected) < 1e-2 and np.abs(sums - lse).max() < 1e-3
