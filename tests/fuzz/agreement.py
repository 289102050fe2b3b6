"""What a step's result may be, given its reference's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests import compare
from tests.ops.patterns import EITHER_ZERO

# the sign of a zero is not the language's to say: that of whichever zero was met first, or last
UNSIGNED_ZERO = EITHER_ZERO | {"max", "min", "cummax", "cummin", "sort", "clip"}


def agree(operation: str, actual: np.ndarray, exact: np.ndarray, ulps: float, error: Any, message: str) -> None:
    """Raise AssertionError where `actual` is not `exact`, within `ulps` of its dtype and an absolute error.

    An error of "bits": the same bits, not-a-numbers included. Without either, zeros have the reference's sign.
    """
    if isinstance(error, str):
        assert actual.dtype == exact.dtype and actual.shape == exact.shape, message
        kind = f"u{actual.dtype.itemsize}"
        a, w = (np.ascontiguousarray(v).view(kind) for v in (actual, exact))
        assert np.array_equal(a, w), f"{message}: {actual[a != w][0]} for {exact[a != w][0]}"
        return
    if np.any(error):
        _near(actual, exact, ulps, error, message)
        return
    compare.agree(actual, exact, ulps, message)
    if not ulps and actual.dtype.kind not in "iub" and operation not in UNSIGNED_ZERO:
        wrong = (actual == 0) & ~np.isnan(exact) & (np.signbit(actual) != np.signbit(exact))
        assert not wrong.any(), f"{message}: a zero has the wrong sign"


def _near(actual: np.ndarray, exact: np.ndarray, ulps: float, error: Any, message: str) -> None:
    a, w = actual.astype(np.float64), exact.astype(np.float64)
    with np.errstate(all="ignore"):
        bound = error + (ulps + 1) * compare.ulp(w, actual.dtype)
        bad = ~((np.abs(a - w) <= bound) | (np.isnan(a) & np.isnan(w)) | (a == w))
        bad &= np.isfinite(w) & np.isfinite(bound) & (np.abs(w) < float(ml_dtypes.finfo(actual.dtype).max) / 4)
    assert not bad.any(), f"{message}: {a[bad][0]} for {w[bad][0]}"
