"""kd.library.attention: every option alone and in pairs, against float64."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import AttentionConfig
from kernel_dsl.library.attention_forward import scored as attention_scored
from kernel_dsl.library.attention_forward.options import AttentionOptions, problem_of, tiles_of_bias
from kernel_dsl.library.attention_forward.scored_config import scored_config
from kernel_dsl.library.attention_forward.scored_kernel import scored_kernel
from kernel_dsl.library.attention_forward.scored_rows import exp2_by_fma
from tests.hopper.helpers import random, relative

from . import attention_reference as reference

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]
bf16, f16, f32, e4m3 = kd.bfloat16, kd.float16, kd.float32, kd.float8_e4m3fn
BOUNDS = {bf16: 8e-3, f16: 2e-3, f32: 1e-5, kd.float64: 1e-6, e4m3: 8e-3}
LSE_BOUNDS = {
    bf16: 4e-3,
    f16: 4e-3,
    f32: 2e-5,
    kd.float64: 1e-6,
    e4m3: 4e-3,
}  # the tanh of 16-bit inputs is approximate

# name: what the function is given; "sinks" and "bias" are made for the shape
OPTIONS: dict[str, dict[str, Any]] = {
    "top_left": {"causal": True},
    "bottom_right": {"causal": "bottom_right"},
    "window": {"window": 30},
    "softcap": {"softcap": 3.0},
    "scale": {"scale": 0.3},
    "sinks": {"sinks": (lambda rng, B, H, Q, K: random(rng, (H,), f32))},
    "bias": {"bias": (lambda rng, B, H, Q, K: random(rng, (B, H, Q, K), f32))},
    "alibi": {"score_mod": reference.alibi},
    "squashed": {"score_mod": reference.squashed},
    "documents": {"mask_mod": reference.documents},
    "by_head": {"mask_mod": reference.by_head},
}
PAIRS = [(a, b) for a, b in itertools.combinations(OPTIONS, 2) if set(OPTIONS[a]) != set(OPTIONS[b])]


def made(names: tuple[str, ...], rng: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """The options of those names; the arrays among them for (batch, heads, queries, keys)."""
    found: dict[str, Any] = {}
    for name in names:
        found |= OPTIONS[name]
    return {k: x(rng, *shape) if k in ("sinks", "bias") else x for k, x in found.items()}


def inputs(rng: Any, B: int, H: int, G: int, Q: int, K: int, D: int, DV: int, dtype: Any) -> tuple[Any, Any, Any]:
    return random(rng, (B, H, Q, D), dtype), random(rng, (B, G, K, D), dtype), random(rng, (B, G, K, DV), dtype)


def check(got: Any, expected: reference.Reference, dtype: Any, lost: float = 0.0) -> None:
    """Compare outputs and logarithms; rows that see nothing are exact.

    `lost`: what scores lose at most before they are used. A weight is then off by this share. Scores of one row lose unlike
    parts of it, so an output is off by less: a twelfth of it on one NVIDIA H200.
    """
    out, lse = (np.asarray(x) for x in got)
    assert out.shape == expected.out.shape and lse.shape == expected.lse.shape and lse.dtype == np.float32
    assert out.dtype == (bf16 if dtype == e4m3 else dtype)
    assert relative(out, expected.out) < BOUNDS[dtype] + lost / 4
    none = np.isneginf(expected.lse)
    assert np.array_equal(np.isneginf(lse), none) and not np.asarray(out[none], np.float64).any()
    assert np.abs(lse[~none] - expected.lse[~none]).max(initial=0) < LSE_BOUNDS[dtype] + lost


def run(rng: Any, names: tuple[str, ...], shape: Any, dtype: Any, interpret: Any, **more: Any) -> None:
    """Call and compare; `shape`: (batch, heads, key heads, queries, keys, dim, dim of values)."""
    q, k, v = inputs(rng, *shape, dtype)
    options = made(names, rng, (shape[0], shape[1], shape[3], shape[4]))
    got = kd.library.attention(q, k, v, **options, **more, return_lse=True, interpret=interpret)
    check(got, reference.attention(q, k, v, **options), dtype)


SHAPE = (1, 2, 1, 130, 110, 64, 64)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.sampled(42)
def test_options(name: str, interpret: Any, rng: Any) -> None:
    """Each alone, under each schedule; more queries than keys, so that bottom-right rows see nothing."""
    run(rng, (name,), SHAPE, bf16, interpret)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.sampled(78)
def test_pairs(pair: tuple[str, str], rng: Any) -> None:
    """At sizes, dtypes and head dimensions that differ from pair to pair."""
    n = PAIRS.index(pair)
    dims = [(64, 64), (128, 128), (80, 80), (48, 16), (64, 128)][n % 5]
    shape = ((2, 1)[n % 2], 2, (1, 2)[n % 3 % 2], 70 + 13 * (n % 7), 60 + 29 * (n % 6), *dims)
    schedule = kd.InterpretParams(schedule=("late", "random", "eager")[n % 3], report_unwritten=True)
    run(rng, pair, shape, (bf16, f16)[n % 4 == 3], schedule)


@pytest.mark.parametrize("pair", PAIRS[::3], ids="-".join)
@pytest.mark.sampled(42)
def test_pairs_by_lanes(pair: tuple[str, str], rng: Any) -> None:
    """The kernel that takes anything."""
    run(rng, pair, (2, 2, 1, 23, 31, 12, 20), kd.float64 if PAIRS.index(pair) % 2 else f32, True)


@pytest.mark.parametrize("what", [((1, 2, 1, 1, 1500, 64, 64), (1, 2, 1, 1500)), ((2, 2, 2, 1, 700, 40, 64), (700,)),
                                  ((2, 2, 1, 70, 300, 64, 64), (2, 1, 1, 300)), ((1, 2, 1, 1, 900, 128, 128), (1, 2, 1, 900))],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"causal": "bottom_right", "window": 200}], ids=["all", "window"])
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.sampled(6)
def test_a_bias_of_keys(what: Any, options: dict[str, Any], dtype: Any, interpret: Any, rng: Any) -> None:
    """Few consumers load it a step early, also for tiles that share keys and for consumers that skip some."""
    shape, bias = what
    q, k, v = inputs(rng, *shape, bf16)
    options = options | {"bias": random(rng, bias, dtype)}
    got = kd.library.attention(q, k, v, **options, return_lse=True, interpret=interpret)
    check(got, reference.attention(q, k, v, **options), bf16)


@pytest.mark.parametrize(
    "shape", [(1, 2, 1, 90, 50, 64, 64), (1, 2, 2, 40, 20, 256, 80), (1, 2, 2, 24, 16, 12, 20)], ids=str
)
@pytest.mark.parametrize("dtype", [f16, e4m3])
def test_a_sink_of_minus_infinity_is_none(shape: Any, dtype: Any, rng: Any) -> None:
    """Also for queries that see no key. Its gradient is 0."""
    q, k, v = inputs(rng, *shape, dtype)
    options = {"causal": "bottom_right", "sinks": np.array([-np.inf, 0.5], np.float32)}
    got = kd.library.attention(q, k, v, **options, return_lse=True, interpret=True)
    check(got, reference.attention(q, k, v, **options), dtype)
    if dtype != e4m3:
        grads = kd.library.attention_backward(got[0], q, k, v, *got, **options, interpret=True)
        assert grads[3][0] == 0 and grads[3][1] != 0 and all(np.isfinite(x.astype(f32)).all() for x in grads)


@pytest.mark.parametrize("dims", [(16, 16), (24, 24), (72, 72), (80, 80), (96, 96), (104, 40), (192, 128), (128, 192),
                                  (160, 160), (256, 64), (248, 248)], ids=str)  # fmt: skip
@pytest.mark.sampled(24)
def test_head_dimensions(dims: tuple[int, int], rng: Any) -> None:
    """Every multiple of 8, and values of another size."""
    spec = [kd.ShapeDtypeStruct((1, 2, 128, d), bf16) for d in (dims[0], dims[0], dims[1])]
    assert kd.library.attention.lower(*spec, target="sm_90a").name == "attention_scored"
    run(rng, ("top_left",), (1, 2, 1, 100, 90, *dims), bf16, True)


@pytest.mark.parametrize("dims", [(64, 64), (72, 48), (128, 128)], ids=str)
@pytest.mark.parametrize("names", [(), ("window", "sinks"), ("bias",)], ids=str)
@pytest.mark.sampled(24)
def test_layout(dims: tuple[int, int], names: Any, rng: Any) -> None:
    """The same numbers where memory is (batch, length, heads, dim)."""
    shape = (2, 4, 2, 70, 90)
    q, k, v = inputs(rng, *shape, *dims, bf16)
    options = made(names, rng, (2, 4, 70, 90))
    swapped = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    out, lse = kd.library.attention(*swapped, layout="bshd", **options, return_lse=True, interpret=True)
    assert out.shape == (2, 70, 4, dims[1])
    check((out.swapaxes(1, 2), lse), reference.attention(q, k, v, **options), bf16)


@pytest.mark.parametrize("shape", [(130, 110), (1, 1, 1, 110), (2, 1, 110), (1, 1, 130, 1)], ids=str)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.sampled(8)
def test_biases_that_broadcast(shape: Any, dtype: Any, rng: Any) -> None:
    q, k, v = inputs(rng, *SHAPE, bf16)
    bias = random(rng, shape, dtype)
    got = kd.library.attention(q, k, v, bias=bias, return_lse=True, interpret=True)
    check(got, reference.attention(q, k, v, bias=bias), bf16)


def test_the_bias_of_one_query(rng: Any) -> None:
    """It broadcasts to the rows of a tile, though it is that of all queries and TMA could load its rows."""
    q, k, v = inputs(rng, 1, 2, 1, 1, 128, 64, 64, bf16)
    bias = random(rng, (1, 2, 1, 128), bf16)
    got = kd.library.attention(q, k, v, bias=bias, return_lse=True, interpret=True)
    check(got, reference.attention(q, k, v, bias=bias), bf16)


# --- ragged lengths -------------------------------------------------------------------------------


def ragged(rng: Any, q_lens: Any, k_lens: Any, heads: Any, dims: Any, dtype: Any) -> tuple[Any, Any, Any, Any, Any]:
    """(q, k, v, q_seqlens, kv_seqlens)."""
    starts = [np.cumsum([0, *lens]).astype(np.int32) for lens in (q_lens, k_lens)]
    q = random(rng, (sum(q_lens), heads[0], dims[0]), dtype)
    k, v = (random(rng, (sum(k_lens), heads[1], d), dtype) for d in dims)
    return q, k, v, *starts


def one_of(x: Any, starts: Any, n: int) -> Any:
    """A sequence as a batch of its own."""
    return x[starts[n] : starts[n + 1]].swapaxes(0, 1)[None]


RAGGED = [
    ((100, 0, 37, 200), (90, 50, 0, 210)),
    ((1, 1, 1), (300, 1, 65)),
    ((64, 128), (80, 160)),
]


@pytest.mark.parametrize("lengths", RAGGED, ids=str)
@pytest.mark.parametrize(
    "names", [(), ("top_left",), ("bottom_right", "window", "sinks"), ("alibi", "documents")], ids=str
)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.sampled(51)
def test_ragged(lengths: Any, names: Any, dtype: Any, rng: Any) -> None:
    """Sequences don't see one another, and what another holds doesn't matter, be it NaN."""
    dims = (64, 64) if dtype == bf16 else (12, 8)
    q, k, v, q_starts, k_starts = ragged(rng, *lengths, (2, 1), dims, dtype)
    options = made(names, rng, (1, 2, 0, 0))
    for poisoned in (False, True):
        if poisoned:
            k[: k_starts[1]] = v[: k_starts[1]] = v[k_starts[-2] :] = np.nan
        out, lse = kd.library.attention(
            q, k, v, q_seqlens=q_starts, kv_seqlens=k_starts, **options, return_lse=True, interpret=True
        )
        for n in range(poisoned, len(lengths[0]) - poisoned):
            if not lengths[0][n]:
                continue
            single = [one_of(x, s, n) for x, s in ((q, q_starts), (k, k_starts), (v, k_starts))]
            here = slice(q_starts[n], q_starts[n + 1])
            check((out[here].swapaxes(0, 1)[None], lse[:, here][None]), reference.attention(*single, **options), dtype)


def test_lengths_need_no_compile(rng: Any) -> None:
    """Other lengths of the same totals run the same kernel."""
    arrays = ragged(rng, (100, 30), (100, 30), (2, 2), (64, 64), bf16)
    kd.library.attention(*arrays[:3], q_seqlens=arrays[3], interpret=True)
    before = dict(kd.library.attention._plans)
    again = np.array([0, 7, 130], np.int32)
    out = kd.library.attention(*arrays[:3], q_seqlens=again, interpret=True)
    assert before == kd.library.attention._plans
    single = [one_of(x, again, 0) for x in arrays[:3]]
    assert relative(out[:7].swapaxes(0, 1)[None], reference.attention(*single).out) < 8e-3


# --- float8 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (40, 24), (12, 12)], ids=str)
@pytest.mark.sampled(9)
def test_float8(dims: tuple[int, int], rng: Any) -> None:
    """Scales of heads, and numbers."""
    q, k, v = inputs(rng, 2, 4, 2, 70, 90, *dims, e4m3)
    scales = {name: np.abs(random(rng, (2, 2), f32)) + 0.5 for name in ("k_scale", "v_scale")}
    got = kd.library.attention(q, k, v, q_scale=0.5, **scales, softcap=9.0, return_lse=True, interpret=True)
    wide = [x.astype(np.float64) for x in (q * np.float32(1), k, v)]
    wide = [wide[0] * 0.5, *(x * s[:, :, None, None] for x, s in zip(wide[1:], scales.values(), strict=True))]
    check(got, reference.attention(*wide, softcap=9.0), e4m3)
    plain = kd.library.attention(q, k, v, interpret=True)
    assert relative(plain, reference.attention(q, k, v).out) < 8e-3


@pytest.mark.parametrize("softcap", [None, 9.0])
@pytest.mark.parametrize("dims", [(16, 16), (80, 80), (128, 128), (192, 128), (256, 256)], ids=str)
@pytest.mark.sampled(60, "machine code")
def test_float8_machine_code(dims: tuple[int, int], softcap: float | None) -> None:
    """Scores are products of float8, without spills and without remarks."""
    q, k, v = (kd.ShapeDtypeStruct((1, h, 4090, n), e4m3) for h, n in ((16, dims[0]), (4, dims[0]), (4, dims[1])))
    compiled = kd.library.attention.lower(q, k, v, causal=True, softcap=softcap, target="sm_90a").compile()
    assert compiled.resources.spills == 0 and not compiled.remarks
    assert "f32.e4m3.e4m3" in compiled.ptx and "f32.bf16.bf16" in compiled.ptx


@pytest.mark.sampled(4)
@pytest.mark.parametrize("stride", [64, 72], ids=["rows as they are", "rows that TMA can't load"])
def test_float8_rows(stride: int, rng: Any) -> None:
    """Rows of q and k that TMA can't load are widened; by both ways nothing that lies between rows matters."""
    q, k, v = inputs(rng, 1, 2, 1, 70, 90, 64, 64, e4m3)
    padded = [np.full((*x.shape[:3], stride), np.nan, np.float32).astype(e4m3.numpy) for x in (q, k)]
    for wide, x in zip(padded, (q, k), strict=True):
        wide[..., :64] = x
    got = kd.library.attention(*(x[..., :64] for x in padded), v, causal=True, interpret=True)
    assert relative(got, reference.attention(q, k, v, causal=True).out) < 8e-3


# --- tiles, tiles of a bias, and functions that are linear ----------------------------------------


@pytest.mark.parametrize(
    "names", [("bottom_right",), ("documents", "sinks"), ("bias",), ("alibi", "window")], ids="-".join
)
@pytest.mark.parametrize("config", [AttentionConfig(1, 32, 2), AttentionConfig(2, 64, 2, turns=True)], ids=str)
@pytest.mark.sampled(30)
def test_blocks_take_tiles(names: Any, config: Any, interpret: Any, rng: Any, monkeypatch: Any) -> None:
    """Two blocks share all tiles, some of them without keys, whether or not their output has room of its own."""
    monkeypatch.setattr(
        attention_scored, "scored_kernel", lambda p, t, blocks, promise: scored_kernel(p, t, 2, promise)
    )
    kd.library.attention._plans.clear()
    run(rng, names, (1, 3, 1, 200, 72, 64, 64), bf16, interpret, config=config)
    kd.library.attention._plans.clear()


def hidden_rows(b: Any, h: Any, i: Any, j: Any) -> Any:
    """A mask whose tiles of 64 queries have no block of 32 keys, one, two, or all."""
    return ((i < 64) & (j < 32)) | ((i > 150) & (i < 190) & (j > 40)) | (i > 270)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("ragged", [False, True])
def test_tiles_of_few_steps(stages: int, ragged: bool, interpret: Any, rng: Any, monkeypatch: Any) -> None:
    """A tile is looked up while the tile before is loaded, whether that has steps for all stages, fewer, or none."""
    monkeypatch.setattr(
        attention_scored, "scored_kernel", lambda p, t, blocks, promise: scored_kernel(p, t, 2, promise)
    )
    kd.library.attention._plans.clear()
    config = AttentionConfig(1, 32, stages)
    if ragged:
        ends = np.array([0, 3, 3, 70, 230, 300, 300, 333], np.int32)
        q, k, v = (random(rng, (333, 2, 64), bf16) for _ in "qkv")
        options: dict[str, Any] = {"q_seqlens": ends, "kv_seqlens": ends, "causal": True}
        got = kd.library.attention(q, k, v, **options, config=config, interpret=interpret)
        for begin, end in itertools.pairwise(ends):
            part = [x[begin:end].swapaxes(0, 1)[None] for x in (q, k, v)]
            expected = reference.attention(*part, causal=True).out[0].swapaxes(0, 1)
            assert begin == end or relative(got[begin:end], expected) < 8e-3
    else:
        q, k, v = inputs(rng, 1, 2, 1, 333, 100, 64, 64, bf16)
        got = kd.library.attention(q, k, v, mask_mod=hidden_rows, config=config, interpret=interpret, return_lse=True)
        check(got, reference.attention(q, k, v, mask_mod=hidden_rows), bf16)
    kd.library.attention._plans.clear()


@pytest.mark.parametrize("params", [True, kd.InterpretParams(schedule="random", seed=1)], ids=["usual", "random"])
@pytest.mark.parametrize(
    ("dtype", "dim"), [(bf16, 64), (bf16, 256), (e4m3, 64)], ids=["queries twice", "queries once", "output apart"]
)
@pytest.mark.sampled(6)
def test_tiles_without_keys(dtype: Any, dim: int, params: Any, rng: Any, monkeypatch: Any) -> None:
    """Sequences may have fewer than there is room for: in such tiles a consumer may not overtake the warps that load."""
    monkeypatch.setattr(
        attention_scored, "scored_kernel", lambda p, t, blocks, promise: scored_kernel(p, t, 2, promise)
    )
    kd.library.attention._plans.clear()
    ends = np.array([0, 200, 500, 577, 677], np.int32)
    q, k, v = (random(rng, (677, 2, dim), dtype) for _ in "qkv")
    options: dict[str, Any] = {"q_seqlens": ends, "kv_seqlens": ends, "config": AttentionConfig(2, 64, 2)}
    got = kd.library.attention(q, k, v, **options, interpret=params)
    for begin, end in itertools.pairwise(ends):
        part = [x[None, begin:end].swapaxes(1, 2) for x in (q, k, v)]
        assert relative(got[begin:end], reference.attention(*part).out[0].swapaxes(0, 1)) < 8e-3
    kd.library.attention._plans.clear()


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("softcap", [30.0, 55.0, 56.0])
@pytest.mark.sampled(9)
def test_capped_scores(softcap: float, dtype: Any, rng: Any) -> None:
    """Scores at both ends of a cap, which may need no maximum, beside rows that see few keys or none."""
    q, k, v = inputs(rng, *SHAPE, dtype)
    signs = np.where(np.arange(110) < 55, -1, 1)[:, None]
    k = (np.abs(np.asarray(k, np.float32)) * signs * 8).astype(dtype.numpy)
    q = (np.abs(np.asarray(q, np.float32)) * np.linspace(0, 8, 130)[:, None]).astype(dtype.numpy)
    options = {"softcap": softcap, "mask_mod": lambda b, h, i, j: (j <= i // 2) & (i > 3)}
    got = kd.library.attention(q, k, v, **options, return_lse=True, interpret=True)
    check(got, reference.attention(q, k, v, **options), dtype)


def test_turns_with_a_softcap() -> None:
    """Not where ragged sequences or a window take the registers for that."""
    ends = kd.ShapeDtypeStruct((5,), kd.int32)
    for lengths, window in ((None, None), (None, 300), (ends, None)):
        dense = [kd.ShapeDtypeStruct((1, h, 4090, 128), bf16) for h in (16, 4, 4)]
        ragged = [kd.ShapeDtypeStruct((4090, h, 128), bf16) for h in (16, 4, 4)]
        options = AttentionOptions(
            layout="bhsd", causal=True, window=window, softcap=30.0, q_seqlens=lengths, kv_seqlens=lengths
        )
        p = problem_of(*(dense if lengths is None else ragged), options, True)
        assert scored_config(p).turns == (lengths is None and window is None)


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.sampled(60, "machine code")
def test_capped_machine_code(window: int | None) -> None:
    q, k = (kd.ShapeDtypeStruct((1, h, 4090, 80), bf16) for h in (16, 4))
    options: dict[str, Any] = {"causal": True, "window": window, "softcap": 30.0, "return_lse": True}
    compiled = kd.library.attention.lower(q, k, k, **options, target="sm_90a").compile()
    assert compiled.resources.spills == 0 and not compiled.remarks


@pytest.mark.parametrize("every", [1, 3])
def test_exponentials_by_multiply_adds(every: int, rng: Any) -> None:
    """Of some columns, or all: rows without keys stay zeros."""
    run(rng, ("by_head", "softcap"), SHAPE, bf16, True, config=AttentionConfig(2, 48, 2, polynomial=every))


def test_exp2_by_fma(rng: Any) -> None:
    """To 2e-4, and what is no number stays so."""
    x = np.concatenate([rng.uniform(-126, 8, 122), [-np.inf, np.nan, -127, -500, 0, 8]]).astype(np.float32)

    def body(x: Any, out: Any) -> None:
        out[...] = exp2_by_fma(x[...])

    got = kd.kernel(body, out_type=kd.ShapeDtypeStruct(x.shape, f32))(x, interpret=True)
    assert np.abs(got[:122] / 2.0 ** x[:122].astype(np.float64) - 1).max() < 2e-4
    assert np.isnan(got[123]) and list(got[[122, 124, 125, 126, 127]]) == [0, 0, 0, 1, 256]


@pytest.mark.parametrize("shape", [(2, 4, 90, 72), (4, 90, 72), (1, 4, 90, 72), (90, 72)], ids=str)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.sampled(15)
def test_tiles_of_a_bias(shape: Any, dtype: Any, rng: Any) -> None:
    """Those of all queries and keys come by TMA; others, and those that TMA can't load, by lanes."""
    q, k, v = inputs(rng, 2, 4, 2, 90, 72, 64, 64, bf16)
    wide = random(rng, (*shape[:-1], shape[-1] + 1), dtype)
    for bias, staged in ((random(rng, shape, dtype), True), (wide[..., 1:], False)):
        assert (tiles_of_bias(bias, shape, 90, 72) is not None) == staged
        got = kd.library.attention(q, k, v, bias=bias, softcap=5.0, return_lse=True, interpret=True)
        check(got, reference.attention(q, k, v, bias=bias, softcap=5.0), bf16)


@pytest.mark.parametrize(
    "config", [AttentionConfig(2, 64, 2), AttentionConfig(3, 64, 2), AttentionConfig(2, 64, 3)], ids=str
)
@pytest.mark.parametrize("names", [{}, {"causal": True, "window": 150}, {"causal": "bottom_right"}], ids=str)
@pytest.mark.sampled(30)
def test_a_bias_loaded_early(config: Any, names: dict[str, Any], interpret: Any, rng: Any) -> None:
    """More steps than tiles of the bias in SMEM, and tiles that consumers skip."""
    q, k, v = inputs(rng, 1, 1, 1, 330, 800, 128, 128, bf16)
    options = names | {"bias": random(rng, (330, 800), bf16)}
    got = kd.library.attention(q, k, v, **options, config=config, return_lse=True, interpret=interpret)
    check(got, reference.attention(q, k, v, **options), bf16)


# --- what no shape shows --------------------------------------------------------------------------


@pytest.mark.parametrize("config", [AttentionConfig(1, 64, 2), AttentionConfig(2, 48, 3, turns=True), AttentionConfig(4, 16, 2)],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("names", [("bottom_right", "window"), ("by_head", "softcap")], ids=str)
@pytest.mark.sampled(33)
def test_configurations(config: Any, names: Any, interpret: Any, rng: Any) -> None:
    run(rng, names, (1, 2, 1, 150, 200, 64, 64), bf16, interpret, config=config)


@pytest.mark.parametrize("causal", [True, "bottom_right"])
def test_blocks_that_no_query_sees_are_not_read(causal: Any, rng: Any) -> None:
    """NaN in keys and values far from the diagonal stays there; so do blocks that a mask rules out."""
    q, k, v = inputs(rng, 1, 1, 1, 512, 512, 64, 64, bf16)
    k[:, :, 300:] = v[:, :, 300:] = np.nan
    few = dict(causal=causal, window=64, config=AttentionConfig(1, 64, 2))
    out = kd.library.attention(q, k, v, **few, interpret=True)
    assert np.isfinite(out[:, :, :256].astype(np.float32)).all()
    out = kd.library.attention(
        q, k, v, mask_mod=lambda b, h, i, j: j < 256, config=AttentionConfig(1, 64, 2), interpret=True
    )
    assert np.isfinite(out.astype(np.float32)).all()


@pytest.mark.parametrize("lengths", [False, True])
def test_masks_of_one_head(lengths: bool, rng: Any) -> None:
    """Whole blocks that one head sees, and another does not."""
    q, k, v = inputs(rng, 2, 2, 1, 16, 200, 64, 64, bf16)
    mask = lambda b, h, i, j: (h == 1) & (j > 0)  # noqa: E731
    expected = reference.attention(q, k, v, mask_mod=mask)
    if not lengths:
        check(kd.library.attention(q, k, v, mask_mod=mask, return_lse=True, interpret=True), expected, bf16)
        return
    flat = [np.concatenate([*x.swapaxes(1, 2)]) for x in (q, k, v)]
    starts = {"q_seqlens": np.array([0, 16, 32], np.int32), "kv_seqlens": np.array([0, 200, 400], np.int32)}
    out, lse = kd.library.attention(*flat, **starts, mask_mod=mask, return_lse=True, interpret=True)
    check((out.reshape(2, 16, 2, 64).swapaxes(1, 2), lse.reshape(2, 2, 16).swapaxes(0, 1)), expected, bf16)


def test_lists_are_kept(rng: Any) -> None:
    """A mask's blocks are found once."""
    q, k, v = inputs(rng, *SHAPE, bf16)
    first = kd.library.attention(q, k, v, mask_mod=reference.documents, interpret=True)
    plans = [p for p in kd.library.attention._plans.values() if getattr(p, "lists", None) and p.lists.kept]
    plan = next(p for p in plans if p.problem.score.mask_mod is reference.documents and p.problem.queries == SHAPE[3])
    (kept,) = [x for place, x in plan.lists.kept.items() if place[-1]]
    assert kept[1].shape == (1, 1, 2) and kept[1].sum() < np.prod(kept[0].shape)
    assert np.array_equal(kd.library.attention(q, k, v, mask_mod=reference.documents, interpret=True), first)


SPILLS: list[tuple[str, dict[str, Any]]] = [
    ("full", {}),
    ("window", {"causal": True, "window": 1024}),
    ("softcap", {"causal": True, "softcap": 30.0}),
    ("sinks", {"causal": "bottom_right", "sinks": kd.ShapeDtypeStruct((16,), f32)}),
    ("bias", {"bias": kd.ShapeDtypeStruct((1, 1, 4090, 4090), bf16)}),
    ("tiles of a bias", {"bias": kd.ShapeDtypeStruct((1, 16, 4090, 4096), bf16)}),
]


@pytest.mark.parametrize("dims", [(64, 64), (80, 80), (128, 128), (192, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("case", SPILLS, ids=lambda c: c[0])
@pytest.mark.sampled(60, "machine code")
def test_no_spills(dims: tuple[int, int], case: Any) -> None:
    keys = 4096 if case[0] == "tiles of a bias" else 4090
    q, k, v = (
        kd.ShapeDtypeStruct((1, *x), bf16) for x in ((16, 4090, dims[0]), (4, keys, dims[0]), (4, keys, dims[1]))
    )
    compiled = kd.library.attention.lower(q, k, v, layout="bhsd", **case[1], return_lse=True, target="sm_90a").compile()
    assert compiled.resources.spills == 0 and not compiled.remarks


# --- bad input ------------------------------------------------------------------------------------

Q = np.ones((2, 4, 8, 64), np.float16)
R, STARTS = np.ones((8, 4, 64), np.float16), np.array([0, 3, 8], np.int32)
E = Q.astype(e4m3.numpy)
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (Q, {"layout": "bsd"}, "layout='bsd'"),
    (Q, {"causal": "left"}, "causal='left'"),
    (Q, {"causal": 3.5}, "causal is a float"),
    (Q, {"window": 0}, "window=0"),
    (Q, {"window": 1.5}, "window=1.5"),
    (Q, {"softcap": -1.0}, "softcap=-1.0"),
    (Q, {"softcap": "x"}, "softcap='x'"),
    (Q, {"softcap": 1e50}, r"softcap=1e\+50"),
    (Q, {"softcap": 1e-50}, "softcap=1e-50"),
    (Q, {"scale": 1e39}, r"scale=1e\+39"),
    (Q, {"scale": 1e-50}, "scale=1e-50"),
    (Q, {"sinks": 1.0}, "sinks is a float"),
    (Q, {"sinks": np.ones(3, np.float32)}, r"sinks is \(3,\)"),
    (Q, {"sinks": np.ones(4, np.int32)}, "sinks is int32"),
    (Q, {"sinks": np.float32(1)}, "sinks is a float32"),
    (Q, {"bias": 1.0}, "bias is a float"),
    (Q, {"bias": np.float32(1)}, "bias is a float32"),
    (Q, {"bias": np.float64(1)}, "bias is a float64"),
    (Q, {"bias": np.ones((3, 8, 8), np.float32)}, r"bias is \(3, 8, 8\)"),
    (Q, {"bias": np.ones((8, 8), np.int32)}, "bias is int32"),
    (Q, {"bias": np.ones((8, 8), bool)}, "says which keys count: `mask_mod=lambda b, h, i, j: mask"),
    (Q, {"score_mod": 1}, "score_mod is an int"),
    (Q, {"score_mod": np.ones((8, 8), np.float32)}, "which may read the array: `lambda score, b, h, i, j: score"),
    (Q, {"mask_mod": "causal"}, "mask_mod is a str"),
    (Q, {"mask_mod": np.ones((8, 8), bool)}, "which may read the array: `lambda b, h, i, j: mask"),
    (Q, {"score_mod": lambda s, b, h, i, j: None}, "the score_mod made None"),
    (Q, {"score_mod": lambda s, b, h, i, j: s[:1, :3]}, "the score_mod made float32 of shape"),
    (Q, {"score_mod": lambda s, b, h, i, j: j <= i}, "the score_mod made bool"),
    (Q, {"mask_mod": lambda b, h, i, j: 1}, "the mask_mod made 1"),
    (Q, {"mask_mod": lambda b, h, i, j: i - j}, "the mask_mod made int32"),
    (Q, {"bias": np.ones((8, 8), np.float32), "config": {}}, "config is a dict, which can't be hashed"),
    (Q, {"scale": np.ones(2)}, "it is no array: kernels are kept by options"),
    (Q, {"softcap": Decimal("1.5")}, r"softcap=Decimal\('1.5'\)"),
    (E, {"q_scale": True}, "q_scale is a bool"),
    (Q, {"window": True}, "window=True"),
    (Q, {"q_scale": 2.0}, "q_scale with float16"),
    (E, {"k_scale": np.ones((2, 3), np.float32)}, r"k_scale is \(2, 3\)"),
    (E, {"v_scale": np.ones((2, 4), np.float64)}, "v_scale is float64"),
    (R, {"kv_seqlens": STARTS}, "kv_seqlens without q_seqlens"),
    (R, {"q_seqlens": STARTS.astype(np.int64)}, "q_seqlens is int64"),
    (R, {"q_seqlens": STARTS, "kv_seqlens": STARTS[:2]}, r"kv_seqlens is \(2,\)"),
    (R, {"q_seqlens": np.array([0, 5, 3], np.int32)}, r"q_seqlens=\[0, 5, 3\]"),
    (R, {"q_seqlens": STARTS, "kv_seqlens": np.array([0, 5, 9], np.int32)}, r"kv_seqlens=\[0, 5, 9\]"),
    (R, {"q_seqlens": STARTS, "bias": np.ones((8, 8), np.float32)}, "bias with q_seqlens"),
    (Q, {"q_seqlens": STARTS}, r"q is an ndarray of shape \(2, 4, 8, 64\)"),
    (R, {}, r"q is an ndarray of shape \(8, 4, 64\)"),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda c: c[-1])
def test_wrong_arguments(case: Any) -> None:
    x, options, words = case
    with pytest.raises(kd.Error, match=words):
        kd.library.attention(x, x, x, interpret=True, **options)


# --- on a GPU -------------------------------------------------------------------------------------

LONG = [(), ("window",), ("top_left", "window"), ("bottom_right", "sinks"), ("softcap", "top_left"), ("alibi",), ("bias",),
        ("documents",), ("by_head", "squashed")]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (72, 72), (192, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("names", LONG, ids=str)
def test_long_on_a_gpu(dims: tuple[int, int], names: Any, rng: Any) -> None:
    run(rng, names, (2, 4, 2, 1000, 1300, *dims), bf16, False)


@pytest.mark.gpu
@pytest.mark.parametrize("dims", [(64, 64), (128, 128)], ids=str)
def test_long_ragged_on_a_gpu(dims: tuple[int, int], rng: Any) -> None:
    lengths = [int(n) for n in rng.integers(0, 900, 9)]
    q, k, v, starts, _ = ragged(rng, lengths, lengths, (4, 2), dims, bf16)
    out, lse = kd.library.attention(q, k, v, q_seqlens=starts, causal=True, return_lse=True, interpret=False)
    for n in [n for n, length in enumerate(lengths) if length]:
        single, here = [one_of(x, starts, n) for x in (q, k, v)], slice(starts[n], starts[n + 1])
        check((out[here].swapaxes(0, 1)[None], lse[:, here][None]), reference.attention(*single, causal=True), bf16)
