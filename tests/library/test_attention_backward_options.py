"""kd.library.attention_backward: every option alone and in pairs, against float64, and that against finite differences."""

from __future__ import annotations

from dataclasses import replace
from math import erf
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import AttentionBackwardConfig, attention, attention_backward
from kernel_dsl.library.attention_forward.slopes import BINARY, UNARY, with_derivative
from kernel_dsl.ops import math as functions
from tests.hopper.helpers import random, relative

from . import attention_reference as reference
from .test_attention_options import OPTIONS, PAIRS, inputs, made, one_of, ragged

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]
bf16, f16, f32 = kd.bfloat16, kd.float16, kd.float32
BOUNDS = {bf16: 1.2e-2, f16: 3e-3, f32: 1e-5, kd.float64: 1e-6}


def names_of(options: dict[str, Any]) -> list[str]:
    """The gradients that a call gives, in order."""
    return ["q", "k", "v", *(name for name in ("sinks", "bias") if name in options)]


def run(rng: Any, names: tuple[str, ...], shape: Any, dtype: Any, interpret: Any, **more: Any) -> Any:
    """Call and compare; `shape`: (batch, heads, key heads, queries, keys, dim, dim of values). In half of the calls lse
    has a gradient, too.
    """
    q, k, v = inputs(rng, *shape, dtype)
    options = made(names, rng, (shape[0], shape[1], shape[3], shape[4]))
    dout = random(rng, (*q.shape[:3], shape[-1]), dtype)
    more["dlse"] = random(rng, q.shape[:3], f32) if rng.random() < 0.5 else None
    expected = reference.attention(q, k, v, **options, dout=dout, dlse=more["dlse"])
    results = expected.out.astype(dtype.numpy), expected.lse.astype(np.float32)
    if more["dlse"] is not None:  # what it is without keys doesn't matter
        more["dlse"][np.isneginf(expected.lse)] = np.nan
    got = attention_backward(dout, q, k, v, *results, **options, **more, interpret=interpret)
    given = {"q": q, "k": k, "v": v} | options
    for name, x in zip(names_of(options), got, strict=True):
        assert x.dtype == given[name].dtype and x.shape == given[name].shape
        if name == "sinks":
            assert np.abs(x - expected.grads[name]).max() < BOUNDS[dtype] * expected.sinks_size
        else:
            assert relative(x, expected.grads[name]) < BOUNDS[dtype], name
    return got


@pytest.mark.parametrize("name", OPTIONS)
def test_the_reference(name: str, rng: Any) -> None:
    """Gradients of the reference are its derivatives, by central differences along random directions."""
    q, k, v = inputs(rng, 2, 4, 2, 7, 9, 6, 5, kd.float64)
    options = made((name,), rng, (2, 4, 7, 9))
    dout, dlse = rng.standard_normal((2, 4, 7, 5)), rng.standard_normal((2, 4, 7))
    given = {"q": q, "k": k, "v": v} | {n: options[n].astype(np.float64) for n in ("sinks", "bias") if n in options}
    grads = reference.attention(q, k, v, **options, dout=dout, dlse=dlse).grads
    assert list(grads.keys() - given.keys()) == []
    for which, grad in grads.items():
        way = rng.standard_normal(grad.shape)

        def moved(step: float, which: str = which, way: Any = way) -> float:
            made = reference.attention(**options | given | {which: given[which] + step * way})
            return float((made.out * dout).sum() + (np.where(np.isfinite(made.lse), made.lse, 0.0) * dlse).sum())

        slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
        assert abs(slope - (grad * way).sum()) < 1e-7 * max(1.0, abs(slope))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.sampled(42)
def test_options(name: str, interpret: Any, rng: Any) -> None:
    run(rng, (name,), (1, 2, 1, 130, 110, 64, 64), bf16, interpret)


@pytest.mark.parametrize("dims", [(16, 16), (72, 72), (40, 104), (192, 128), (128, 256), (40, 200), (256, 64),
                                  (256, 256)], ids=str)  # fmt: skip
@pytest.mark.parametrize("names", [("top_left", "window"), ("bias", "softcap"), ("documents",)], ids=str)
@pytest.mark.sampled(42)
def test_head_dimensions(dims: tuple[int, int], names: Any, rng: Any) -> None:
    """All on tensor cores, and nothing is read or stored beyond them."""
    run(rng, names, (1, 2, 1, 100, 140, *dims), bf16, kd.InterpretParams(schedule="random"))


@pytest.mark.parametrize("config", [AttentionBackwardConfig(64, splits=3), AttentionBackwardConfig(64, stages=3, dout_stages=1),
                                    AttentionBackwardConfig(64, dq_parts=2, in_turn=True, splits=2)], ids=str)  # fmt: skip
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("names", [("bottom_right", "window"), ("documents", "alibi"), ("by_head",)], ids=str)
@pytest.mark.sampled(44)
def test_configurations(config: Any, dim: int, names: Any, rng: Any) -> None:
    if dim == 256:
        config = replace(config, stages=2, dout_stages=1, dq_parts=2)
    run(rng, names, (1, 2, 1, 200, 260, dim, dim), bf16, kd.InterpretParams(schedule="late"), config=config)


@pytest.mark.parametrize("names", [("bottom_right", "window"), ("softcap",), ("documents",)], ids=str)
@pytest.mark.parametrize("dim", [64, 256])
@pytest.mark.slow  # the next test, and those of plain attention, are in the default run
def test_deterministic(dim: int, names: Any, rng: Any) -> None:
    """The same bits under each schedule: blocks add in turn, be it that others skip the step."""
    shape = (1, 2, 1, *((70, 300) if dim == 64 else (66, 180)), dim, dim)  # three blocks of keys
    bits = {
        b"".join(
            np.asarray(x).tobytes() for x in run(np.random.default_rng(1), names, shape, bf16, way, deterministic=True)
        )
        for way in (kd.InterpretParams(schedule=x, seed=n) for n, x in enumerate(("eager", "late", "random")))
    }
    assert len(bits) == 1


@pytest.mark.parametrize(
    "schedules", [("late", "random"), pytest.param(("eager", "late", "random"), marks=pytest.mark.slow)], ids=len
)
@pytest.mark.parametrize("dims", [(64, 64), (160, 160), (192, 128)], ids=str)
def test_ragged_in_turn(dims: tuple[int, int], schedules: tuple[str, ...], rng: Any) -> None:
    """Sequences of any lengths have the same bits under each schedule, and the gradients of each are right."""
    q, k, v, q_starts, k_starts = ragged(rng, (20, 0, 66), (30, 20, 140), (2, 1), dims, bf16)
    how = {"causal": "bottom_right", "q_seqlens": q_starts, "kv_seqlens": k_starts}
    dout = random(rng, (*q.shape[:2], dims[1]), bf16)
    out, lse = attention(q, k, v, **how, return_lse=True, interpret=True)
    made = [
        attention_backward(dout, q, k, v, out, lse, **how, deterministic=True, interpret=way)
        for way in (kd.InterpretParams(schedule=x) for x in schedules)
    ]
    assert len({b"".join(np.asarray(x).tobytes() for x in grads) for grads in made}) == 1
    for n in (0, 2):
        single = [one_of(x, s, n) for x, s in ((q, q_starts), (k, k_starts), (v, k_starts))]
        expected = reference.attention(*single, causal="bottom_right", dout=one_of(dout, q_starts, n))
        for name, x, starts in zip("qkv", made[0], (q_starts, k_starts, k_starts), strict=True):
            assert relative(one_of(x, starts, n), expected.grads[name]) < BOUNDS[bf16], (n, name)


def test_which_ragged_gradients_are_in_order(caplog: Any) -> None:
    """Those of wider rows run the general kernels, and say so."""
    how = {"q_seqlens": kd.ShapeDtypeStruct((9,), kd.int32), "deterministic": True, "target": "sm_90a"}
    lse = kd.ShapeDtypeStruct((4, 4090), f32)
    for dims in ((192, 128), (136, 192), (200, 64), (64, 256)):
        q, v = (kd.ShapeDtypeStruct((4090, 4, dim), bf16) for dim in dims)
        with caplog.at_level("INFO", "kernel_dsl"):
            names = [x.name for x in attention_backward.lower(v, q, q, v, v, lse, **how)]
        assert ("attention_backward_scored_wide" in names) == (max(dims) <= 192), names
        assert ("in no order beyond a head dimension of 192" in caplog.text) == (max(dims) > 192)


@pytest.mark.parametrize("pair", PAIRS[1::2], ids="-".join)
@pytest.mark.sampled(39)
def test_pairs(pair: tuple[str, str], rng: Any) -> None:
    n = PAIRS.index(pair)
    dims = [(64, 64), (128, 128), (80, 80), (48, 16), (64, 128), (192, 128), (256, 256)][n % 7]
    shape = ((2, 1)[n % 4 // 2], 2, (1, 2)[n % 3 % 2], 40 + 9 * (n % 7), 35 + 11 * (n % 6), *dims)
    schedule = kd.InterpretParams(schedule=("late", "random", "eager")[n % 3], report_unwritten=True)
    run(rng, pair, shape, (bf16, f16)[n % 8 == 3], schedule)


@pytest.mark.parametrize("pair", PAIRS[::3], ids="-".join)
@pytest.mark.sampled(42)
def test_pairs_by_lanes(pair: tuple[str, str], rng: Any) -> None:
    run(rng, pair, (2, 2, 1, 13, 21, 12, 20), kd.float64 if PAIRS.index(pair) % 2 else f32, True)


@pytest.mark.parametrize("shape", [(30, 40), (1, 1, 1, 40), (2, 1, 40), (1, 1, 30, 1), (2, 2, 30, 40)], ids=str)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.sampled(16)
def test_biases_that_broadcast(shape: Any, dtype: Any, rng: Any) -> None:
    """Their gradient is a sum, in their dtype."""
    q, k, v = inputs(rng, 2, 2, 1, 30, 40, 16, 24, dtype)
    bias, dout = random(rng, shape, dtype), random(rng, (2, 2, 30, 24), dtype)
    expected = reference.attention(q, k, v, bias=bias, causal=True, dout=dout)
    results = expected.out.astype(dtype.numpy), expected.lse.astype(np.float32)
    got = attention_backward(dout, q, k, v, *results, bias=bias, causal=True, interpret=True)
    assert got[3].dtype == dtype and got[3].shape == shape
    grad = expected.grads["bias"]  # zero where all keys of a query get the same
    assert np.abs(np.asarray(got[3], np.float64) - grad).max() < BOUNDS[dtype] * max(1.0, np.abs(grad).max())


@pytest.mark.parametrize("dims", [(64, 64), (96, 96), (128, 128), (192, 128)], ids=str)
@pytest.mark.parametrize("keys", [264, 260])
@pytest.mark.parametrize("names", [{}, {"causal": True, "window": 100}, {"score_mod": reference.alibi}, {"deterministic": True}],
                         ids=["all", "window", "alibi", "in turn"])  # fmt: skip
@pytest.mark.parametrize("dtypes", [(bf16, bf16), (f16, f16), (bf16, f32)], ids=str)
@pytest.mark.sampled(534)
def test_tiles_of_a_bias(dims: Any, keys: int, names: dict[str, Any], dtypes: Any, interpret: Any, rng: Any) -> None:
    """TMA loads a bias of all scores, and stores its gradient where that has the dtype of the products, if rows are aligned."""
    dtype = dtypes[0]
    q, k, v = inputs(rng, 1, 2, 1, 200, keys, *dims, dtype)
    options = {n: x for n, x in names.items() if n != "deterministic"} | {
        "bias": random(rng, (1, 2, 200, keys), dtypes[1])
    }
    dout = random(rng, (1, 2, 200, dims[1]), dtype)
    expected = reference.attention(q, k, v, **options, dout=dout)
    results = expected.out.astype(dtype.numpy), expected.lse.astype(np.float32)
    got = attention_backward(dout, q, k, v, *results, **options | names, interpret=interpret)
    for name, x in zip(("q", "k", "v", "bias"), got, strict=True):
        assert relative(x, expected.grads[name]) < BOUNDS[dtype], name


def test_layout(rng: Any) -> None:
    q, k, v = inputs(rng, 2, 4, 2, 40, 50, 64, 64, bf16)
    dout = random(rng, q.shape, bf16)
    expected = reference.attention(q, k, v, causal=True, dout=dout)
    swapped = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (dout, q, k, v, expected.out.astype(bf16.numpy))]
    got = attention_backward(*swapped, expected.lse.astype(np.float32), layout="bshd", causal=True, interpret=True)
    for name, x in zip("qkv", got, strict=True):
        assert relative(x.swapaxes(1, 2), expected.grads[name]) < BOUNDS[bf16]


@pytest.mark.parametrize(
    "names", [(), ("top_left",), ("bottom_right", "window", "sinks"), ("alibi", "documents")], ids=str
)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.sampled(30)
def test_ragged(names: Any, dtype: Any, in_turn: bool, rng: Any) -> None:
    """Sequences don't see one another, and what another holds doesn't matter, be it NaN."""
    q_lens, k_lens = ((70, 0, 37, 90), (60, 50, 0, 110)) if dtype == bf16 else ((9, 0, 7, 21), (18, 3, 0, 10))
    q, k, v, q_starts, k_starts = ragged(rng, q_lens, k_lens, (2, 1), (64, 64) if dtype == bf16 else (12, 8), dtype)
    options = made(names, rng, (1, 2, 0, 0))
    dout, dlse = random(rng, (*q.shape[:2], v.shape[2]), dtype), random(rng, q.shape[1::-1], f32)
    lengths = {"q_seqlens": q_starts, "kv_seqlens": k_starts}
    out, lse = attention(q, k, v, **lengths, **options, return_lse=True, interpret=True)
    for poisoned in (False, True):
        if poisoned:
            for x, starts in ((q, q_starts), (dout, q_starts), (out, q_starts), (k, k_starts), (v, k_starts)):
                x[: starts[1]] = x[starts[-2] :] = np.nan
            dlse[:, : q_starts[1]] = dlse[:, q_starts[-2] :] = np.nan
        more = lengths | options | {"dlse": dlse, "deterministic": in_turn}
        got = attention_backward(dout, q, k, v, out, lse, **more, interpret=True)
        sinks = 0.0
        for n in range(poisoned, len(q_lens) - poisoned):
            if not q_lens[n]:
                here = slice(k_starts[n], k_starts[n + 1])
                assert not any(np.asarray(x[here], np.float64).any() for x in got[1:3])
                continue
            single = [one_of(x, s, n) for x, s in ((q, q_starts), (k, k_starts), (v, k_starts))]
            moved = dlse[None, :, q_starts[n] : q_starts[n + 1]]
            expected = reference.attention(*single, **options, dout=one_of(dout, q_starts, n), dlse=moved)
            for name, x, starts in zip("qkv", got, (q_starts, k_starts, k_starts), strict=False):
                if expected.grads[name].size:
                    assert relative(one_of(x, starts, n), expected.grads[name]) < BOUNDS[dtype], (n, name)
            sinks = sinks + expected.grads.get("sinks", 0.0)
        if "sinks" in options and not poisoned:
            assert relative(got[3], sinks) < BOUNDS[dtype]


@pytest.mark.parametrize("names", [(), ("bottom_right", "window", "sinks"), ("by_head",)], ids=str)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.sampled(6)
def test_rows_after_the_last_sequence(names: Any, dtype: Any, rng: Any) -> None:
    """They may be NaN, and see no key: zeros without gradients, of which none is left unwritten."""
    q, k, v, starts, k_starts = ragged(rng, (5, 70), (30, 20), (2, 1), (64, 64), dtype)
    q, k, v = (np.concatenate([x, np.full_like(x[:n], np.nan)]) for x, n in ((q, 45), (k, 150), (v, 150)))
    options = made(names, rng, (2, 2, 0, 0)) | {"q_seqlens": starts, "kv_seqlens": k_starts}
    way = kd.InterpretParams(report_unwritten=True)
    out, lse = attention(q, k, v, **options, return_lse=True, interpret=way)
    assert not out[75:].astype(np.float32).any() and np.isfinite(out.astype(np.float32)).all()
    assert (options.get("sinks", -np.inf) == lse[:, 75:].T).all()
    dlse = np.where(np.arange(120) < 75, np.float32(1), np.float32(np.nan)) * np.ones_like(lse)
    dq, dk, dv, *sinks = attention_backward(q.copy(), q, k, v, out, lse, **options, dlse=dlse, interpret=way)
    for x, end in ((dq, 75), (dk, 50), (dv, 50)):
        assert not x[end:].astype(np.float32).any() and np.isfinite(x.astype(np.float32)).all()
    assert np.isfinite(sinks).all() and np.abs(dv[:50].astype(np.float32)).max() > 0


# --- derivatives of score_mod ---------------------------------------------------------------------

FUNCTIONS: dict[str, tuple[Any, Any]] = {  # of a score, and its derivative
    "neg": (lambda x: -x, lambda x: -np.ones_like(x)),
    "abs": (abs, np.sign),
    "exp": (kd.exp, np.exp),
    "exp2": (kd.exp2, lambda x: np.exp2(x) * np.log(2)),
    "exp10": (kd.exp10, lambda x: 10.0**x * np.log(10)),
    "expm1": (kd.expm1, np.exp),
    "log": (lambda x: kd.log(x * x), lambda x: 2 / x),
    "log2": (lambda x: kd.log2(x * x), lambda x: 2 / x / np.log(2)),
    "log10": (lambda x: kd.log10(x * x), lambda x: 2 / x / np.log(10)),
    "log1p": (lambda x: kd.log1p(x * x), lambda x: 2 * x / (1 + x * x)),
    "sin": (kd.sin, np.cos),
    "cos": (kd.cos, lambda x: -np.sin(x)),
    "tan": (lambda x: kd.tan(x / 4), lambda x: 0.25 / np.cos(x / 4) ** 2),
    "atan": (kd.arctan, lambda x: 1 / (1 + x * x)),
    "sinh": (kd.sinh, np.cosh),
    "cosh": (kd.cosh, np.sinh),
    "tanh": (kd.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "sqrt": (lambda x: kd.sqrt(x * x + 1), lambda x: x / np.sqrt(x * x + 1)),
    "rsqrt": (lambda x: kd.rsqrt(x * x + 1), lambda x: -x * (x * x + 1) ** -1.5),
    "logistic": (kd.logistic, lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2),
    "erf": (kd.erf, lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x)),
    "erfc": (kd.erfc, lambda x: -2 / np.sqrt(np.pi) * np.exp(-x * x)),
    "erf_inv": (lambda x: kd.erf_inv(x / 4), lambda x: _erf_inv_slope(x / 4) / 4),
    "asin": (lambda x: kd.asin(x / 4), lambda x: (16 - x * x) ** -0.5),
    "acos": (lambda x: kd.acos(x / 4), lambda x: -((16 - x * x) ** -0.5)),
    "asinh": (kd.asinh, lambda x: (1 + x * x) ** -0.5),
    "acosh": (lambda x: kd.acosh(x + 5), lambda x: ((x + 5) ** 2 - 1) ** -0.5),
    "atanh": (lambda x: kd.atanh(x / 4), lambda x: 4 / (16 - x * x)),
    "cbrt": (lambda x: kd.cbrt(x + 4), lambda x: (x + 4) ** (-2 / 3) / 3),
    "pow": (lambda x: kd.power(kd.abs(x) + 1, 1.5), lambda x: 1.5 * np.sqrt(np.abs(x) + 1) * np.sign(x)),
    "pow by exponent": (lambda x: kd.power(1.5, x), lambda x: 1.5**x * np.log(1.5)),
    "pow by both": (lambda x: kd.power(x + 4, x), lambda x: (x + 4) ** x * (np.log(x + 4) + x / (x + 4))),
    "hypot": (lambda x: kd.hypot(x, 2 * x + 1), lambda x: (5 * x + 2) / np.hypot(x, 2 * x + 1)),
    "atan2": (lambda x: kd.atan2(x, x + 5), lambda x: 5 / (x * x + (x + 5) ** 2)),
    "logaddexp": (lambda x: kd.logaddexp(x, -2 * x), lambda x: 1 - 3 / (1 + np.exp(3 * x))),
    "logaddexp2": (lambda x: kd.logaddexp2(3.0, x), lambda x: 1 / (1 + 2 ** (3 - x))),
    "fmod": (lambda x: x * kd.fmod(x, 1.5), lambda x: np.fmod(x, 1.5) + x),
    "remainder": (lambda x: kd.remainder(4.0, x + 4), lambda x: -np.floor(4 / (x + 4))),
    "copysign": (lambda x: kd.copysign(x * x, x), lambda x: 2 * np.abs(x)),
    "rint": (lambda x: x * kd.rint(x), np.rint),
    "quotient": (lambda x: x / (x * x + 2) - 3 / (x + 20), lambda x: (2 - x * x) / (x * x + 2) ** 2 + 3 / (x + 20) ** 2),
    "choice": (lambda x: kd.where(x > 0.5, x * 3, 2 - x), lambda x: np.where(x > 0.5, 3.0, -1.0)),
    "clip": (lambda x: kd.minimum(kd.maximum(x, -1.0), 2.0 * x), lambda x: np.where(np.maximum(x, -1) < 2 * x, np.where(x > -1, 1, 0), 2)),
    "fma": (lambda x: kd.fma(x, x, -x), lambda x: 2 * x - 1),
    "cast": (lambda x: (x.astype(kd.float64) * x).astype(kd.float32), lambda x: 2 * x),
    "floor": (lambda x: x * (x // 1), np.floor),
    "nothing": (kd.zeros_like, np.zeros_like),
}  # fmt: skip


def _erf_inv_slope(y: Any) -> Any:
    """The derivative of the inverse of erf, by bisection."""
    low, high = np.full(y.shape, -6.0), np.full(y.shape, 6.0)
    for _ in range(80):
        middle = (low + high) / 2
        below = np.vectorize(erf)(middle) < y
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.sqrt(np.pi) / 2 * np.exp(low * low)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.sampled(2)
def test_derivatives(name: str, rng: Any) -> None:
    """Of each operation that has a rule."""
    function, derivative = FUNCTIONS[name]

    def body(x: Any, out: Any) -> None:
        made, slope = with_derivative(function, x[...], ())
        assert made.shape == x.shape
        out[...] = slope if hasattr(slope, "shape") else kd.full(x.shape, slope, kd.float32)

    x = rng.uniform(-3, 3, 256).astype(np.float32)
    got = kd.kernel(body, out_type=kd.ShapeDtypeStruct(x.shape, f32))(x, interpret=True)
    assert np.allclose(got, derivative(x.astype(np.float64)), rtol=2e-5, atol=2e-5)


def test_every_rule_is_tested() -> None:
    assert {op.op_name for op in (*UNARY, *BINARY)} <= set(FUNCTIONS)


def test_every_smooth_function_has_a_rule() -> None:
    """Of those that the table of mathematical functions has."""
    ops = {x.op for name in functions.__all__ if hasattr(x := getattr(functions, name), "op")} | {functions.Pow}
    assert len(ops) > 30 and ops <= {*UNARY, *BINARY}


def test_a_given_derivative(rng: Any) -> None:
    """It is taken as it is."""
    q, k, v = inputs(rng, 1, 2, 1, 20, 30, 16, 16, f32)
    dout = random(rng, q.shape, f32)

    def mod(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return x + x * x * 0.1 * (h + 1)

    def grad(x: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return 1 + x * 0.2 * (h + 1)

    expected = reference.attention(q, k, v, score_mod=mod, dout=dout)
    results = expected.out.astype(np.float32), expected.lse.astype(np.float32)
    for more in ({"score_mod_grad": grad}, {}):
        got = attention_backward(dout, q, k, v, *results, score_mod=mod, **more, interpret=True)
        assert all(relative(x, expected.grads[n]) < 1e-5 for n, x in zip("qkv", got, strict=True))
    got = attention_backward(dout, q, k, v, *results, score_mod=mod, score_mod_grad=lambda x, *_: x * 0, interpret=True)
    assert not got[0].any() and relative(got[2], expected.grads["v"]) < 1e-5


def test_no_derivative(rng: Any) -> None:
    q = np.ones((1, 1, 8, 16), np.float32)
    lse = np.zeros((1, 1, 8), np.float32)
    for function, word in (
        (
            lambda x, *_: kd.bitcast_convert_type(kd.bitcast_convert_type(x, kd.int32), x.dtype),
            "`bitcast`, which has no d",
        ),
        (lambda x, b, h, i, j: kd.cond(h == 0, lambda y: y, lambda y: -y, x), "`if`, which has no derivative"),
        (lambda x, *_: kd.cumsum(x, axis=1), "`scan`, which has no derivative"),
        (lambda x, *_: kd.cond(x[0, 0] > 0, lambda y: y, lambda y: -y, x), "which has no derivative"),
    ):
        with pytest.raises(kd.Error, match=word):
            attention_backward(q, q, q, q, q, lse, score_mod=function, interpret=True)


Q, LSE = np.ones((1, 2, 8, 64), np.float16), np.ones((1, 2, 8), np.float32)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"score_mod_grad": lambda x, *_: x}, "score_mod_grad without score_mod"),
    ({"score_mod": lambda x, *_: x, "score_mod_grad": 3}, "score_mod_grad is an int"),
    ({"score_mod": lambda x, *_: x, "score_mod_grad": lambda x, *_: None}, "the score_mod_grad made None"),
    ({"causal": "left"}, "causal='left'"),
    ({"window": 0}, "window=0"),
    ({"bias": np.ones((3, 3), np.float32)}, r"bias is \(3, 3\)"),
    ({"q_seqlens": np.array([0, 8], np.int32)}, "q is an ndarray"),
    ({"page_table": 1}, "page_table"),
    ({"dlse": LSE[0]}, r"dlse is \(2, 8\)"),
    ({"dlse": LSE.astype(np.float16)}, "dlse is float16"),
    ({"dlse": 1.0}, "dlse is a float"),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda c: c[-1])
def test_wrong_arguments(case: Any) -> None:
    options, words = case
    with pytest.raises(kd.Error, match=words):
        attention_backward(Q, Q, Q, Q, Q, LSE, interpret=True, **options)


def test_float8_has_no_gradients() -> None:
    q = Q.astype(kd.float8_e4m3fn.numpy)
    with pytest.raises(ValueError, match="float8 inputs have no gradients"):
        attention_backward(q, q, q, q, q, LSE, interpret=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (72, 72), (192, 128)], ids=str)
@pytest.mark.parametrize("names", [("window", "top_left"), ("softcap",), ("alibi", "bottom_right"), ("bias", "sinks"), ("documents",)],
                         ids=str)  # fmt: skip
def test_long_on_a_gpu(dims: tuple[int, int], names: Any, rng: Any) -> None:
    run(rng, names, (2, 4, 2, 500, 700, *dims), bf16, False)
