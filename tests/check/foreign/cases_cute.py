"""Kernels on CuTe: layouts, tiled copies and products of sm_80, TMA and wgmma of sm_90."""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

from .case import Case
from .cases_matrix import by_columns, halves
from .cases_samples import F, f32, zeros

A, B = halves(128, 320), halves(64, 320)
SOURCE, SINK, FOUR = f32(32, 64), zeros(32, 64, dtype=F), f32(32, 32)


def mapped(array: Any, box: Any, swizzle: int = 0) -> Any:
    return kd.check.tensor_map(array, box, swizzle=swizzle)


def product(*_: Any) -> Any:
    return by_columns(A, B)


BASIC = [
    Case("layouts", [f32(16, 24), zeros(24, 16, dtype=F)], lambda x, o: x.T, [1]),
    Case("tiles", [f32(64, 96), zeros(64, 96, dtype=F), 64, 96], lambda x, *_: x * 2.0 + 1, [1], (2, 3), rtol=1e-6, atol=1e-6),
    Case("tiled_copy", [f32(64, 32), zeros(64, 32, dtype=F)], lambda x, o: x, [1]),
    Case("swizzled_transpose", [halves(64, 64), zeros(64, 64, dtype=np.float16)], lambda x, o: x.T, [1]),
    Case("sgemm", [f32(40, 64), f32(40, 64), zeros(64, 64, dtype=F), 64, 64, 40], lambda a, b, *_: b.astype(float).T @ a, [2], (2, 2), 64, atol=1e-4),
    Case("hgemm_sm80", [A, B, zeros(128, 64, dtype=F), 128, 64, 320], by_columns, [2], (2, 1), 128, atol=1e-2),
]  # fmt: skip
HOPPER = [
    Case("wgmma_plain", [A[:64].copy(), B, zeros(64, 64, dtype=F), 320], by_columns, [2], 1, 128, atol=1e-2),
    Case("wgmma_tma", [mapped(A, (64, 64), 128), mapped(B, (64, 64), 128), zeros(128, 64, dtype=F), 64, 320], product, [2], (2, 1), 128, atol=1e-2),
    Case("tma_store", [mapped(SOURCE, (32, 32)), mapped(SINK, (32, 32))], None, [1], 2, 128),
    Case("tma_multicast", [mapped(FOUR, (16, 32)), zeros(4, 32, 32, dtype=F)], lambda m, o: np.tile(FOUR * 2, (4, 1)), [1], 4, 128, 2),
]  # fmt: skip
CASES = BASIC + HOPPER
