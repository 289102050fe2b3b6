"""kd.library.attention_backward: the gradients of attention, against float64 and that against finite differences."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import AttentionBackwardConfig, attention, attention_backward
from kernel_dsl.library.attention_forward.opened import scored_opened
from kernel_dsl.library.attention_forward.options import AttentionOptions, problem_of
from kernel_dsl.library.attention_forward.sizes import AttentionProblem
from kernel_dsl.library.attention_gradients.attention_backward import default_config
from kernel_dsl.library.attention_gradients.keys import Visit
from kernel_dsl.library.attention_gradients.order import heads_at_once, makespan, shared_at_end, step_counts
from kernel_dsl.library.attention_gradients.plans import ScoredGradients
from kernel_dsl.library.attention_gradients.walk import Walk
from kernel_dsl.library.latest import launching
from tests.hopper.helpers import random, relative

bf16, f16, f32 = kd.bfloat16, kd.float16, kd.float32
Config = AttentionBackwardConfig
BOUNDS = {bf16: 1e-2, f16: 2e-3, f32: 5e-6, kd.float64: 1e-6}  # lse is float32


def forward(q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any]:
    """(output, lse) in float64, key heads given once for each query head."""
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[3] ** -0.5
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    lse = np.logaddexp.reduce(scores, axis=-1)
    return np.exp(scores - lse[..., None]) @ v, lse


def gradients(dout: Any, q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any, Any, Any, Any]:
    """(output, lse, dq, dk, dv) in float64."""
    dout, q, k, v = (x.astype(np.float64) for x in (dout, q, k, v))
    (B, G, S, D), group = k.shape, q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, 1) for x in (k, v))
    out, lse = forward(q, k, v, causal)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) * D**-0.5
    weights = np.exp(scores - lse[..., None])
    if causal:
        weights = weights * np.tril(np.ones(weights.shape[-2:]))
    ds = weights * (np.einsum("bhqd,bhkd->bhqk", dout, v) - (dout * out).sum(-1, keepdims=True)) * D**-0.5
    dk, dv = np.einsum("bhqk,bhqd->bhkd", ds, q), np.einsum("bhqk,bhqd->bhkd", weights, dout)
    return out, lse, ds @ k, *(x.reshape(B, G, group, S, D).sum(2) for x in (dk, dv))


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference(causal: bool, rng: Any) -> None:
    """The formulas above are the derivative of the function above, by central differences along random directions."""
    q, dout = (rng.standard_normal((1, 2, 5, 4)) for _ in range(2))
    k, v = (rng.standard_normal((1, 1, 7, 4)) for _ in range(2))
    _, _, *grads = gradients(dout, q, k, v, causal)
    for number, grad in enumerate(grads):
        way = rng.standard_normal(grad.shape)

        def moved(step: float, number: int = number, way: Any = way) -> float:
            inputs = [x + step * way if i == number else x for i, x in enumerate((q, k, v))]
            return float((forward(inputs[0], *(np.repeat(x, 2, 1) for x in inputs[1:]), causal)[0] * dout).sum())

        slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
        assert abs(slope - (grad * way).sum()) < 1e-8 * max(1.0, abs(slope))


def case_of(rng: Any, shape: Any, dtype: Any) -> tuple[Any, Any]:
    """(inputs, expected gradients) of (batch, heads, key heads, queries, keys, dim, causal)."""
    B, H, G, Q, S, D, causal = shape
    q, dout = (random(rng, (B, H, Q, D), dtype) for _ in range(2))
    k, v = (random(rng, (B, G, S, D), dtype) for _ in range(2))
    out, lse, *expected = gradients(dout, q, k, v, causal)
    return (dout, q, k, v, out.astype(dtype.numpy), lse.astype(np.float32)), expected


def check(rng: Any, shape: Any, dtype: Any, interpret: Any, **options: Any) -> Any:
    """Run, and compare; returns the gradients."""
    inputs, expected = case_of(rng, shape, dtype)
    got = attention_backward(*inputs, causal=shape[-1], interpret=interpret, **options)
    for x, y in zip(got, expected, strict=True):
        assert x.dtype == dtype and x.shape == y.shape
        assert relative(x, y) < BOUNDS[dtype]
    return got


# (batch, heads, key heads, queries, keys, dim, causal)
SHAPES = [
    (1, 2, 2, 128, 256, 128, False),
    (1, 2, 1, 200, 136, 128, True),
    (1, 2, 1, 130, 140, 64, True),
    (2, 1, 1, 100, 70, 64, False),
    (1, 2, 1, 70, 100, 256, True),
    (1, 1, 1, 64, 91, 256, False),
    (1, 1, 1, 80, 70, 192, True),
    (1, 1, 1, 1, 77, 128, False),
    (1, 1, 1, 77, 1, 64, True),
    (1, 2, 1, 190, 77, 128, True),
]


@pytest.mark.tma
@pytest.mark.wgmma
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.sampled(60)
def test_gradients(shape: Any, interpret: Any, rng: Any) -> None:
    """What is chosen, under each schedule."""
    check(rng, shape, bf16, interpret)


@pytest.mark.parametrize(("dim", "keys", "options", "alone"), [
    (64, 128, {}, True), (64, 129, {}, False), (128, 77, {"causal": True}, True), (256, 64, {}, True), (256, 65, {}, False),
    (96, 77, {}, True), (128, 77, {"softcap": 20.0}, True), (128, 77, {"causal": "bottom_right"}, False),
    (128, 77, {"window": 8}, False), (128, 77, {"mask_mod": lambda b, h, i, j: i > 8}, False),
], ids=lambda x: "-".join(x) if isinstance(x, dict) else str(x))  # fmt: skip
@pytest.mark.sampled(4)
def test_a_block_with_all_keys_adds_to_no_sum(dim: int, keys: int, options: Any, alone: bool) -> None:
    """It stores the queries' gradient, and no kernel rounds it. Otherwise other blocks add to this gradient, or no block has
    a step for some queries.
    """
    q, k = (kd.ShapeDtypeStruct((1, 2, n, dim), kd.bfloat16) for n in (300, keys))
    lse = kd.ShapeDtypeStruct((1, 2, 300), kd.float32)
    _, main, *others = attention_backward.lower(q, q, k, k, q, lse, target="sm_90a", **options)
    assert ("cp.reduce.async.bulk" not in main.ptx) == (not any("finish" in x.name for x in others)) == alone
    assert main.traced.outputs[2].dtype == (kd.bfloat16 if alone else kd.float32)


@pytest.mark.tma
@pytest.mark.wgmma
@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[2], SHAPES[4]], ids=str)
@pytest.mark.sampled(12)
def test_float16(shape: Any, rng: Any) -> None:
    check(rng, shape, f16, True)


CONFIGS = [
    (64, Config(128, turns=True)),
    (64, Config(64, stages=3, dout_stages=1)),
    (64, Config(160, dout_stages=1, apart=True, turns=True, splits=2)),
    (128, Config(64, stages=3, dout_stages=3)),
    (128, Config(80)),
    (128, Config(80, apart=True, in_turn=True)),
    (128, Config(96, apart=True, dq_parts=3, dq_slots=2)),
    (128, Config(96, apart=True, dq_parts=2, in_turn=True, splits=2)),
    (256, Config(64, dout_stages=1, dq_parts=2)),
    (192, Config(64, splits=3, in_turn=True)),
    (64, Config(128, stores_first=True, splits=2)),
    (128, Config(96, apart=True, dq_parts=3, dq_slots=2, stores_first=True)),
    (256, Config(64, dout_stages=1, dq_parts=2, stores_first=True)),
    (64, Config(128, stays=True)),
    (128, Config(64, dq_parts=2, stays=True)),
    (192, Config(64, dq_parts=3, stays=True)),
    (256, Config(64, stages=1, dout_stages=1, dq_parts=4, stays=True)),
]


@pytest.mark.tma
@pytest.mark.wgmma
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dim", "config"), CONFIGS, ids=str)
@pytest.mark.sampled(30)
def test_configurations(dim: int, config: Any, causal: bool, rng: Any) -> None:
    """Every way to walk; several steps, blocks, and heads of a group."""
    check(
        rng,
        (1, 2, 1, 200, 150, dim, causal),
        bf16,
        kd.InterpretParams(schedule="random", seed=dim + causal),
        config=config,
    )


@pytest.mark.parametrize(("dim", "kv_heads", "options", "first"), [
    (128, 2, {}, True), (128, 2, {"causal": True}, True), (64, 2, {}, True), (64, 2, {"causal": True}, True), (128, 1, {}, False),
    (256, 2, {}, False), (128, 2, {"deterministic": True}, True), (128, 2, {"window": 9, "deterministic": True}, False),
    (128, 2, {"softcap": 9.0, "config": Config(64, stores_first=True)}, True),
    (128, 2, {"window": 9, "config": Config(64, stores_first=True)}, False),
], ids=str)  # fmt: skip
@pytest.mark.sampled(3)
def test_the_first_block_stores(dim: int, kv_heads: int, options: Any, first: bool) -> None:
    """Then nothing zeroes the sums, in turn or not. With a window a step may be in no block, so its sum has to be zero before."""
    q, k = (kd.ShapeDtypeStruct((1, n, 300, dim), kd.bfloat16) for n in (2, kv_heads))
    lse = kd.ShapeDtypeStruct((1, 2, 300), kd.float32)
    main = attention_backward.lower(q, q, k, k, q, lse, target="sm_90a", **options)[1]
    assert (main.traced.outputs[2].fill is None) == first


@pytest.mark.tma
@pytest.mark.wgmma
@pytest.mark.parametrize("dim", [64, pytest.param(256, marks=pytest.mark.slow)])
def test_deterministic(dim: int, rng: Any) -> None:
    """The same bits under each schedule, and other bits where any order will do: else this would show nothing."""
    keys = 5 * (128 if dim == 64 else 64) - 20
    inputs, _ = case_of(rng, (1, 1, 1, 50, keys, dim, False), bf16)

    def bits(deterministic: bool, schedule: str, seed: int) -> bytes:
        way = kd.InterpretParams(schedule=schedule, seed=seed, report_unwritten=True)
        run = attention_backward(*inputs, deterministic=deterministic, interpret=way)
        return b"".join(np.asarray(x).tobytes() for x in run)

    ways = [("eager", 0), ("late", 1), ("random", 2)]
    assert len({bits(True, *way) for way in ways}) == 1
    first = bits(False, "random", 0) if dim == 64 else b""
    assert dim != 64 or any(bits(False, "random", seed) != first for seed in range(1, 8))


@pytest.mark.tma
@pytest.mark.wgmma
def test_causal_gradients_of_grouped_heads_in_turn() -> None:
    """Right, and the same bits under each schedule."""
    shape = 1, 4, 2, 150, 300, 64, True
    ways = [kd.InterpretParams(schedule=x) for x in ("eager", "late", "random")]
    made = [check(np.random.default_rng(7), shape, bf16, way, deterministic=True) for way in ways]
    assert len({b"".join(np.asarray(x).tobytes() for x in grads) for grads in made}) == 1


@pytest.mark.tma
@pytest.mark.wgmma
def test_after_the_forward(interpret: Any, rng: Any) -> None:
    """What the forward returns is what the backward takes; strided inputs, a scale, and queries that no key is seen by."""
    q, dout = (random(rng, (1, 100, 2, 64), bf16).transpose(0, 2, 1, 3) for _ in range(2))
    k, v = (random(rng, (1, 120, 2, 64), bf16).transpose(0, 2, 1, 3) for _ in range(2))
    out, lse = attention(q, k, v, causal=True, scale=0.2, return_lse=True, interpret=interpret)
    lse = np.array(lse)
    lse[0, 1, 7] = -np.inf
    got = attention_backward(dout, q, k, v, out, lse, causal=True, scale=0.2, interpret=interpret)
    stretch = 0.2 * 64**0.5
    dout = np.array(dout)
    dout[0, 1, 7] = 0
    _, _, dq, dk, dv = gradients(dout, q.astype(np.float64) * stretch, k, v, True)
    dq[0, 1, 7] = 0
    for x, y in zip(got, (dq * stretch, dk, dv), strict=True):
        assert relative(x, y) < 1e-2


GENERAL = [
    (f32, (1, 2, 1, 9, 30, 40, True)),
    (f32, (2, 2, 2, 21, 5, 64, False)),
    (kd.float64, (1, 1, 1, 7, 9, 24, True)),
    (bf16, (1, 4, 2, 20, 33, 20, True)),
]


@pytest.mark.parametrize(("dtype", "shape"), GENERAL, ids=str)
def test_what_the_fast_kernels_refuse(dtype: Any, shape: Any, rng: Any) -> None:
    inputs, _ = case_of(rng, shape, dtype)
    names = [stages.name for stages in attention_backward.lower(*inputs, causal=shape[-1])]
    assert names == ["attention_backward_general_q", "attention_backward_general_kv"]
    check(rng, shape, dtype, True)


@pytest.mark.parametrize("kind", ["backwards", "misaligned", "transposed"])
@pytest.mark.sampled(3)
def test_strides_that_tma_cannot_take(kind: str, rng: Any) -> None:
    base = random(rng, (1, 1, 24, 72), bf16)
    dout = {
        "backwards": base[:, :, ::-1, :64],
        "misaligned": base[..., 1:65],
        "transposed": random(rng, (1, 1, 64, 24), bf16).swapaxes(2, 3),
    }[kind]
    q, k, v = (random(rng, (1, 1, 24, 64), bf16) for _ in range(3))
    out, lse, *expected = gradients(dout, q, k, v, True)
    got = attention_backward(dout, q, k, v, out.astype(bf16.numpy), lse.astype(np.float32), causal=True, interpret=True)
    assert all(relative(x, y) < 1e-2 for x, y in zip(got, expected, strict=True))


@pytest.mark.parametrize("shape", [(0, 2, 1, 8, 8, 64), (1, 2, 1, 0, 8, 128)], ids=str)
def test_nothing_to_compute(shape: Any, rng: Any) -> None:
    inputs, expected = case_of(rng, (*shape, False), bf16)
    got = attention_backward(*inputs, interpret=True)
    assert all(x.shape == y.shape and not np.asarray(x, np.float64).any() for x, y in zip(got, expected, strict=True))


def lower(dim: int, causal: bool, kv_heads: int = 16, **options: Any) -> Any:
    """The main kernel at a size of its own."""
    q, k = (kd.ShapeDtypeStruct((1, n, 4096, dim), bf16) for n in (16, kv_heads))
    lse = kd.ShapeDtypeStruct((1, 16, 4096), f32)
    return attention_backward.lower(q, q, k, k, q, lse, causal=causal, target="sm_90a", **options)


@pytest.mark.parametrize("dim", [64, 128, 192, 256])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("kv_heads", [16, 4])
@pytest.mark.sampled(60, "machine code")
def test_the_chosen_kernels_do_not_spill(kv_heads: int, dim: int, causal: bool, deterministic: bool) -> None:
    for stages in lower(dim, causal, kv_heads, deterministic=deterministic):
        compiled = stages.compile()
        assert compiled.resources.spills == 0 and not compiled.remarks
        # the sums of dq lie as wgmma left them: that they go through SMEM, once, is what this kernel is for
        assert len(stages.notes) <= (stages.name == "attention_backward_finish"), stages.notes


TIMED = [
    (64, Config(128, apart=True)),
    (64, Config(128, turns=True)),
    (128, Config(64)),
    (128, Config(64, turns=True)),
    (128, Config(64, stages=3, dout_stages=3, turns=True)),
    (128, Config(64, stages=3, dout_stages=3, dq_parts=2, dq_slots=2)),
    (128, Config(80)),
    (128, Config(64, stages=3, dout_stages=3)),
    (128, Config(80, apart=True)),
    (256, Config(64, dout_stages=1, dq_parts=4, dq_slots=2)),
    (256, Config(64, dout_stages=1, dq_parts=4, dq_slots=3)),
]


@pytest.mark.parametrize(("dim", "config"), TIMED, ids=str)
@pytest.mark.sampled(60, "machine code")
def test_other_configurations_do_not_spill(dim: int, config: Any) -> None:
    """Those of `benchmarks.attention configs backward`."""
    for causal in (False, True):
        compiled = lower(dim, causal, config=config)[1].compile()
        assert compiled.resources.spills == 0 and not compiled.remarks


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.sampled(60, "machine code")
def test_odd_lengths_do_not_spill(dim: int, causal: bool) -> None:
    q, k = (kd.ShapeDtypeStruct((1, heads, length, dim), bf16) for heads, length in ((8, 1000), (2, 1010)))
    lse = kd.ShapeDtypeStruct((1, 8, 1000), f32)
    for stages in attention_backward.lower(q, q, k, k, q, lse, causal=causal, target="sm_90a"):
        compiled = stages.compile()
        assert compiled.resources.spills == 0 and not compiled.remarks


# (batch, heads, key heads, queries, keys, dim, causal), multiprocessors, the configuration
TAILS = [
    ((1, 6, 6, 200, 200, 64, False), 5, Config(32, tail=3)),
    ((2, 4, 2, 100, 300, 128, False), 10, Config(48, turns=True, tail=2)),
    ((1, 2, 2, 130, 200, 256, False), 6, Config(64, dout_stages=1, dq_parts=4, dq_slots=2, tail=4)),
    ((1, 6, 6, 200, 200, 64, True), 5, Config(32, tail=3)),
]
# as above, of blocks that stay
STAYS = [
    ((1, 4, 4, 60, 400, 64, False), 3, Config(64, stays=True)),
    ((1, 4, 2, 100, 300, 128, False), 2, Config(64, dq_parts=2, stays=True)),
    ((1, 2, 2, 90, 300, 64, True), 4, Config(32, stays=True)),
    ((1, 3, 3, 80, 100, 128, False), 2, Config(64, dq_parts=2, stays=True)),
    ((1, 3, 3, 80, 100, 256, False), 2, Config(64, stages=1, dout_stages=1, dq_parts=4, stays=True)),
    ((1, 2, 1, 100, 200, 192, True), 2, Config(64, dq_parts=3, stays=True)),
]


def launched(shape: Any, machines: int, config: Any, opened: bool, interpret: Any, rng: Any) -> None:
    """Compare the kernels for so many multiprocessors with the reference."""
    inputs, expected = case_of(rng, shape, bf16)
    B, H, G, queries, keys, D, causal = shape
    p = AttentionProblem(B, H, G, queries, keys, D, bf16, causal, D**-0.5, False)
    plans = attention_backward._fast
    if opened:
        plans(replace(p, batch=B + 1), False, config, machines, False)
    plan = plans(p, False, config, machines, not opened)
    assert (plan.sizes is not None) == opened
    got = plan.launched(inputs, AttentionOptions(), {}, launching(stream=None, interpret=interpret))
    for x, y in zip(got, expected, strict=True):
        assert relative(x, y) < BOUNDS[bf16]


@pytest.mark.tma
@pytest.mark.wgmma
@pytest.mark.parametrize("case", TAILS, ids=str)
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.sampled(8)
def test_keys_that_are_shared_at_the_end(case: Any, opened: bool, interpret: Any, rng: Any) -> None:
    """Several blocks loop over parts of the queries of the last keys, and add up their gradients in turn."""
    shape, machines, config = case
    B, _, G, _, keys, D, _ = shape
    units = B * G * -(-keys // (128 if D <= 128 else 64))
    assert shared_at_end(units, config, machines) > 0
    launched(shape, machines, config, opened, interpret, rng)


@pytest.mark.tma
@pytest.mark.wgmma
@pytest.mark.parametrize("case", STAYS, ids=str)
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.sampled(8)
def test_blocks_that_stay(case: Any, opened: bool, interpret: Any, rng: Any) -> None:
    """Each takes several keys, of several heads, and loads the next ones beside the steps of these."""
    launched(*case, opened, interpret, rng)


@pytest.mark.tma
@pytest.mark.wgmma
@pytest.mark.parametrize(("dim", "machines", "config"), [
    (80, 5, Config(64, tail=3)), (192, 8, Config(64, tail=3)), (80, 4, Config(64, dq_parts=2, stays=True)),
    (32, 4, Config(64, stays=True)), (192, 5, Config(64, dq_parts=3, stays=True)),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.sampled(24)
def test_keys_that_are_shared_with_options(
    dim: int, machines: int, config: Any, opened: bool, interpret: Any, rng: Any
) -> None:
    """The same with heads after positions."""
    inputs, expected = case_of(rng, (1, 6, 6, 100, 150, dim, False), bf16)
    arrays = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in inputs[:5]] + [inputs[5]]
    options = AttentionOptions("bshd")
    p = problem_of(*arrays[1:4], options, False, "attention_backward")
    general = None
    if opened:
        assert scored_opened(replace(p, batch=2), config) is None
        general = scored_opened(p, config)
    plan = ScoredGradients.of(p, config, machines, (), None, general)
    assert plan.config.tail == config.tail and (plan.sizes is not None) == opened
    got = plan.launched(arrays, options, {}, launching(stream=None, interpret=interpret))
    for x, y in zip(got, expected, strict=True):
        assert relative(x.swapaxes(1, 2), y) < BOUNDS[bf16]


@pytest.mark.parametrize(
    ("length", "heads", "dim"), [(16384, 16, 128), (4096, 64, 128), (16384, 32, 64), (8192, 8, 256)]
)
def test_causal_blocks_are_dealt_evenly(length: int, heads: int, dim: int) -> None:
    """The last block ends not long after the mean, and few heads are under way at a time."""
    p = AttentionProblem(1, heads, heads, length, length, dim, bf16, True, dim**-0.5, False)
    lengths = step_counts(p, default_config(p, 132), 128 if dim <= 128 else 64)
    assert lengths == sorted(lengths, reverse=True)
    together = heads_at_once(lengths, heads, 132)
    assert together <= 8 and makespan(lengths, heads, together, 132) <= 1.04 * sum(lengths) * heads / 132


@pytest.mark.parametrize(("batch", "heads", "length"), [(32, (16, 4), 1000), (32, (8, 4), 1024), (16, (16, 16), 512)])
def test_no_more_heads_alternate_than_run_at_a_time(batch: int, heads: tuple[int, int], length: int) -> None:
    """Blocks of one head would share nothing in L2, and memory would limit the kernel, for an end 3 % earlier."""
    p = AttentionProblem(batch, *heads, length, length, 128, bf16, True, 0.1, False)
    lengths = step_counts(p, default_config(p, 132), 128)
    assert 66 <= heads_at_once(lengths, batch * heads[1], 132) * len(lengths) <= 132


Q, LSE = np.ones((1, 2, 8, 64), np.float16), np.ones((1, 2, 8), np.float32)
WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"dout": Q[:, :1]}, {}, r"dout is \(1, 1, 8, 64\)"),
    ({"out": None}, {}, "out is None"),
    ({"out": Q.astype(np.float32)}, {}, "out is float32"),
    ({"lse": LSE.astype(np.float64)}, {}, "lse is float64"),
    ({"lse": LSE[..., None]}, {}, r"lse is \(1, 2, 8, 1\)"),
    ({"k": Q[:, :, :, :32]}, {}, "v is"),
    ({"q": 3}, {}, "q is an int"),
    ({}, {"scale": -1}, "scale=-1"),
    ({}, {"config": 3}, "config is an int"),
    ({}, {"config": {}}, "config is a dict, which can't be hashed"),
    ({}, {"config": Config(stages=1)}, "config.stages=1"),
    ({}, {"config": Config(splits=0)}, "config.splits=0"),
    ({}, {"config": Config(80)}, "config.block_q=80"),
    ({}, {"config": Config(128, dq_parts=3)}, "config.dq_parts=3 of 64 columns"),
    ({}, {"config": Config(128, dq_slots=2)}, "config.dq_slots=2"),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda c: c[-1])
def test_wrong_arguments(case: Any) -> None:
    arrays, options, words = case
    given = {"dout": Q, "q": Q, "k": Q, "v": Q, "out": Q, "lse": LSE} | arrays
    with pytest.raises(kd.Error, match=words):
        attention_backward(*given.values(), interpret=True, **options)


def test_a_wide_configuration() -> None:
    wide, lse = np.ones((1, 1, 8, 256), np.float16), np.ones((1, 1, 8), np.float32)
    for config, words in (
        (Config(80), "64, for a head dimension beyond 128"),
        (Config(64, turns=True), "config.turns=True"),
    ):
        with pytest.raises(ValueError, match=words):
            attention_backward(wide, wide, wide, wide, wide, lse, config=config, interpret=True)


@pytest.mark.gpu
@pytest.mark.tma
@pytest.mark.wgmma
@pytest.mark.parametrize("dim", [64, 128, 192, 256])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("lengths", [(1024, 1024), (1000, 1500)], ids=str)
def test_long_gradients_on_a_gpu(dim: int, causal: bool, deterministic: bool, lengths: Any, rng: Any) -> None:
    shape = (2, 4, 2, *lengths, dim, causal)
    got = check(rng, shape, bf16, False, deterministic=deterministic)
    if deterministic:
        again = check(np.random.default_rng(7), shape, bf16, False, deterministic=True)
        assert all(
            np.array_equal(np.asarray(x).view(np.uint16), np.asarray(y).view(np.uint16))
            for x, y in zip(got, again, strict=True)
        )


@pytest.mark.gpu
@pytest.mark.tma
@pytest.mark.wgmma
@pytest.mark.parametrize(("dim", "config"), CONFIGS, ids=str)
def test_configurations_on_a_gpu(dim: int, config: Any, rng: Any) -> None:
    for causal in (False, True):
        check(rng, (1, 4, 2, 700, 900, dim, causal), bf16, False, config=config)


@pytest.mark.gpu
@pytest.mark.tma
@pytest.mark.wgmma
@pytest.mark.parametrize("dim", [64, 80, 128, 192, 256])
def test_blocks_that_stay_on_a_gpu(dim: int, rng: Any) -> None:
    """Each multiprocessor's takes two to five parts."""
    check(rng, (2, 40, 40, 100, 500, dim, False), bf16, False)


def walked(p: AttentionProblem, config: Config) -> Any:
    """(blocks, steps): the number head * 100 + index of each step of each block, in order; -1 after the last."""
    walk = Walk(p, config, 132, 128, config.block_q // 8, p.dim, True)
    most = walk.steps * walk.group

    def body(orders: Any) -> None:
        number = kd.axis_index("block")
        block = walk.block_of({}, Visit(number))

        def note(step: Any) -> None:
            orders[number, step.number] = step.head * 100 + step.index

        walk.each_step(block, note)

    out = kd.ShapeDtypeStruct((walk.grid, most), kd.int32, init=-1)
    return kd.kernel(body, out_type=out, grid=(walk.grid,), grid_names=("block",))(interpret=True)


@pytest.mark.parametrize("splits", [1, 2])
def test_blocks_begin_at_different_queries(splits: int) -> None:
    """Blocks that run together would otherwise use the same lines of L2 at the same time."""
    heads, blocks, steps = 4, 3, 5
    p = AttentionProblem(1, heads, 2, 80 * steps, 128 * blocks, 128, bf16, False, 0.1, False)
    orders = walked(p, Config(80, splits=splits)).reshape(2, blocks, splits, -1)
    for kv_head, n in np.ndindex(2, blocks):
        found = orders[kv_head, n]
        found = found[found >= 0]
        turned = (np.arange(steps) + n) % steps  # each head's steps, once
        assert found.tolist() == [head * 100 + int(i) for head in (2 * kv_head, 2 * kv_head + 1) for i in turned]


@pytest.mark.parametrize(("kv_heads", "queries", "blocks", "causal", "splits"), [
    (2, 400, 3, False, 1), (1, 400, 3, False, 3), (1, 320, 6, True, 1), (2, 1200, 4, True, 2), (1, 1200, 9, True, 5),
])  # fmt: skip
def test_blocks_in_turn_wait_for_none(kv_heads: int, queries: int, blocks: int, causal: bool, splits: int) -> None:
    """If all steps took as long, no block would wait for another: each of the two sums of a step has its blocks in the order
    of their keys, one at a time, until blocks have so few steps that they begin with all of them.
    """
    p = AttentionProblem(1, 4, kv_heads, queries, 128 * blocks, 128, bf16, causal, 0.1, False)
    config = Config(80, in_turn=True, splits=splits)
    walk = Walk(p, config, 132, 128, config.block_q // 8, p.dim, True)
    lines, most = 4, walk.steps * walk.group

    def body(orders: Any) -> None:
        number = kd.axis_index("block")
        block = walk.block_of({}, Visit(number))

        def note(step: Any) -> None:
            line, index = walk.sum_of(block, step)
            for i, value in enumerate((line, index, walk.turn_of(block, step), kd.div(block.key, 128))):
                orders[number, step.number, i] = value

        walk.each_step(block, note)

    out = kd.ShapeDtypeStruct((walk.grid, most, 4), kd.int32, init=-1)
    orders = np.asarray(kd.kernel(body, out_type=out, grid=(walk.grid,), grid_names=("block",))(interpret=True))
    sums: dict[Any, list[Any]] = {}
    seen = []
    for block, time in np.ndindex(walk.grid, most):
        line, index, turn, keys = map(int, orders[block, time])
        if line >= 0:
            sums.setdefault((line, index), []).append((keys, turn, time))
            seen.append((line % lines, index, keys))
    for adds in sums.values():
        adds.sort()
        assert [turn for _, turn, _ in adds] == list(range(len(adds)))
        times = [time for *_, time in adds]
        assert all(a < b or a == b == times[-1] for a, b in pairwise(times))
    skipped = 128 if causal else 0
    steps = [(line, i, n) for line in range(lines) for n in range(blocks) for i in range(n * skipped // 80, walk.steps)]
    assert sorted(seen) == sorted(steps)
    assert all((line, index) in sums for line in range(lines) for index in range(walk.steps))  # nothing zeroes these
