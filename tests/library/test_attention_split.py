"""Attention of few queries over many keys, whose tiles share the keys of a head, against float64."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import AttentionConfig, attention
from kernel_dsl.library.attention_forward import scored as attention_scored
from kernel_dsl.library.attention_forward.kernel import attention_kernel
from kernel_dsl.library.attention_forward.opened import NumberedPlan, opened
from kernel_dsl.library.attention_forward.options import AttentionOptions, problem_of
from kernel_dsl.library.attention_forward.scored import ScoredPlan, scored_splits
from kernel_dsl.library.attention_forward.scored_config import computed, few_config, short_config, step_counts
from kernel_dsl.library.attention_forward.sizes import AttentionProblem, default_config
from kernel_dsl.library.attention_forward.split import SMALL, SplitPlan, combine_kernel, small_config, splits_of
from kernel_dsl.library.attention_gradients.order import KEYS
from kernel_dsl.library.attention_gradients.scored import scored_backward_config
from kernel_dsl.library.attention_gradients.scored_sizes import query_steps
from kernel_dsl.library.first_sizes import _later, dim_of
from tests.hopper.helpers import random, relative

from . import attention_reference as reference

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]
bf16 = kd.bfloat16
FEW = AttentionConfig(1, 32, 2)


def problem(batch: int, heads: int, queries: int, keys: int, causal: bool = False) -> AttentionProblem:
    return AttentionProblem(batch, heads, heads, queries, keys, 64, bf16, causal, 0.125, False)


def test_how_many() -> None:
    """As many as there are multiprocessors for, of two blocks or more; none where tiles are enough, or causal, or where
    combining the parts would take longer than they save.
    """
    assert [splits_of(problem(1, 64, 64, n), FEW, 132) for n in (16384, 512, 511, 480)] == [2, 2, 2, 1]
    assert [splits_of(problem(1, 8, 64, n), FEW, 132) for n in (16384, 512, 480, 320, 288)] == [16, 8, 5, 5, 1]
    # fewer parts if the longest is no longer: of 1024 blocks, 132 and 128 parts have eight
    assert [splits_of(problem(1, n, 64, 2**16), FEW, 132) for n in (1, 16, 67, 200)] == [128, 8, 1, 1]
    assert splits_of(problem(1, 2, 64, 2**16, True), FEW, 132) == 1
    assert splits_of(problem(0, 2, 64, 2**16), FEW, 132) == 1


def plans() -> list[Any]:
    return [plan for plan in kd.library.attention._plans.values() if isinstance(plan, SplitPlan)]


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("shape", [(1, 2, 1, 70, 515), (2, 1, 1, 20, 600)], ids=str)
@pytest.mark.sampled(14)
def test_values(shape: Any, layout: str, interpret: Any, rng: Any) -> None:
    """With tails of queries and keys, into given arrays, and again with other lengths and splits, by a kernel for any."""
    batch, heads, kv_heads, queries, keys = shape

    def laid(x: Any) -> Any:
        return x if layout == "bhsd" else np.ascontiguousarray(x.swapaxes(1, 2))

    kd.library.attention._plans.clear()
    for more in (0, 41, 800):
        q, k, v = (
            random(rng, (batch, h, n, 64), bf16)
            for h, n in ((heads, queries), (kv_heads, keys + more), (kv_heads, keys + more))
        )
        wanted = reference.attention(q, k, v)
        lse, how = np.full(q.shape[:3], np.nan, np.float32), {"layout": layout, "config": FEW, "interpret": interpret}
        q, k, v = laid(q), laid(k), laid(v)
        out = np.full(q.shape, np.nan, np.float32).astype(bf16.numpy)
        kd.library.attention(q, k, v, return_lse=True, out=(out, lse), **how)
        assert relative(out, laid(wanted.out)) < 6e-3 and np.abs(lse - wanted.lse).max() < 2e-3
    assert len(plans()) == 3 and len({plan.combine for plan in plans()}) == 2
    got = kd.library.attention(q, k, v, **how)
    assert np.array_equal(np.asarray(got).view(np.uint16), out.view(np.uint16))


OPTIONS: dict[str, dict[str, Any]] = {
    "a dimension of 80": {},
    "bottom right": {"causal": "bottom_right"},
    "more queries": {"causal": "bottom_right", "queries": 700},
    "window": {"causal": "bottom_right", "window": 330},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": np.array([0.5, -1.0], np.float32)},
    "bias": {"bias": 2},
    "alibi": {"score_mod": reference.alibi},
    "documents": {"mask_mod": reference.documents},
    "a mask by heads": {"mask_mod": reference.by_head, "sinks": np.array([0.5, -1.0], np.float32)},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.sampled(20)
def test_options(name: str, layout: str, interpret: Any, rng: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles share keys with each option, also where a query sees none of a part, or no key at all; again with other
    lengths.
    """
    monkeypatch.setattr(attention_scored, "SHARED", 1)
    options, attention = dict(OPTIONS[name]), kd.library.attention
    queries = options.pop("queries", 20)
    for more in (0, 41):
        q, k, v = (
            random(rng, (1, h, n, dim), bf16)
            for h, n, dim in ((2, queries, 80), (1, 515 + more, 80), (1, 515 + more, 72))
        )
        if "bias" in options:
            options["bias"] = rng.standard_normal((2, queries, 515 + more)).astype(np.float32)
        wanted = reference.attention(q, k, v, **options)
        arrays = [x if layout == "bhsd" else np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
        attention._plans.clear()
        out, lse = attention(*arrays, layout=layout, config=FEW, return_lse=True, interpret=interpret, **options)
        plan = next(iter(attention._plans.values()))
        assert plan.combine is not None and plan.inner.splits > 2
        none = np.isneginf(wanted.lse)
        assert np.array_equal(np.isneginf(lse), none) and np.abs(lse[~none] - wanted.lse[~none]).max() < 2e-3
        got = out if layout == "bhsd" else out.swapaxes(1, 2)
        assert relative(got, wanted.out) < 8e-3 and not got[none].any()


def test_how_many_with_options() -> None:
    """By the tile of the most steps: no more where its keys are few, or hidden."""

    def splits(heads: int, queries: int, keys: int, **options: Any) -> int:
        q, k = (kd.ShapeDtypeStruct((1, heads, n, 80), bf16) for n in (queries, keys))
        p = problem_of(q, k, k, AttentionOptions(layout="bhsd", **options), False)
        return scored_splits(p, FEW, 132)

    assert [splits(8, 64, n) for n in (16384, 1300, 1024)] == [16, 14, 1]
    # two blocks of one consumer share a multiprocessor, if that gives up to eight parts
    assert [splits(n, 64, 16384) for n in (4, 16, 32, 64, 100, 200)] == [32, 8, 8, 4, 2, 1]
    assert [splits(8, 64, 16384, causal=mask) for mask in ("bottom_right", "top_left")] == [16, 1]
    assert [splits(8, 64, 16384, causal="bottom_right", window=n) for n in (1000, 3000)] == [1, 16]


def test_tiles_of_small_problems() -> None:
    """Those that end first: many tiles are as by default, and of other head dimensions all are."""
    many = problem(4, 16, 4096, 4096)
    assert small_config(many, 132) == default_config(many)
    assert [small_config(problem(b, 12, n, n), 132).consumers for b, n in ((2, 1000), (32, 128))] == [4, 1]
    assert small_config(replace(problem(1, 64, 128, 16384), dim=128), 132).consumers == 2
    assert small_config(replace(many, queries=100, dim=256), 132) == default_config(replace(many, dim=256))


def test_no_consumer_is_without_queries() -> None:
    """A tile for more queries than there are takes longer than its steps say."""
    for dim, heads, queries, keys, causal in itertools.product(
        (64, 128, 192, 256), (1, 8, 64), (1, 64, 65, 128, 200), (64, 5000), (False, True)
    ):
        t = small_config(replace(problem(1, heads, queries, keys, causal), dim=dim), 132)
        assert (t.consumers - 1) * 64 < queries or (dim > 128 and queries > 64)
    for dims, queries, options in itertools.product(
        ((80, 80), (128, 128), (200, 200), (192, 128)), (1, 64, 65), ({}, {"softcap": 3.0}, {"window": 9})
    ):
        arrays = (
            kd.ShapeDtypeStruct((2, 4, n, d), bf16) for n, d in ((queries, dims[0]), (900, dims[0]), (900, dims[1]))
        )
        p = problem_of(*arrays, AttentionOptions(layout="bhsd", **options), False)
        assert (few_config(p, 132) is not None) == (queries <= 64)


def test_steps_of_causal_tiles() -> None:
    """Of long tiles the first ones have more steps than the mean of one and all suggests."""
    shapes = (64, 8, 300), (64, 4, 640), (64, 4, 900), (128, 2, 640), (128, 4, 400), (128, 4, 768)
    made = [small_config(replace(problem(b, 32, n, n, True), dim=dim), 132) for dim, b, n in shapes]
    assert [(t.consumers, t.block_kv) for t in made] == [(1, 128), (2, 128), (3, 128), (2, 128), (1, 64), (2, 128)]


def test_many_tiles_of_few_queries_are_smaller() -> None:
    """Up to 1024 queries at a dimension of 128, where three consumers leave an eighth of the last tiles empty, and up to
    2048 at 64.
    """

    def consumers(batch: int, length: int, causal: bool, dim: int = 128) -> int:
        return small_config(replace(problem(batch, 32, length, length), dim=dim, causal=causal), 132).consumers

    causal = [consumers(*case, True) for case in ((32, 300), (16, 1024), (8, 1000), (32, 2048))]
    assert causal == [1, 2, 2, 3] and [consumers(32, n, False) for n in (512, 2048)] == [2, 3]
    assert [consumers(64, 256, *case, 64) for case in ((True,), (False,))] == [2, 4]


def test_blocks_that_share_a_multiprocessor() -> None:
    """Two of one consumer are slower than one of two where they have several steps and several rounds."""

    def consumers(batch: int, heads: int, length: int, causal: bool) -> int:
        return small_config(problem(batch, heads, length, length, causal), 132).consumers

    assert [consumers(64, 16, n, True) for n in (128, 512)] == [1, 2] and consumers(1, 8, 1000, True) == 1
    assert [consumers(32, 12, 128, False), consumers(16, 16, 197, False)] == [1, 4]


def test_tiles_of_wide_heads() -> None:
    """Short sequences at a dimension of 256 have smaller tiles, and fewer keys a step; long ones keep theirs."""

    def made(batch: int, heads: int, length: int, causal: bool) -> tuple[int, int]:
        p = replace(problem(batch, heads, length, length, causal), dim=256)
        found = small_config(p, 132)
        return found.consumers, found.block_kv

    causal = [made(b, 16, n, True) for b, n in ((16, 256), (64, 256), (8, 400), (8, 512), (32, 512), (4, 4096))]
    assert causal == [(1, 64), (1, 64), (1, 64), (2, 64), (2, 64), (2, 80)]
    full = [made(*case, False) for case in ((16, 16, 256), (8, 16, 400), (64, 16, 128), (16, 16, 197), (1, 8, 16384))]
    assert full == [(2, 64), (2, 80), (1, 64), (2, 80), (2, 80)]


def test_tiles_of_short_sequences_with_options() -> None:
    """Those that end first; a window shortens all tiles alike, and long sequences keep theirs."""

    def consumers(batch: int, length: int, dim: int, **more: Any) -> tuple[int, int] | None:
        q = kd.ShapeDtypeStruct((batch, 16, length, dim), bf16)
        given = AttentionOptions(layout="bhsd", **more)
        found = short_config(problem_of(q, q, q, given, False), 132)
        return found and (found.consumers, found.block_kv)

    assert [consumers(48, n, 32, causal=n > 128) for n in (128, 256, 4096)] == [(2, 128), (4, 64), None]
    assert [consumers(64, n, 80, causal=True) for n in (128, 256, 1000)] == [(2, 128), (2, 128), None]
    assert consumers(64, 256, 80, window=64) == (2, 128) and consumers(64, 256, 80, softcap=99.0) is None
    assert consumers(1, 2000, 32, causal="bottom_right", window=100) == (2, 128)


def test_few_queries_have_one_consumer() -> None:
    """Of long steps if two blocks share a multiprocessor, or over many keys; without functions of scores."""

    def made(dim: int, keys: int, **options: Any) -> tuple[int, int]:
        q, k = (kd.ShapeDtypeStruct((2, 4, n, dim), bf16) for n in (64, keys))
        t = few_config(problem_of(q, k, k, AttentionOptions(layout="bhsd", **options), False), 132)
        assert t is not None and t.consumers == 1
        return t.block_kv, t.stages

    assert [made(n, 900) for n in (32, 80, 96, 112, 160, 200, 256)] == [(128, 2)] * 3 + [(64, 3), (80, 2)] + [
        (64, 2)
    ] * 2
    assert [made(n, 64) for n in (32, 128, 160)] == [(64, 3), (64, 3), (64, 2)]
    assert made(80, 900, softcap=3.0) == (64, 3)


def test_tiles_of_values_of_another_size() -> None:
    """Queries of 192 dims and values of 128 have two consumers where three leave much of their tiles empty; 64 queries of
    many heads have two blocks a multiprocessor.
    """
    plans = [
        ScoredPlan.of(problem_of(q, q, v, AttentionOptions(layout="bhsd"), False), None, 132, "", False, (), True)
        for q, v in (
            [kd.ShapeDtypeStruct((batch, 16, n, dim), bf16) for dim in (192, 128)]
            for batch, n in ((32, 64), (32, 128), (8, 197), (8, 256), (8, 400), (8, 1000))
        )
    ]
    assert [plan.tile for plan in plans] == [64, 128, 128, 128, 192, 192]
    assert [few_config(plan.problem, 132) for plan in plans[:2]] == [AttentionConfig(1, 48, 2), None]


def test_dimensions_that_are_computed() -> None:
    """Wide rows have a swizzle of 64 bytes or more; narrow rows have as few zeros as wgmma allows."""
    assert [computed(n) for n in (72, 80, 96, 104, 120, 144, 160, 168, 200, 208, 216, 224, 232)] == [
        80, 80, 96, 128, 128, 160, 160, 192, 256, 256, 224, 224, 256,
    ]  # fmt: skip
    assert [computed(n, kd.float8_e4m3fn) for n in (112, 144)] == [128, 160]


def test_steps_of_tiles() -> None:
    """They are the blocks with a key that some query of a tile sees, or with a query that sees some key."""
    for causal, window, (queries, keys) in itertools.product(
        (False, True, "bottom_right"), (None, 1, 70, 900), ((300, 300), (100, 700), (700, 100))
    ):
        q, k = (kd.ShapeDtypeStruct((1, 1, n, 64), bf16) for n in (queries, keys))
        p = problem_of(q, k, k, AttentionOptions(layout="bhsd", causal=causal, window=window), False)
        seen = reference.seen(queries, keys, causal, window)
        for t in (AttentionConfig(2, 128, 2), AttentionConfig(4, 64, 3)):
            some = [
                [seen[i : i + 64 * t.consumers, j : j + t.block_kv].any() for j in range(0, keys, t.block_kv)]
                for i in range(0, queries, 64 * t.consumers)
            ]
            assert step_counts(p, t) == [sum(line) for line in some], (causal, window, queries, keys)
        for_keys = [
            sum(seen[i : i + 64, j : j + KEYS].any() for i in range(0, queries, 64)) for j in range(0, keys, KEYS)
        ]
        assert query_steps(p, 64) == for_keys, (causal, window, queries, keys)


def test_splits_of_short_gradients() -> None:
    """Blocks share the steps of the same keys where there are many steps, and multiprocessors would be idle."""

    def splits(batch: int, heads: tuple[int, int], lengths: tuple[int, int], dim: int, causal: bool) -> int:
        q, k = (kd.ShapeDtypeStruct((batch, h, n, dim), bf16) for h, n in zip(heads, lengths, strict=True))
        p = problem_of(q, k, k, AttentionOptions(layout="bhsd", causal=causal), False)
        return scored_backward_config(p, 132, False).splits

    assert [splits(2, (8, 8), (128, 128), 160, False), splits(4, (16, 16), (197, 197), 112, True)] == [1, 1]
    assert [splits(1, (1, 1), (8192, 8192), 96, False), splits(8, (4, 1), (1000, 128), 32, False)] == [2, 16]
    assert splits(1, (16, 4), (4096, 4096), 80, True) == 2


def test_short_gradients_of_other_dimensions_are_as_without_options() -> None:
    """Of the dimension that is computed, unless there are functions of scores or other masks; those of 64 stay."""

    def made(length: int, dim: int, **options: Any) -> tuple[int, bool, bool]:
        q = kd.ShapeDtypeStruct((8, 16, length, dim), bf16)
        t = scored_backward_config(problem_of(q, q, q, AttentionOptions(layout="bhsd", **options), False), 132, False)
        return t.block_q, t.turns, t.stores_first

    assert [made(n, 80) for n in (64, 256, 400)] == [(64, False, True), (64, False, True), (80, True, True)]
    assert [made(n, 112, causal=True) for n in (400, 512)] == [(80, True, True), (64, False, True)]
    assert made(400, 80, window=9) == made(400, 80, causal="bottom_right") == (64, False, False)
    assert [made(n, 32) for n in (64, 65)] == [(64, False, False), (128, False, False)]


@pytest.mark.parametrize("form", ["these", "any", "shared", "any shared", "causal", "any causal"])
@pytest.mark.parametrize("which", [(dim, n) for dim, several in SMALL.items() for n in range(len(several))], ids=str)
@pytest.mark.sampled(60, "machine code")
def test_machine_code(which: Any, form: str) -> None:
    """No spills, and products that are not serialised: of these lengths, of any, and of keys that tiles share."""
    dim, n = which
    p = replace(problem(2, 12, 1000, 1000, "causal" in form), dim=dim, lse=True, splits=2 if "shared" in form else 1)
    spec, dims = kd.ShapeDtypeStruct((2, 12, 1000, dim), bf16), opened(p) if "any" in form else p
    dims = replace(dims, splits=dim_of("splits", least=2)) if form == "any shared" else dims
    more = [np.int32(2)] * {"any causal": 1, "any shared": 2}.get(form, 0)
    compiled = attention_kernel(dims, SMALL[dim][n][0], 132).lower(spec, spec, spec, *more, target="sm_90a").compile()
    assert compiled.resources.spills == 0 and not compiled.remarks


@pytest.mark.parametrize("name", [*OPTIONS, "float8", "pages of 64", "pages of 16"])
@pytest.mark.parametrize("dim", [64, 80, 128, 208, 256])
@pytest.mark.parametrize("queries", [16, 128])
@pytest.mark.sampled(24, "machine code")
def test_machine_code_with_options(name: str, dim: int, queries: int) -> None:
    """The same with options, of these lengths and of any: what a call of few queries runs. Two blocks of one consumer share
    a multiprocessor, up to a dimension of 128. With a bias at 64, one block has longer steps.
    """
    dtype, options = (bf16, OPTIONS[name]) if name in OPTIONS else (kd.float8_e4m3fn, {})
    options = {n: x for n, x in options.items() if n != "queries"} | {"return_lse": True, "target": "sm_90a"}
    if "window" in options:
        options["window"] = 3000
    if "bias" in options:
        options["bias"] = kd.ShapeDtypeStruct((2, queries, 8192), bf16)
    dim = 80 if name == "a dimension of 80" else dim
    shapes: list[Any] = [(1, 2, queries, dim), (1, 1, 8192, dim)]
    if "pages" in name:
        dtype, page = bf16, int(name.split()[-1])
        table, lengths = (kd.ShapeDtypeStruct(shape, kd.int32) for shape in ((1, 8192 // page), (1,)))
        options |= {"page_table": table, "kv_seqlens": lengths}
        shapes[1] = 8192 // page, 1, page, dim
    q, k = (kd.ShapeDtypeStruct(shape, dtype) for shape in shapes)
    attention = type(kd.library.attention)()
    for later in (False, True):
        token = _later.set(later)
        try:
            stages = attention.lower(q, k, k, **options)
        finally:
            _later.reset(token)
        compiled = stages.compile()
        assert compiled.resources.spills == 0 and not compiled.remarks
        # steps of 128 keys beside a bias take the SMEM of both
        several = queries <= 64 and dim <= 128 and name != "float8" and (name, dim) != ("bias", 64)
        assert not several or compiled.resources.blocks_per_multiprocessor == 2
    plans = list(attention._plans.values())
    assert [plan.opened for plan in plans] == [False, True] and None not in [plan.combine for plan in plans]


@pytest.mark.parametrize("splits", [None, 2, 11])
@pytest.mark.parametrize("dim", range(8, 257, 8))
@pytest.mark.sampled(12)
def test_parts_of_every_dimension(dim: int, splits: int | None, interpret: Any, rng: Any) -> None:
    """The combination beside NumPy: parts of few columns are smaller than a lane's share of wide ones."""
    count, heads, queries = splits or 3, 2, 5
    parts = rng.standard_normal((2, heads * count, queries, dim)).astype(np.float32)
    logs = rng.standard_normal((2, heads * count, queries)).astype(np.float32)
    logs[:, :count, 0] = -np.inf  # a query without keys
    out = combine_kernel(splits, heads, dim, kd.float32, False, "bhsd", True)(parts, logs, interpret=interpret)
    weights = np.exp(logs.astype(float)).reshape(2, heads, count, queries, 1)
    total = weights.sum(2)
    expected = (weights * parts.reshape(2, heads, count, queries, dim)).sum(2) / np.where(total == 0, 1, total)
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dim, most", [(16, 16), (200, 6)])
def test_any_number_of_parts(rng: Any, dim: int, most: int) -> None:
    """One kernel combines them, and gives the bits of kernels for their number, which more than `most` parts share with it."""
    heads, queries, any_number = 2, 5, combine_kernel(None, 2, dim, kd.float32, True, "bhsd", False)
    for count in (2, 3, 5, 6, 7, 8, 9, 16, 17, 33):
        parts = rng.standard_normal((2, heads * count, queries, dim)).astype(np.float32)
        logs = rng.standard_normal((2, heads * count, queries)).astype(np.float32)
        out, lse = any_number(parts, logs, interpret=True)
        weights = np.exp(logs.astype(float)).reshape(2, heads, count, queries, 1)
        expected = (weights * parts.reshape(2, heads, count, queries, dim)).sum(2) / weights.sum(2)
        np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5)
        np.testing.assert_allclose(lse, np.log(weights.sum(2))[..., 0], rtol=2e-5, atol=2e-5)
        known = combine_kernel(count, heads, dim, kd.float32, True, "bhsd", False)
        assert (known is any_number) == (count > most)
        assert known(parts, logs, interpret=True)[0].tobytes() == out.tobytes()
    assert len(any_number.specialisations()) == 1


@pytest.mark.parametrize("dtype", [bf16, kd.float32], ids=str)
@pytest.mark.parametrize("dim", range(8, 257, 8))
@pytest.mark.sampled(8, "machine code")
def test_machine_code_of_the_combination(dim: int, dtype: kd.DType) -> None:
    """Also of rows in which lanes have no equal shares."""
    parts, logs = kd.ShapeDtypeStruct((2, 96, 1000, dim), dtype), kd.ShapeDtypeStruct((2, 96, 1000), kd.float32)
    for splits, gaps in ((2, False), (5, False), (6, True), (16, False), (None, True)):
        made = combine_kernel(splits, 6, dim, bf16, True, gaps=gaps).lower(parts, logs, target="sm_90a").compile()
        assert made.resources.spills == 0, (splits, made)


@pytest.mark.gpu
def test_on_a_gpu(rng: Any) -> None:
    q, k, v = (random(rng, (1, h, n, 128), bf16) for h, n in ((64, 128), (8, 16384), (8, 16384)))
    wanted = reference.attention(q, k, v)
    out, lse = kd.library.attention(q, k, v, return_lse=True, interpret=False)
    assert relative(out, wanted.out) < 6e-3 and np.abs(np.asarray(lse) - wanted.lse).max() < 2e-3


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 128])
def test_later_sizes_on_a_gpu(dim: int, rng: Any) -> None:
    """Both kernels for any sizes, with few parts and with many, of even and of uneven numbers of blocks."""
    function = type(kd.library.attention)()
    for batch, queries, keys in ((1, 64, 8192), (2, 100, 3000), (3, 130, 1111), (1, 7, 20000), (2, 300, 5001)):
        q, k, v = (random(rng, (batch, h, n, dim), bf16) for h, n in ((8, queries), (2, keys), (2, keys)))
        wanted = reference.attention(q, k, v)
        out, lse = function(q, k, v, return_lse=True, interpret=False)
        assert relative(out, wanted.out) < 6e-3 and np.abs(np.asarray(lse) - wanted.lse).max() < 2e-3
    plans = [plan for plan in function._plans.values() if isinstance(plan, SplitPlan)]
    assert len(plans) >= 4 and len({plan.combine for plan in plans if isinstance(plan.parts, NumberedPlan)}) == 1


@pytest.mark.parametrize(("dim", "rows", "columns"), [(136, 64, 144), (144, 80, 144), (168, 64, 176), (200, 80, 208)])
def test_products_leave_padding_out(dim: int, rows: int, columns: int) -> None:
    """SMEM has rows of whole swizzles; products take the dimension itself, in steps of 16."""
    q = kd.ShapeDtypeStruct((1, 2, 4096, dim), kd.bfloat16)
    ptx = attention.lower(q, q, q, target="sm_90a").compile().ptx
    assert set(re.findall(r"wgmma\.mma_async\S*\.m64n(\d+)k16", ptx)) == {str(rows), str(columns)}
    first = next(line for line in ptx.splitlines() if f".m64n{rows}k16" in line)
    assert len(re.findall(r"wgmma\.mma_async", first)) == columns // 16
