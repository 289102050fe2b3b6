"""Tensor cores by wmma and by mma, ldmatrix, cp.async as their headers and inline PTX make them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .case import Case
from .cases_samples import F, R, f32, i32, zeros

H = np.float16


def product(a: Any, b: Any, *_: Any) -> Any:
    return a.astype(float) @ b.astype(float)


def by_columns(a: Any, b: Any, *_: Any) -> Any:
    return a.astype(float) @ b.astype(float).T


def nibbles(x: Any) -> Any:
    words = x.view(np.uint32).reshape(8, -1)
    v = (words[:, :, None] >> (4 * np.arange(8, dtype=np.uint32)) & 15).astype(int).reshape(8, -1)
    return v - 16 * (v > 7)


def epilogue(a: Any, b: Any, c: Any, bias: Any) -> Any:
    return np.maximum(product(a, b) + bias, 0)


def converted(x: Any, out: Any) -> Any:
    h = np.array([np.nextafter(H(v), H(0)) if abs(float(H(v))) > abs(v) else H(v) for v in x.tolist()])
    kinds = (x.astype(ml_dtypes.float8_e4m3fn), x.astype(ml_dtypes.float8_e5m2), h, (-x).astype(ml_dtypes.bfloat16))
    return np.stack([k.astype(F) for k in kinds], 1)


def attention(q: Any, k: Any, v: Any, o: Any, n: int, scale: float) -> Any:
    e = np.exp(by_columns(q, k) * scale)
    return e / e.sum(1, keepdims=True) @ v.astype(float)


def case(
    name: str,
    make: Any,
    out: Any,
    want: Any = by_columns,
    m: int = 32,
    n: int = 32,
    k: int = 64,
    tile: Any = (16, 16),
    **more: Any,
) -> Case:
    a, b = make(m, k), make(n, k)
    if want is product:
        b = make(k, n)
    return Case(name, [a, b, np.zeros((m, n), out), m, n, k], want, [2], (m // tile[0], n // tile[1]), 32, **more)


def halves(*shape: int) -> Any:
    return f32(*shape).astype(H)


X = f32(64) * 3
A8, B8 = i32(16, 8, low=-(2**31), high=2**31), i32(8, 8, low=-(2**31), high=2**31)

CASES = [
    case("wmma_f16", halves, F, atol=1e-3),
    case("wmma_f16_rows", halves, F, product, tile=(32, 8), atol=1e-3),
    Case("wmma_f16_sums", [halves(64, 32), halves(64, 32), zeros(32, 32, dtype=H), 32, 32, 64], lambda a, b, *_: a.astype(float).T @ b, [2], (4, 1), 32, atol=0.1, rtol=1e-2),
    case("wmma_bf16", lambda *s: f32(*s).astype(ml_dtypes.bfloat16), F, atol=1e-3),
    case("wmma_tf32", f32, F, atol=5e-2),
    case("wmma_f64", lambda *s: R.standard_normal(s), float, m=16, n=16, k=16, tile=(8, 8), atol=1e-12),
    case("wmma_s8", lambda *s: R.integers(-128, 128, s).astype(np.int8), np.int32),
    case("wmma_u8", lambda *s: R.integers(0, 256, s).astype(np.uint8), np.int32),
    Case("wmma_s4", [A8[:8], B8, zeros(8, 8), 64], lambda a, b, *_: nibbles(a) @ nibbles(b).T, [2], 1, 32),
    Case("mma_stages", [halves(64, 128), halves(128, 64), zeros(64, 64, dtype=F), 64, 64, 128], product, [2], (2, 1), 128, atol=1e-3),
    Case("mma_s8", [A8, B8, zeros(16, 8)], lambda a, b, c: a.view(np.int8).astype(int) @ b.view(np.int8).astype(int).T, [2], 1, 32),
    Case("mma_tf32", [f32(16, 8), f32(8, 8), zeros(16, 8, dtype=F)], by_columns, [2], 1, 32, atol=1e-2),
    Case("pipeline_primitives", [f32(512, 4), zeros(512, 4, dtype=F), 4], lambda x, *_: x.reshape(4, 128, 4)[:, ::-1], [1]),
    Case("copy_zero_fill", [f32(100), zeros(128, dtype=F), 98], lambda x, o, n: np.append(x[:n], np.zeros(30)).reshape(32, 4)[::-1], [1], 1, 32),
    Case("stage_epilogue", [halves(16, 16), halves(16, 64), zeros(16, 64, dtype=H), halves(64)], epilogue, [2], 1, 128, atol=2e-2, rtol=1e-2),
    Case("conversions", [X, zeros(64, 4, dtype=F)], converted, [1], 1, 64),
    Case("attention", [halves(32, 32), halves(128, 32), halves(128, 32), zeros(32, 32, dtype=F), 128, 0.2], attention, [3], 2, 128, atol=2e-3),
]  # fmt: skip
