"""Products of sm_100 on CuTe."""

from __future__ import annotations

import numpy as np

from .case import Case
from .cases_matrix import halves
from .cases_samples import F, f32, zeros

A, B = halves(256, 320), halves(128, 320)
WIDE_A, WIDE_B = ((f32(*s).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for s in ((128, 96), (128, 96)))


def by_rows(a: np.ndarray, b: np.ndarray, *_: object) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64).T


CASES = [
    Case("sm100_f16", [A, B, zeros(256, 128, dtype=F), 256, 128, 320], by_rows, [2], (2, 2), 128, atol=1e-3),
    Case("sm100_narrow", [A, B, zeros(256, 128, dtype=F), 256, 128, 320], by_rows, [2], (4, 4), 128, atol=1e-3),
    Case("sm100_tf32", [WIDE_A, WIDE_B, zeros(128, 128, dtype=F), 128, 128, 96], by_rows, [2], (1, 2), 128, atol=1e-3),
    Case("sm100_plain", [A, B, zeros(256, 128, dtype=F), 256, 128, 320], by_rows, [2], (2, 4), 128, atol=1e-3),
]  # fmt: skip
