"""kd.library.attention of float8: bounds of scores by norms, and scales."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import AttentionConfig, attention_scored
from kernel_dsl.library.attention_norms import norms_kernel
from kernel_dsl.library.attention_options import AttentionOptions, problem_of
from tests.hopper.helpers import random

from . import attention_reference as reference
from .test_attention_options import check, inputs

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]
f32, e4m3 = kd.float32, kd.float8_e4m3fn


def test_norms_pay_for_large_problems() -> None:
    """Norms are computed from 2^26 scores on; later where masks hide some, or products take longer than exponentials."""

    def guarded(length: int, dim: int = 128, **options: Any) -> bool:
        like = kd.ShapeDtypeStruct((1, 16, length, dim), e4m3)
        p = problem_of(like, like, like, AttentionOptions(**options), False)
        return attention_scored.guards(replace(p, dtype=kd.bfloat16, narrow=e4m3))

    assert [guarded(n) for n in (1024, 2048, 4096)] == [False, True, True]
    assert [guarded(n, causal=True) for n in (2048, 4096)] == [False, True]
    assert [guarded(n, window=512) for n in (2048, 4096)] == [False, True]
    assert [guarded(n, 256) for n in (2048, 4096)] == [False, True]
    assert not guarded(4096, softcap=30.0)


@pytest.mark.parametrize("guarded", [False, True], ids=["a maximum", "norms"])
@pytest.mark.parametrize("k_scale", [0.0, -0.7])
def test_float8_scales_of_any_sign(k_scale: float, guarded: bool, rng: Any, monkeypatch: Any) -> None:
    """Masked scores count for nothing, whatever they would be multiplied by."""
    monkeypatch.setattr(attention_scored, "GUARDED", 0 if guarded else 2**62)
    q, k, v = inputs(rng, 1, 2, 1, 100, 100, 64, 64, e4m3)
    got = type(kd.library.attention)()(q, k, v, k_scale=k_scale, causal=True, return_lse=True, interpret=True)
    check(got, reference.attention(q, k.astype(np.float64) * k_scale, v, causal=True), e4m3)


def norm(x: Any) -> float:
    """The largest norm of a row."""
    return float(np.linalg.norm(x.astype(np.float64), axis=-1).max())


@pytest.mark.parametrize("size", [1.0, 6.0], ids=["without a maximum", "with one"])
@pytest.mark.parametrize(
    "names", [(), ("causal",), ("window", "sinks"), ("ragged", "causal"), ("documents",)], ids="-".join
)
@pytest.mark.parametrize("config", [None, AttentionConfig(1, 32, 2), AttentionConfig(2, 64, 2, turns=True)], ids=str)
@pytest.mark.sampled(6)
def test_float8_norms(size: float, names: Any, config: Any, interpret: Any, rng: Any, monkeypatch: Any) -> None:
    """Where norms bound scores, weights are exponentials of scores; otherwise they are relative to a maximum."""
    monkeypatch.setattr(attention_scored, "GUARDED", 0)
    q, k, v = inputs(rng, 1, 4, 2, 200, 200, 64, 64, e4m3)
    q, k = ((x.astype(np.float32) * size).astype(e4m3.numpy) for x in (q, k))
    q[0, 3] = (q[0, 3].astype(np.float32) * 8).astype(e4m3.numpy)  # heads have bounds of their own
    options: dict[str, Any] = {"causal": "causal" in names, "window": 70 if "window" in names else None}
    if "sinks" in names:
        options["sinks"] = random(rng, (4,), f32)
    if "documents" in names:
        options["mask_mod"] = lambda b, h, i, j: i // 60 == j // 60
    # of products of float8, whose sum is at most |q| |k|, Hopper's tensor cores keep 14 bits or so
    lost = 2.0**-13 * norm(q) * norm(k) / 8 if interpret is False else 0.0
    call = type(kd.library.attention)()
    if "ragged" not in names:
        got = call(q, k, v, **options, config=config, return_lse=True, interpret=interpret)
        check(got, reference.attention(q, k, v, **options), e4m3, lost)
        return
    lengths = np.array([0, 90, 90, 200], np.int32)
    rows = [np.ascontiguousarray(x[0].swapaxes(0, 1)) for x in (q, k, v)]
    out, lse = call(
        *rows, q_seqlens=lengths, kv_seqlens=lengths, **options, config=config, return_lse=True, interpret=interpret
    )
    for first, end in ((0, 90), (90, 200)):
        part = reference.attention(*(x[:, :, first:end] for x in (q, k, v)), **options)
        check((out[first:end].swapaxes(0, 1)[None], lse[None, :, first:end]), part, e4m3, lost)


def test_norms(rng: Any, interpret: Any) -> None:
    """The largest squared norm of each head, as bits; NaN is above all."""
    q, k = random(rng, (2, 3, 300, 40), e4m3), random(rng, (2, 1, 100, 40), e4m3)
    k[1, 0, 99, 39] = np.nan
    made = norms_kernel("bhsd", False, 3, 1, 40, e4m3)(q, k, interpret=interpret)
    squares = [(x.astype(np.float64) ** 2).sum(3).max((0, 2)) for x in (q, k)]
    assert np.allclose(np.asarray(made).view(np.float32)[:3], squares[0], rtol=1e-5)
    assert not np.asarray(made).view(np.float32)[3] <= squares[1].max() or np.isnan(squares[1]).any()


def test_small_problems_have_no_norms() -> None:
    """Norms need a launch. A kernel with norms has the exponentials of both loops, of 40 scores a lane each."""
    found: list[bool] = []
    for length in (1024, 4096):
        spec = kd.ShapeDtypeStruct((1, 16, length, 128), e4m3)
        ptx = kd.library.attention.lower(spec, spec, spec, target="sm_90a").ptx
        found.append(ptx.count("ex2.approx") > 2 * 40)
    assert found == [False, True]
