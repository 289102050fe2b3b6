"""Agreement with a reference in higher precision."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np


def ulp(exact: np.ndarray, dtype: Any) -> np.ndarray:
    """The spacing of `dtype` at each of the exact values (float64)."""
    info = ml_dtypes.finfo(dtype)
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log2(np.maximum(np.abs(exact.astype(np.float64)), float(info.tiny))))
    return np.exp2(exponent - info.nmant)


def rounded(exact: np.ndarray, dtype: Any) -> np.ndarray:
    """The exact values in `dtype`: floats narrower than 32 bits go through float32, as the hardware computes them."""
    dtype = np.dtype(dtype)
    with np.errstate(all="ignore"):
        if dtype.kind in "iub":
            return exact.astype(dtype)
        return exact.astype(np.float32).astype(dtype) if dtype.itemsize < 4 else exact.astype(dtype)


def agree(actual: np.ndarray, exact: np.ndarray, ulps: float = 0, message: str = "") -> None:
    """`actual` is `exact` rounded to its dtype, give or take `ulps`. Not-a-numbers agree with each other."""
    actual, exact = np.asarray(actual), np.asarray(exact)
    assert actual.shape == exact.shape, f"{message}: shape {actual.shape}, not {exact.shape}"
    want = rounded(exact, actual.dtype)
    if actual.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, want, err_msg=message)
        return
    a, w = actual.astype(np.float64), want.astype(np.float64)
    same = (a == w) | (np.isnan(a) & np.isnan(w))
    if same.all():
        return
    with np.errstate(all="ignore"):
        off = np.abs(a - w) / ulp(w, actual.dtype)
    # an overflow of the rounded value is the last step of a finite neighbour
    bad = ~same & ~(off <= ulps)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise AssertionError(
            f"{message}: {int(bad.sum())} of {bad.size} differ; at {where} {a[where]!r} for {w[where]!r}, {off[where]:.1f} ulp"
        )
