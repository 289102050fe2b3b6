"""kd.library.attention of float8: bounds of scores by norms, and scales."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import AttentionConfig
from kernel_dsl.library.attention_forward import scored as attention_scored
from kernel_dsl.library.attention_forward import scored_shared as attention_scored_shared
from kernel_dsl.library.attention_forward.norms import norms_kernel
from kernel_dsl.library.attention_forward.options import AttentionOptions, problem_of
from kernel_dsl.library.attention_forward.problem import ScoredProblem
from kernel_dsl.library.attention_forward.scored_config import tiles_of
from kernel_dsl.library.attention_forward.scored_kernel import scored_kernel
from kernel_dsl.library.attention_forward.scored_shared import SharedTiles, shared_tiles
from tests.hopper.helpers import random

from . import attention_reference as reference
from .test_attention_options import check, inputs

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]
f32, e4m3 = kd.float32, kd.float8_e4m3fn


@pytest.mark.parametrize("dim", [64, 72, 200])
def test_a_description_has_rows_without_gaps(dim: int) -> None:
    """TMA can't load rows of float8 whose length is no multiple of 16: queries and keys are widened."""
    spec = kd.ShapeDtypeStruct((1, 2, 8, dim), e4m3)
    attention = type(kd.library.attention)()
    assert attention.lower(spec, spec, spec, target="sm_90a").ptx
    (plan,) = attention._plans.values()
    assert plan.inner.narrow == (e4m3 if dim % 16 == 0 else None)


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
@pytest.mark.sampled(15)
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


def guarded_problem(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, dim: int = 64, **options: Any
) -> ScoredProblem:
    """The problem of the kernel with both loops."""
    q, k = (kd.ShapeDtypeStruct((batch, n, m, dim), e4m3) for n, m in ((heads, queries), (kv_heads, keys)))
    p = problem_of(q, k, k, AttentionOptions(**options), True)
    return replace(p, dtype=kd.bfloat16, narrow=e4m3, guarded=True)


@pytest.mark.parametrize("size", [1.0, 6.0], ids=["without a maximum", "with one"])
@pytest.mark.parametrize(
    ("heads", "queries", "blocks", "shared"),
    [((1, 2, 2), 310, 3, SharedTiles(1, 1, 1, 3, 9, 12)), ((2, 2, 1), 500, 7, SharedTiles(2, 2, 2, 3, 28, 40)),
     ((1, 4, 2), 180, 5, SharedTiles(2, 2, 1, 2, 10, 14))],
    ids=str,
)  # fmt: skip
@pytest.mark.sampled(6)
def test_the_last_tiles_are_shared(
    size: float, heads: Any, queries: int, blocks: int, shared: Any, interpret: Any, rng: Any, monkeypatch: Any
) -> None:
    """Several blocks share the keys of each tile that whole rounds leave; the last of them joins their results."""
    monkeypatch.setattr(attention_scored_shared, "JOIN", 1)  # as if tiles had many steps
    q, k, v = inputs(rng, *heads, queries, 530, 64, 64, e4m3)
    q, k = ((x.astype(np.float32) * size).astype(e4m3.numpy) for x in (q, k))
    p, config = guarded_problem(*heads, queries, 530), AttentionConfig(1, 16, 2)
    work = tiles_of(p, config) * p.batch * p.heads
    assert shared_tiles(p, config, work, p.heads // p.kv_heads, blocks) == shared
    norms = norms_kernel("bhsd", False, p.heads, p.kv_heads, 64, e4m3)(q, k, interpret=interpret)
    got = scored_kernel(p, config, blocks)(q, k, v.astype(kd.bfloat16.numpy), norms, interpret=interpret)
    lost = 2.0**-13 * norm(q) * norm(k) / 8 if interpret is False else 0.0
    check(got, reference.attention(q, k, v), e4m3, lost)


def test_tiles_are_shared_where_that_ends_earlier() -> None:
    """As many blocks share a tile as fill the last round; none where it is full, after many rounds, with masks, or
    of few keys, and none where it would spill.
    """
    config = AttentionConfig(3, 80, 4)

    def shared(
        batch: int, heads: int, kv_heads: int, length: int, keys: int = 0, dim: int = 128, **options: Any
    ) -> Any:
        p = guarded_problem(batch, heads, kv_heads, length, keys or length, dim, **options)
        return shared_tiles(p, config, tiles_of(p, config) * batch * heads, heads // kv_heads, 132)

    assert shared(1, 16, 16, 16384) == SharedTiles(15, 1, 56, 2, 1320, 1432)
    assert shared(1, 32, 8, 8192) == SharedTiles(28, 4, 14, 2, 1320, 1432)
    assert shared(3, 16, 16, 16384) == SharedTiles(47, 1, 36, 3, 4092, 4200)
    none = (1, 64, 8, 16384), (4, 16, 16, 4096), (1, 132, 132, 4096), (1, 16, 16, 16384, 1024)
    assert [shared(*case) for case in none] == [None] * 4
    assert shared(1, 16, 16, 16384, dim=64) is None
    assert shared(1, 16, 16, 16384, causal=True) is None and shared(1, 16, 16, 16384, window=512) is None


@pytest.mark.parametrize("dim", [128, 256])
@pytest.mark.sampled(2)
def test_kernels_that_share_tiles_do_not_spill(dim: int) -> None:
    spec = kd.ShapeDtypeStruct((1, 16, 16384, dim), e4m3)
    compiled = kd.library.attention.lower(spec, spec, spec, return_lse=True, target="sm_90a").compile()
    assert compiled.resources.spills == 0 and not compiled.remarks
    assert (
        len(compiled.stages.kernel.workspaces) == 4
    )  # sums and rows of shared tiles, their semaphores and the counter


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


@pytest.mark.parametrize("dim", [32, 48, 64])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 500}, {"sinks": True}], ids=str)
@pytest.mark.parametrize("length", [4090, 16384], ids=["one loop", "two loops"])
@pytest.mark.sampled(6, "machine code")
def test_logarithms_do_not_spill(dim: int, options: dict[str, Any], length: int) -> None:
    """The logarithms of sums take registers, in kernels of float8 with one loop and with two."""
    q = kd.ShapeDtypeStruct((1, 16, length, dim), e4m3)
    sinks = {"sinks": kd.ShapeDtypeStruct((16,), kd.float32)} if "sinks" in options else {}
    stages = kd.library.attention.lower(q, q, q, **options | sinks, return_lse=True, target="sm_90a")
    compiled = stages.compile()
    assert compiled.resources.spills == 0 and not compiled.remarks
