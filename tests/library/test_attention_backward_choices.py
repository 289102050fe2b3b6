"""What is chosen for the gradients of attention: steps, blocks that share keys, that stay, and that store first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl.library import AttentionBackwardConfig, attention_backward
from kernel_dsl.library.attention_forward.attention import FAST
from kernel_dsl.library.attention_forward.opened import opened
from kernel_dsl.library.attention_forward.options import AttentionOptions, problem_of
from kernel_dsl.library.attention_forward.sizes import AttentionProblem
from kernel_dsl.library.attention_gradients.attention_backward import default_config
from kernel_dsl.library.attention_gradients.ends import stats_kernel, sum_kernel
from kernel_dsl.library.attention_gradients.order import alternating, shared_at_end
from kernel_dsl.library.attention_gradients.scored import scored_backward_config

Config = AttentionBackwardConfig
bf16 = kd.bfloat16


def problem(batch: int, heads: int, kv_heads: int, length: int, dim: int, causal: bool) -> AttentionProblem:
    return AttentionProblem(batch, heads, kv_heads, length, length, dim, bf16, causal, dim**-0.5, False)


@pytest.mark.parametrize(("dim", "block_q"), [(64, 128), (128, 80), (192, 64), (256, 64)])
def test_blocks_before_the_gradients_have_many_rows(dim: int, block_q: int) -> None:
    """Also where a block's elements are no multiple of a row: one row a block read 1.3 TB/s."""
    kernel = stats_kernel(problem(1, 2, 2, 8192, dim, False), Config(block_q))
    assert kernel._definition.grid[1] * 16 <= -(-8192 // block_q) * block_q


@pytest.mark.parametrize(("case", "splits"), [
    ((1, 16, 16, 16384, 128, True), 1), ((4, 16, 16, 4096, 128, False), 1), ((1, 64, 8, 8192, 128, False), 1),
    ((1, 32, 1, 2048, 128, False), 8), ((1, 8, 8, 512, 64, False), 2), ((1, 1, 1, 128, 128, False), 1),
    ((2, 8, 1, 197, 128, True), 12), ((1, 8, 1, 256, 128, True), 16), ((32, 1, 1, 256, 128, False), 1),
], ids=str)  # fmt: skip
def test_splits(case: Any, splits: int) -> None:
    """Few key heads are shared by blocks; where there are blocks enough, they are not."""
    assert default_config(problem(*case), 132).splits == splits


@pytest.mark.parametrize("splits", [2, 6, 8, 12, 16])
@pytest.mark.parametrize("dim", [64, 128, 192, 256])
def test_sums_of_parts_do_not_spill(dim: int, splits: int) -> None:
    """Also of as many parts as few keys may have."""
    p = problem(1, 16, 1, 300, dim, True)
    parts = kd.ShapeDtypeStruct((splits, 1, 1, 300, dim), kd.float32)
    for kernel in (sum_kernel(p, splits), sum_kernel(opened(p), splits)):
        assert kernel.lower(parts, parts, target="sm_90a").compile().resources.spills == 0


@pytest.mark.parametrize(("units", "shared"), [(2048, 68), (4096, 4), (512, 0), (1980, 0), (2072, 0)])
def test_what_is_shared_at_the_end(units: int, shared: int) -> None:
    """Blocks share the keys that are left after whole rounds, unless these fill most of a round."""
    config = default_config(problem(1, 16, 16, 16384, 128, False), 132)
    assert config.tail > 1 and shared_at_end(units, config, 132) == shared
    assert default_config(problem(1, 16, 16, 16384, 128, True), 132).tail == 1


@pytest.mark.parametrize(("shape", "tail"), [
    ((8, 16, 4, 1144, 1128, 128), 3), ((16, 8, 2, 1207, 603, 128), 3), ((32, 4, 1, 605, 605, 64), 3),
    ((8, 8, 4, 663, 663, 96), 2), ((8, 1, 1, 1417, 1417, 160), 2), ((10, 4, 2, 1350, 1350, 96), 1),
    ((25, 8, 2, 1207, 603, 128), 1), ((4, 8, 2, 1207, 603, 128), 1), ((40, 8, 2, 100, 400, 128), 1),
], ids=str)  # fmt: skip
def test_shared_ends_of_few_rounds(shape: Any, tail: int) -> None:
    """Blocks that few are left of after whole rounds are shared by as many as run at once; not where many are, with one round, or
    with few steps.
    """
    B, H, G, queries, keys, D = shape
    sizes = [(B, queries, H, D), (B, keys, G, D), (B, keys, G, D)]
    q, k, v = (kd.ShapeDtypeStruct(x, kd.bfloat16) for x in sizes)
    p = problem_of(q, k, v, AttentionOptions(layout="bshd"), False, "attention_backward")
    assert scored_backward_config(p, 132, False).tail == tail
    below = replace(p, score=replace(p.score, causal="top_left"))
    assert scored_backward_config(below, 132, False).tail == 1


@pytest.mark.parametrize(("shape", "splits"), [
    ((3, 128, 8, 822, 822, 192, 128), 3), ((2, 64, 4, 1500, 1500, 192, 128), 3), ((4, 64, 8, 700, 700, 192, 128), 2),
    ((4, 64, 8, 1000, 1000, 192, 192), 2), ((4, 64, 8, 1000, 1000, 256, 256), 2), ((4, 32, 8, 1200, 1200, 192, 128), 1),
    ((4, 64, 8, 4096, 4096, 256, 256), 1), ((32, 64, 8, 300, 300, 192, 192), 1), ((4, 64, 8, 1500, 1500, 128, 128), 1),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("deterministic", [False, True])
def test_causal_blocks_of_many_heads(shape: Any, splits: int, deterministic: bool) -> None:
    """Blocks of whole steps are slow where eight heads or more add to the sums of a step beyond a dimension of 128."""
    B, H, G, queries, keys, D, V = shape
    sizes = [(B, H, queries, D), (B, G, keys, D), (B, G, keys, V)]
    q, k, v = (kd.ShapeDtypeStruct(x, kd.bfloat16) for x in sizes)
    p = problem_of(q, k, v, AttentionOptions(causal=True), False, "attention_backward")
    plain = p.plain if p.plain is not None and p.plain.dim in FAST else None
    if plain is not None:
        found = default_config(plain, 132, deterministic)
    else:
        found = scored_backward_config(p, 132, deterministic)
    assert found.splits == (1 if deterministic else splits)


def test_steps_of_few_queries() -> None:
    """Where less lies beyond the last query, or beside a causal mask, steps are short. The first block stores a step's sum
    unless all blocks of a head have that step alone, and blocks share no keys at the end if they have few steps.
    """

    def made(queries: int, keys: int, dim: int, causal: bool = False, heads: int = 16) -> tuple[int, bool, bool]:
        # blocks stay if there are more of them
        p = AttentionProblem(
            32 if queries > 256 or causal else 1, 16, heads, queries, keys, dim, bf16, causal, 1.0, False
        )
        config = default_config(p, 132)
        return config.block_q, config.stores_first, config.tail > 1

    assert [made(n, 1024, 64) for n in (64, 128, 197)] == [(64, False, False), (128, False, False), (128, True, False)]
    assert [made(n, 1024, 128)[:2] for n in (64, 80, 128, 197)] == [(64, False), (80, False), (64, True), (80, True)]
    assert [made(n, n, 128)[0] for n in (256, 400, 512, 1000, 4096)] == [64, 80, 64, 80, 80]
    assert [made(n, n, 128, True)[0] for n in (256, 400, 512, 1000, 1531, 2048, 4096)] == [64, 80, 64, 64, 64, 80, 80]
    assert made(128, 128, 64)[1:] == made(64, 64, 64, heads=4)[1:] == (True, False)
    assert made(300, 300, 64, heads=4)[1:] == (False, False)
    assert [made(n, n, 64)[2] for n in (1000, 4096)] == [False, True]
    assert [made(n, n, 256)[2] for n in (64, 1000, 1024)] == [False, True, True]


@pytest.mark.parametrize(("shape", "stays"), [
    ((1, 16, 16, 64, 16384, 64), True), ((1, 16, 16, 64, 16384, 256), True), ((4, 16, 16, 128, 4096, 128), True),
    ((8, 16, 16, 197, 1024, 192), True), ((8, 16, 16, 64, 1024, 80), True), ((8, 32, 8, 64, 1024, 128), True),
    ((8, 16, 16, 400, 1024, 64), True), ((16, 16, 16, 197, 197, 64), True), ((16, 16, 16, 197, 197, 128), False),
    ((8, 16, 16, 400, 1024, 128), False), ((1, 32, 4, 64, 16384, 128), False), ((1, 16, 16, 64, 1024, 128), False),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("deterministic", [False, True])
def test_which_blocks_stay(shape: Any, stays: bool, deterministic: bool) -> None:
    """Those of few steps, with more than one for each multiprocessor; none with a causal mask, or where they add in turn."""
    B, H, G, queries, keys, D = shape
    shapes = [(B, H, queries, D), (B, G, keys, D), (B, G, keys, D)]
    q, k, v = (kd.ShapeDtypeStruct(x, kd.bfloat16) for x in shapes)
    for causal in (False, "top_left"):
        options = AttentionOptions(causal=causal)
        p = problem_of(q, k, v, options, False, "attention_backward")
        config = scored_backward_config(p, 132, deterministic)
        assert config.stays == (stays and not (deterministic or causal))
        if p.plain is not None and D in FAST:
            assert default_config(p.plain, 132, deterministic).stays == config.stays


def test_heads_of_many_short_blocks_alternate() -> None:
    """Several, of which each group is as large: then few blocks add to the same sums at a time."""
    assert [alternating(16, n, 1) for n in (8, 9, 128)] == [1, 16, 16]
    assert [alternating(n, 128, 4) for n in (3, 24, 36, 64, 1000)] == [3, 24, 18, 16, 20]
    assert alternating(64, 128, 5) == 1


@pytest.mark.parametrize(("dim", "queries", "keys", "options", "first"), [
    (192, 300, 128, {}, True), (256, 300, 256, {}, True), (160, 300, 100, {}, True), (192, 300, 257, {}, False),
    (64, 300, 256, {}, True), (80, 300, 200, {}, True), (128, 300, 200, {}, True), (128, 300, 257, {}, False),
    (192, 64, 128, {}, False), (128, 64, 200, {}, False), (192, 300, 128, {"deterministic": True}, False),
    (192, 300, 128, {"causal": True}, False), (128, 300, 200, {"causal": True}, True),
    (128, 2100, 2100, {"causal": True}, False), (96, 300, 1000, {"causal": True}, True),
], ids=str)  # fmt: skip
@pytest.mark.sampled(5)
def test_the_first_of_few_blocks_stores(
    dim: int, queries: int, keys: int, options: dict[str, Any], first: bool
) -> None:
    """With few keys that is so whatever the dimension, and the number of query heads of a key head; beside a causal mask with
    more keys, too.
    """
    q, k = kd.ShapeDtypeStruct((1, 2, queries, dim), kd.bfloat16), kd.ShapeDtypeStruct((1, 1, keys, dim), kd.bfloat16)
    lse = kd.ShapeDtypeStruct((1, 2, queries), kd.float32)
    main = attention_backward.lower(q, q, k, k, q, lse, target="sm_90a", **options)[1]
    assert (main.traced.outputs[2].fill is None) == first


@pytest.mark.parametrize(
    ("dim", "config"), [(128, Config(64)), (128, Config(64, splits=2)), (80, Config(64, splits=2))], ids=str
)
def test_kernels_start_while_the_one_before_ends(dim: int, config: Any) -> None:
    """All but the first one, which may follow any kernel. It has many blocks, and each would take longer to allow it."""
    q, k = (kd.ShapeDtypeStruct((1, 2, n, dim), kd.bfloat16) for n in (300, 300))
    lse = kd.ShapeDtypeStruct((1, 2, 300), kd.float32)
    first, *others = attention_backward.lower(q, q, k, k, q, lse, target="sm_90a", config=config)
    assert len(others) == 2 + (config.splits - 1) * (1 if dim == 128 else 2)
    assert "griddepcontrol" not in first.ptx
    assert all("griddepcontrol.wait" in stages.ptx for stages in others)


@pytest.mark.parametrize(
    "dims", [(64, 64), (80, 80), (128, 128), (160, 160), (192, 128), (192, 192), (256, 256)], ids=str
)
@pytest.mark.parametrize("keys", [33, 64, 65, 128, 200])
@pytest.mark.parametrize("queries", [64, 128, 197])
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}], ids=str)
@pytest.mark.sampled(6, "machine code")
def test_memory_suffices_for_many_short_heads(
    dims: tuple[int, int], keys: int, queries: int, options: dict[str, Any]
) -> None:
    """Where blocks may stay, or have all keys, SMEM holds what they need."""
    q, k, v, out = (
        kd.ShapeDtypeStruct((32, 16, n, dim), kd.bfloat16)
        for n, dim in zip((queries, keys, keys, queries), (dims[0], *dims, dims[1]), strict=True)
    )
    lse = kd.ShapeDtypeStruct((32, 16, queries), kd.float32)
    for stages in attention_backward.lower(out, q, k, v, out, lse, target="sm_90a", **options):
        assert ".entry" in stages.ptx
