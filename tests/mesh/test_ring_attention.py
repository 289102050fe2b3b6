"""Ring attention against float64: both kernels, causal or not, shared heads of keys, schedules."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import library
from kernel_dsl.errors import BadArgument, BadArgumentType

BF16 = ml_dtypes.bfloat16
SLOW = pytest.mark.slow


def reference(q: list[Any], k: list[Any], v: list[Any], causal: bool, scale: float) -> list[np.ndarray]:
    Q, K, V = (np.concatenate([a.astype(np.float64) for a in x], axis=2) for x in (q, k, v))
    K, V = (np.repeat(x, Q.shape[1] // K.shape[1], axis=1) for x in (K, V))
    scores = Q @ K.swapaxes(-1, -2) * scale
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.split(weights / weights.sum(-1, keepdims=True) @ V, len(q), axis=2)


def inputs(n: int, shape: tuple[int, ...], kv_heads: int, dtype: Any) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(0)
    kinds = [shape, *[(shape[0], kv_heads, *shape[2:])] * 2]
    return [[rng.standard_normal(kind).astype(dtype) for _ in range(n)] for kind in kinds]


def check(n: int, shape: tuple[int, ...], kv_heads: int, dtype: Any, causal: bool, schedule: dict[str, Any]) -> None:
    arrays = inputs(n, shape, kv_heads, dtype)
    interpret = kd.InterpretParams(**schedule)
    got = library.ring_attention(*arrays, kd.Mesh(("x",), (n,)), causal=causal, interpret=interpret)
    bound = {BF16: 2e-2, np.float16: 3e-3, np.float32: 2e-6, np.float64: 1e-14}[dtype]
    for g, want in zip(got, reference(*arrays, causal, shape[3] ** -0.5), strict=True):
        assert g.dtype == dtype and np.abs(g.astype(np.float64) - want).max() <= bound


# devices, shape, kv_heads, dtype, causal
CASES = [
    pytest.param(2, (1, 1, 128, 64), 1, np.float16, False, marks=SLOW),
    pytest.param(2, (1, 2, 128, 64), 1, BF16, True),
    pytest.param(2, (2, 2, 256, 64), 2, BF16, True, marks=SLOW),
    pytest.param(4, (1, 2, 128, 128), 1, np.float16, True, marks=SLOW),
    pytest.param(4, (1, 2, 128, 64), 2, BF16, False, marks=SLOW),
    pytest.param(2, (1, 2, 5, 12), 1, np.float32, True),
    pytest.param(3, (1, 1, 7, 5), 1, np.float64, False, marks=SLOW),
]


@pytest.mark.parametrize(("n", "shape", "kv_heads", "dtype", "causal"), CASES)
def test_each(n: int, shape: tuple[int, ...], kv_heads: int, dtype: Any, causal: bool) -> None:
    check(n, shape, kv_heads, dtype, causal, {"seed": 1})


@SLOW
@pytest.mark.parametrize("seed", range(16))
def test_each_under_many_schedules(seed: int) -> None:
    schedule = {"seed": seed} if seed % 5 else {"schedule": ("late", "eager")[seed % 2]}
    check(2 + 2 * (seed % 4 == 0), (1, 2, 128, 64), 1, BF16, seed % 2 == 0, schedule)


def test_what_is_refused() -> None:
    mesh = kd.Mesh(("x",), (2,))
    q, k, v = inputs(2, (1, 3, 4, 8), 2, np.float32)
    with pytest.raises(BadArgument, match="heads a multiple of kv_heads"):
        library.ring_attention(q, k, v, mesh)
    with pytest.raises(BadArgumentType, match="floats of one dtype"):
        library.ring_attention(q, q, [x.astype(np.float64) for x in q], mesh)
    with pytest.raises(BadArgument, match="shares memory"):
        library.ring_attention(q, q, q, mesh, out=q)
