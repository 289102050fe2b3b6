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


def nearest(x: np.ndarray, to: np.dtype[Any]) -> np.ndarray:
    """In a format narrower than float32, rounded once: NumPy's and ml_dtypes' own casts round twice from float64."""
    wide = x.astype(np.longdouble) if x.dtype.kind in "iu" else x.astype(np.float64).astype(np.longdouble)
    info = ml_dtypes.finfo(to)
    smallest = np.longdouble(float(info.smallest_subnormal))
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log2(np.abs(wide)))
        step = np.maximum(np.exp2(exponent - info.nmant), smallest)
        whole = np.rint(wide / step) * step
        whole = np.where(np.isfinite(wide) & (wide != 0), whole, wide)
        return whole.astype(np.float64).astype(to)  # every rounded number is exact in float64


def rounded(exact: np.ndarray, dtype: Any) -> np.ndarray:
    """The exact values in `dtype`, rounded once; overflow as ml_dtypes has it."""
    dtype = np.dtype(dtype)
    with np.errstate(all="ignore"):
        if dtype.kind in "iub" or dtype.itemsize >= 4:
            return exact.astype(dtype)
        return nearest(exact, dtype)


def same(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Equal bit for bit, but for which not-a-number it is."""
    if got.dtype.kind in "iub":
        return got == want
    with np.errstate(invalid="ignore"):  # a signalling NaN is one as any other
        a, b = got.astype(np.float64), want.astype(np.float64)
    return ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))


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
