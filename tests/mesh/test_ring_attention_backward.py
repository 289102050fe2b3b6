"""Gradients of ring attention against float64: causal or not, shared heads of keys, ends inside a tile, schedules."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import library
from kernel_dsl.errors import BadArgument, BadArgumentType
from tests.mesh.test_ring_attention import inputs

BF16 = ml_dtypes.bfloat16
SLOW = pytest.mark.slow
# of the largest gradient, by dtype: what rounding weights and results gives; of float64, what lse in float32 does
BOUND = {BF16: 2e-2, np.float16: 3e-3, np.float32: 2e-6, np.float64: 1e-6}


def reference(arrays: list[list[Any]], causal: bool, scale: float, dlse: Any = 0.0) -> tuple[list[Any], ...]:
    """(out, lse, dq, dk, dv) of q, k, v and dout, in float64, each device's part; `dlse`: of all devices."""
    n = len(arrays[0])
    q, k, v, dout = (np.concatenate([a.astype(np.float64) for a in x], axis=2) for x in arrays)
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (np.repeat(x, group, axis=1) for x in (k, v))
    scores = q @ wide_k.swapaxes(-1, -2) * scale
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    lse = np.log(np.exp(scores).sum(-1))
    weights = np.exp(scores - lse[..., None])
    out = weights @ wide_v
    slopes = weights * (dout @ wide_v.swapaxes(-1, -2) - (dout * out).sum(-1, keepdims=True) + dlse) * scale

    def shared(x: Any) -> Any:
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    dk, dv = shared(slopes.swapaxes(-1, -2) @ q), shared(weights.swapaxes(-1, -2) @ dout)
    return tuple(np.split(x, n, axis=2) for x in (out, lse, slopes @ wide_k, dk, dv))


def check(n: int, shape: tuple[int, ...], kv_heads: int, dtype: Any, causal: bool, schedule: dict[str, Any]) -> None:
    q, k, v = inputs(n, shape, kv_heads, dtype)
    rng = np.random.default_rng(7)
    dout = [rng.standard_normal(shape).astype(dtype) for _ in range(n)]
    mesh = kd.Mesh(("x",), (n,))
    how: dict[str, Any] = {"causal": causal, "interpret": kd.InterpretParams(**schedule)}
    moved = causal  # whether lse has a gradient
    dlse = [rng.standard_normal(shape[:3]).astype(np.float32) * moved for _ in range(n)]
    out, lse, *want = reference([q, k, v, dout], causal, shape[3] ** -0.5, np.concatenate(dlse, 2)[..., None])
    out, lse = [x.astype(dtype) for x in out], [x.astype(np.float32) for x in lse]
    how |= {"dlse": dlse} if moved else {}
    got = library.ring_attention_backward(dout, q, k, v, out, lse, mesh, **how)
    for grads, wants, x in zip(got, want, (q, k, v), strict=True):
        largest = max(np.abs(w).max() for w in wants)
        for g, w, a in zip(grads, wants, x, strict=True):
            assert g.dtype == dtype and g.shape == a.shape
            assert np.abs(g.astype(np.float64) - w).max() <= BOUND[dtype] * largest


# devices, shape, kv_heads, dtype, causal, schedule
CASES = [
    pytest.param(2, (1, 1, 70, 16), 1, BF16, True, {"seed": 1}),
    pytest.param(2, (1, 2, 128, 64), 1, BF16, True, {"seed": 2}),
    pytest.param(2, (1, 1, 128, 128), 1, np.float16, False, {"seed": 3}, marks=SLOW),
    pytest.param(3, (2, 1, 128, 64), 1, BF16, True, {"schedule": "late"}, marks=SLOW),
    pytest.param(2, (1, 2, 40, 64), 1, BF16, False, {"seed": 6}, marks=SLOW),
    pytest.param(4, (1, 2, 20, 8), 1, np.float16, False, {"schedule": "late"}, marks=SLOW),
    pytest.param(2, (1, 2, 5, 12), 1, np.float32, True, {"schedule": "eager"}, marks=SLOW),
    pytest.param(3, (2, 1, 7, 5), 1, np.float64, False, {"seed": 2}, marks=SLOW),
    pytest.param(4, (1, 2, 70, 128), 1, BF16, True, {"seed": 3}, marks=SLOW),
    pytest.param(2, (1, 2, 96, 256), 1, np.float16, True, {"seed": 4}, marks=SLOW),
    pytest.param(1, (1, 2, 33, 40), 2, BF16, True, {"seed": 5}, marks=SLOW),
]


@pytest.mark.parametrize(("n", "shape", "kv_heads", "dtype", "causal", "schedule"), CASES)
@pytest.mark.sampled(2)
def test_each(
    n: int, shape: tuple[int, ...], kv_heads: int, dtype: Any, causal: bool, schedule: dict[str, Any]
) -> None:
    check(n, shape, kv_heads, dtype, causal, schedule)


@pytest.mark.parametrize("n", [1, pytest.param(2, marks=SLOW)])
def test_the_fast_gradients_into_arrays_given(n: int) -> None:
    """Calls give the same bits."""
    dout, q, k, v = (list(np.random.default_rng(s).standard_normal((n, 1, 1, 128, 64)).astype(BF16)) for s in range(4))
    mesh = kd.Mesh(("x",), (n,))
    how: dict[str, Any] = {"causal": True, "interpret": True}
    out, lse = library.ring_attention(q, k, v, mesh, return_lse=True, **how)
    made = library.ring_attention_backward(dout, q, k, v, out, lse, mesh, **how)
    grads = tuple([np.full_like(x, np.nan) for x in q] for _ in range(3))
    library.ring_attention_backward(dout, q, k, v, out, lse, mesh, grads=grads, **how)
    for a, b in zip(made, grads, strict=True):
        assert all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


@SLOW
@pytest.mark.parametrize("seed", range(16))
def test_each_under_many_schedules(seed: int) -> None:
    schedule = {"seed": seed} if seed % 5 else {"schedule": ("late", "eager")[seed % 2]}
    check(2 + 2 * (seed % 4 == 0), (1, 4, 70, 32), 2, (BF16, np.float16)[seed % 3 == 0], seed % 2 == 0, schedule)


def given(n: int, shape: tuple[int, ...], dtype: Any) -> list[list[Any]]:
    """dout, q, k, v, out and lse, of zeros."""
    kinds = [(shape, dtype)] * 5 + [(shape[:3], np.float32)]
    return [[np.zeros(kind, x) for _ in range(n)] for kind, x in kinds]


def test_what_the_forward_says_is_what_the_gradients_take() -> None:
    """The slow forward's out and lse on two devices; results in `grads`, with the same bits."""
    q, k, v = inputs(2, (1, 2, 20, 8), 1, np.float16)
    mesh = kd.Mesh(("x",), (2,))
    want = reference([q, k, v, q], True, 0.25)
    outs = [np.full_like(x, np.nan) for x in q], [np.full((1, 2, 20), np.nan, np.float32) for _ in q]
    how: dict[str, Any] = {"causal": True, "scale": 0.25, "interpret": kd.InterpretParams(schedule="late")}
    out, lse = library.ring_attention(q, k, v, mesh, return_lse=True, out=outs, **how)
    for rows, wants, bound in ((outs[0], want[0], 3e-3), (outs[1], want[1], 2e-6)):
        for got, row in zip(rows, wants, strict=True):
            assert np.abs(got - row).max() <= bound
    grads = tuple([np.full_like(a, np.nan) for a in x] for x in (q, k, v))
    made = library.ring_attention_backward(q, q, k, v, out, lse, mesh, **how)
    library.ring_attention_backward(q, q, k, v, out, lse, mesh, grads=grads, **how)
    for got, again, wants in zip(made, grads, want[2:], strict=True):
        largest = max(np.abs(w).max() for w in wants)
        for g, h, w in zip(got, again, wants, strict=True):
            assert np.array_equal(g, h) and np.abs(g - w).max() <= BOUND[np.float16] * largest


@pytest.mark.parametrize("causal", [pytest.param(False, marks=SLOW), True])
def test_lse_of_the_fast_forward(causal: bool) -> None:
    q, k, v = inputs(2, (1, 1, 128, 64), 1, BF16)
    mesh, how = kd.Mesh(("x",), (2,)), kd.InterpretParams(schedule="eager")
    out, lse = library.ring_attention(q, k, v, mesh, causal=causal, return_lse=True, interpret=how)
    want = reference([q, k, v, q], causal, 0.125)
    for got, wanted, logs, wanted_logs in zip(out, want[0], lse, want[1], strict=True):
        assert logs.dtype == np.float32 and np.abs(logs - wanted_logs).max() <= 1e-4
        assert np.abs(got.astype(np.float64) - wanted).max() <= 2e-2


def test_what_is_refused() -> None:
    mesh = kd.Mesh(("x",), (2,))
    dout, q, k, v, out, lse = given(2, (1, 2, 4, 8), np.float32)
    call: Any = library.ring_attention_backward
    with pytest.raises(BadArgument, match="lse is"):
        call(dout, q, k, v, out, [x[..., :3] for x in lse], mesh)
    with pytest.raises(BadArgumentType, match="dout is float64"):
        call([x.astype(np.float64) for x in dout], q, k, v, out, lse, mesh)
    with pytest.raises(BadArgument, match="heads a multiple of kv_heads"):
        call(dout, q, *[[np.zeros((1, 3, 4, 8), np.float32)] * 2] * 2, out, lse, mesh)
    with pytest.raises(BadArgument, match="shares memory"):
        call(dout, q, k, v, out, lse, mesh, grads=(q, out, out))
    with pytest.raises(BadArgument, match="dk is"):
        call(dout, q, k, v, out, lse, mesh, grads=([np.zeros_like(x) for x in q], [x[..., :3] for x in k], v))
    with pytest.raises(BadArgumentType, match="grads is a list"):
        call(dout, q, k, v, out, lse, mesh, grads=q)
    with pytest.raises(BadArgumentType, match="no gradients"):
        call(*given(2, (1, 1, 4, 8), ml_dtypes.float8_e4m3fn), mesh)
    with pytest.raises(BadArgumentType, match="a list of 2 arrays"):
        call(dout, q, k, v, out, lse[:1], mesh)
    with pytest.raises(BadArgumentType, match="out= is"):
        library.ring_attention(q, k, v, mesh, return_lse=True, out=7)
