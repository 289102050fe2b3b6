"""A random walk over the options of attention and its gradients, of pages and of arrays closed over, against float64."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import attention, attention_backward
from kernel_dsl.library.attention_forward import scored as attention_scored
from kernel_dsl.library.attention_forward.scored_kernel import scored_kernel
from tests.hopper.helpers import random, relative

from . import attention_reference as reference
from .test_attention_captured import DOCUMENTS, alibi, of_batch
from .test_attention_options import BOUNDS, check
from .test_attention_pages import cache
from .test_attention_pages import of_batch as of_number

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]
bf16, f16, f32, f64 = kd.bfloat16, kd.float16, kd.float32, kd.float64
FORMS = ("plain", "ragged", "pages", "ragged pages")
MASKS = {
    "documents": reference.documents,
    "by_head": reference.by_head,
    "closed over": of_batch(np.stack([DOCUMENTS] * 3) // 2),
}
DISTANCES = np.linspace(-1, 1, 400, dtype=np.float32)


def hidden(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """A mask of scores, whose constant the kernel uses, too; row 4 sees nothing."""
    where = np.where if isinstance(x, np.ndarray) else kd.where
    return where((j <= i + 9) & (i != 4), x, -np.inf)


def by_distance(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """A table that the function closes over, by a computed index."""
    return x + DISTANCES[i - j + 200]


SCORES = {
    "squashed": reference.squashed,
    "alibi": reference.alibi,
    "closed over": alibi,
    "hidden": hidden,
    "by distance": by_distance,
}


def options_of(rng: Any, form: str, batch: int, queries: int, keys: int) -> dict[str, Any]:
    """Some options; of two heads."""

    def some(chance: float = 0.3) -> bool:
        return bool(rng.random() < chance)

    made: dict[str, Any] = {"causal": [False, True, "top_left", "bottom_right"][rng.integers(4)]}
    made |= {"window": int(rng.integers(1, 60))} if some() else {}
    made |= {"softcap": float(rng.uniform(1, 5))} if some() else {}
    made |= {"scale": 0.2} if some() else {}
    made |= {"sinks": random(rng, (2,), f32)} if some() else {}
    made |= {"score_mod": SCORES[rng.choice(list(SCORES))]} if some() else {}
    made |= {"mask_mod": MASKS[rng.choice(list(MASKS))]} if some() else {}
    if "ragged" not in form and some():
        full = batch, 2, queries, keys
        made["bias"] = random(
            rng, tuple(1 if some(0.2) else n for n in full)[rng.integers(5) :], [f32, bf16][rng.integers(2)]
        )
    return made


def bias_of(bias: Any, b: int, keys: int) -> Any:
    """The part of a bias that a sequence has."""
    full = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    return full[b if full.shape[0] > 1 else 0][None, ..., : keys if full.shape[3] > 1 else 1]


def rounding(out: Any, dout: Any, other: Any, options: dict[str, Any], dim: int) -> float:
    """How far the rounding of the output takes the gradient of queries or keys, where `other` are the keys or queries.

    Gradients of scores are differences from sums of out * dout, and each output is off by half a unit in the last place.
    So a query that sees one key has this and no other gradient.
    """
    sums = np.linalg.norm(np.asarray(out, np.float64) * np.asarray(dout, np.float64))
    longest = np.linalg.norm(np.asarray(other, np.float64), axis=-1).max(initial=0.0)
    return float(sums * longest * options.get("scale", dim**-0.5) * float(ml_dtypes.finfo(dout.dtype).eps) / 2)


@pytest.mark.parametrize("seed", range(240))
@pytest.mark.sampled(544)
def test_walk(seed: int, monkeypatch: Any) -> None:
    forward = type(attention)()  # without kernels of other calls
    if seed % 3 == 0:  # one multiprocessor takes all tiles
        monkeypatch.setattr(
            attention_scored, "scored_kernel", lambda p, t, blocks, promise: scored_kernel(p, t, 1, promise)
        )
    rng = np.random.default_rng(seed)
    form, batch, kv_heads = FORMS[seed % 4], int(rng.integers(1, 4)), int(rng.integers(1, 3))
    fast = rng.random() < 0.7
    dtype = [bf16, f16][rng.integers(2)] if fast else [f32, f64][rng.integers(2)]
    dims = (
        [(64, 64), (128, 128), (80, 80), (64, 128), (24, 40), (64, 16), (128, 48)][rng.integers(7)]
        if fast
        else (12, 20)
    )
    most = 140 if fast else 24
    each = [int(n) for n in rng.integers(0, most, batch)] if "ragged" in form else [int(rng.integers(1, most))] * batch
    lengths = (
        [int(n) for n in rng.integers(0, most, batch)] if form != "plain" else [int(rng.integers(1, most))] * batch
    )
    layout = "bhsd" if form == "ragged" or rng.random() < 0.5 else "bshd"
    starts, k_starts = (np.cumsum([0, *n]).astype(np.int32) for n in (each, lengths))
    given: dict[str, Any] = {"layout": layout}
    q = random(rng, (sum(each), 2, dims[0]), dtype)
    keys = max(lengths)
    if "pages" in form:
        (k, v), kept, given["page_table"] = cache(rng, lengths, kv_heads, dims, int(rng.integers(1, 40)), dtype, layout)
        given["kv_seqlens"], keys = np.array(lengths, np.int32), k.shape[2]
    else:
        k, v = (random(rng, (sum(lengths), kv_heads, d), dtype) for d in dims)
        kept = [k, v]
        if form == "ragged":
            given["kv_seqlens"] = k_starts
        else:
            kept = [x.reshape(batch, -1, *x.shape[1:]) for x in kept]
            kept = kept if layout == "bshd" else [np.ascontiguousarray(x.swapaxes(1, 2)) for x in kept]
        k, v = ([x[a:b].swapaxes(0, 1) for a, b in itertools.pairwise(k_starts)] for x in (k, v))
    if "ragged" in form:
        given["q_seqlens"] = starts
    options = options_of(rng, form, batch, each[0], keys)

    def dense(x: Any) -> Any:
        if "ragged" in form:
            return x
        x = x.reshape(batch, -1, *x.shape[1:])
        return x if layout == "bshd" else np.ascontiguousarray(x.swapaxes(1, 2))

    def one(x: Any, b: int, ends: Any) -> Any:
        """Of a result or a gradient the part of a sequence, (1, heads, length, dim)."""
        if "ragged" in form:
            return x[ends[b] : ends[b + 1]].swapaxes(0, 1)[None]
        return x[b : b + 1] if layout == "bhsd" else x[b : b + 1].swapaxes(1, 2)

    schedule = kd.InterpretParams(schedule=("late", "random", "eager")[seed // 4 % 3], report_unwritten=True)
    how = given | options
    out, lse = forward(dense(q), *kept, **how, return_lse=True, interpret=schedule)
    dout = random(rng, (sum(each), 2, dims[1]), dtype)
    backward = "pages" not in form
    grads = attention_backward(dense(dout), dense(q), *kept, out, lse, **how, interpret=schedule) if backward else ()
    for b in range(batch):
        if not each[b]:
            continue
        here = slice(starts[b], starts[b + 1])
        single = {n: of_number(x, b) if n.endswith("_mod") else x for n, x in options.items()}
        if "bias" in options:
            single["bias"] = bias_of(options["bias"], b, lengths[b])
        part = [x[b][None, :, : lengths[b]] for x in (k, v)]
        expected = reference.attention(
            q[here].swapaxes(0, 1)[None], *part, **single, dout=dout[here].swapaxes(0, 1)[None]
        )
        check((one(out, b, starts), lse[:, here][None] if "ragged" in form else lse[b : b + 1]), expected, dtype)
        outs = expected.out, dout[here].swapaxes(0, 1)[None]
        rounded = {n: rounding(*outs, x, single, dims[0]) for n, x in (("q", k[b]), ("k", q[here]))}
        for name, x, ends in zip("qkv", grads, (starts, k_starts, k_starts), strict=False):
            if expected.grads[name].size:
                wanted = np.linalg.norm(expected.grads[name])
                error = np.linalg.norm(np.asarray(one(x, b, ends), np.float64) - expected.grads[name])
                assert error < 2 * BOUNDS[dtype] * max(wanted, 1.0) + rounded.get(name, 0.0), name
    if backward and "bias" in options and batch == 1:
        wanted = expected.grads["bias"].reshape(options["bias"].shape)
        size = np.abs(wanted).max() if wanted.ndim > 1 else max(np.linalg.norm(wanted), 1.0)  # long sums may cancel
        assert np.abs(np.asarray(grads[-1], np.float64) - wanted).max() < 2 * BOUNDS[bf16] * size


@pytest.mark.parametrize("score", [hidden, by_distance])
def test_constants_of_functions(score: Any, rng: Any) -> None:
    """A function is traced twice, and what the first trace made is not used by what follows."""
    q, k = random(rng, (1, 2, 5, 64), bf16), random(rng, (1, 2, 9, 64), bf16)
    got = attention(q, k, k, score_mod=score, return_lse=True, interpret=True)
    check(got, reference.attention(q, k, k, score_mod=score), bf16)


@pytest.mark.parametrize(
    "places",
    [((3, 11),), *(pytest.param(x, marks=pytest.mark.slow) for x in (((3, 11), (20, 21)), ((3, 31), (40, 41))))],
)
def test_rows_of_no_sequence_count_for_nothing(places: Any, rng: Any) -> None:
    """Sequences may begin late and end early: what is there before and after is not read, whatever it holds."""
    for first, last in places:  # other lengths come to kernels for any
        q, dout = random(rng, (last + 9, 1, 64), bf16), random(rng, (last + 9, 1, 64), bf16)
        given = {"q_seqlens": np.array([first, (first + last) // 2, last], np.int32), "sinks": np.ones(1, np.float32)}
        out, lse = (np.array(x) for x in attention(q, q, q, **given, return_lse=True, interpret=True))
        here, found = slice(first, last), []
        for _ in range(2):
            grads = attention_backward(dout, q, q, q, out, lse, **given, interpret=True)
            found.append([x[here if x.ndim == 3 else ...].astype(np.float64) for x in grads])
            for x in (out, dout, q, lse.T):
                x[:first] = x[last:] = np.nan
        assert all(np.isfinite(x).all() and np.array_equal(x, y) for x, y in zip(*found, strict=True))


@pytest.mark.parametrize("dim", range(16, 257, 8))
@pytest.mark.sampled(18)
def test_values_of_any_size(dim: int, rng: Any) -> None:
    """The output lies where the queries were, so rows there have the swizzle of both."""
    for v_dim in {16, 8 * int(rng.integers(2, 33)), max(dim - 16, 16)} - {dim}:
        q, v = (kd.ShapeDtypeStruct((1, 1, 64, d), bf16) for d in (dim, v_dim))
        assert attention.lower(q, q, v, target="sm_90a").traced.outputs


@pytest.mark.parametrize("window", [2**30 - 1, 2**31 - 1, 2**31, 10**12])
@pytest.mark.parametrize("causal", [False, "bottom_right"])
@pytest.mark.sampled(12)
def test_windows_wider_than_any_array(window: int, causal: Any, rng: Any) -> None:
    """They hide nothing, in attention, its gradients and decoding, whose places are int32."""
    q, k, v = (random(rng, (1, 2, n, 64), bf16) for n in (5, 40, 40))
    how = {"causal": causal, "interpret": True}
    wide, plain = (attention(q, k, v, window=w, return_lse=True, **how) for w in (window, None))
    assert np.array_equal(wide[1], plain[1]) and np.array_equal(wide[0], plain[0])
    both = [attention_backward(q, q, k, v, *plain, window=w, **how) for w in (window, None)]
    assert all(relative(a, np.asarray(b, np.float64)) < 1e-2 for a, b in zip(*both, strict=True))
    lengths = np.array([40], np.int32)
    both = [
        kd.library.decode_attention(q, k, v, lengths, window=w, interpret=True, causal=bool(causal))
        for w in (window, None)
    ]
    assert np.array_equal(*both)


PAIRS = [
    ({"q_seqlens": 1, "bias": 1}, "bias with q_seqlens"),
    ({"page_table": 1, "q_seqlens": 1, "bias": 1}, "bias with q_seqlens"),
    ({"kv_seqlens": 1}, "kv_seqlens without q_seqlens"),
    ({"q_scale": 1}, "q_scale with bfloat16"),
    ({"page_table": 1, "k_scale": 1}, "k_scale with bfloat16"),
]


@pytest.mark.parametrize("case", PAIRS, ids=lambda c: c[-1])
def test_pairs_that_are_refused(case: Any) -> None:
    """The error says which."""
    names, words = case
    arrays = {
        "q_seqlens": np.array([0, 8], np.int32),
        "kv_seqlens": np.array([0, 8], np.int32),
        "bias": np.ones((8, 8), np.float32),
    }
    arrays |= {"page_table": np.zeros((1, 1), np.int32), "q_scale": 2.0, "k_scale": 2.0}
    q = np.ones((8, 2, 64) if "q_seqlens" in names or "kv_seqlens" in names else (1, 2, 8, 64), bf16.numpy)
    k = np.ones((1, 2, 8, 64), bf16.numpy) if "page_table" in names else q
    with pytest.raises(kd.Error, match=words):
        attention(q, k, k, **{name: arrays[name] for name in names}, interpret=True)


def test_pages_have_no_gradients() -> None:
    q, lse = np.ones((1, 2, 8, 64), bf16.numpy), np.ones((1, 2, 8), np.float32)
    with pytest.raises(kd.Error, match="keys in pages have no gradients"):
        attention_backward(q, q, q, q, q, lse, page_table=np.zeros((1, 1), np.int32), interpret=True)
