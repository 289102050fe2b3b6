"""What `astype` gives, exactly: a reference in NumPy for every pair of dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import kernel_dsl as kd
from tests.compare import nearest

DTYPES = [d for d in kd.dtypes.ALL if d.kind is not kd.dtypes.Kind.OPAQUE]
FLOATS = [d for d in DTYPES if d.is_float]
INTEGERS = [d for d in DTYPES if d.is_integer]


def values(dtype: kd.dtypes.DType) -> np.ndarray:
    """Numbers at the edges of every format, in one of them."""
    if dtype.is_bool:
        return np.array([False, True, True, False, True])
    if dtype.itemsize == 1:
        return np.arange(256, dtype=np.uint8).view(dtype.numpy)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        edges = [0, 1, -1, 2, 7, 100, -100]
        for bits in (7, 8, 11, 15, 16, 24, 25, 31, 32, 53, 54, 63, 64):
            edges += [s * ((1 << bits) + d) for s in (1, -1) for d in (-1, 0, 1, 3)]
        return np.array([e for e in edges if info.min <= e <= info.max], dtype.numpy)
    rng = np.random.default_rng(5)
    numbers = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.999, 448.0, 464.0, 465.0, 480.0, 57344.0, 61440.0, 65504.0]
    numbers += [65519.9, 65520.0, 1e-8, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 2.0**-16, 2.0**-17, 2.0**-24, 2.0**-25]
    numbers += [3.4e38, -3.4e38, np.inf, -np.inf, np.nan]
    numbers += [s * (2.0**b + d) for b in (7, 8, 15, 16, 31, 32, 63, 64) for d in (-1, -0.5, 0, 0.5) for s in (1, -1)]
    spread = rng.standard_normal(200) * np.exp2(rng.integers(-30, 30, 200).astype(np.float64))
    with np.errstate(all="ignore"):
        wide = np.concatenate([numbers, spread])
        if dtype == kd.float64:  # between the neighbours of narrower formats
            near = spread.astype(np.float32).astype(np.float64)
            wide = np.concatenate([wide, near * (1 + 2.0**-30), near * (1 - 2.0**-30)])
        return wide.astype(dtype.numpy)


def any_bits(dtype: kd.dtypes.DType, count: int) -> np.ndarray:
    """Every pattern of 16 bits, or `count` of them; of wider ones random numbers of every size, and near-ties of narrower."""
    rng = np.random.default_rng(dtype.bits)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    if dtype.itemsize == 2 and count >= 1 << 16:
        return np.arange(1 << 16, dtype=unsigned).view(dtype.numpy)
    bits = rng.integers(0, np.iinfo(unsigned).max, count, unsigned, endpoint=True).view(dtype.numpy)
    if dtype.is_integer:
        return (bits >> rng.integers(0, dtype.bits, count).astype(dtype.numpy)).astype(dtype.numpy)
    if dtype.itemsize == 2:
        return bits
    tie = (rng.integers(-4096, 4096, count) * np.exp2(rng.integers(-30, 10, count))).astype(dtype.numpy)
    beside = np.nextafter(tie, rng.choice([-np.inf, np.inf], count).astype(dtype.numpy))
    return np.choose(rng.integers(0, 3, count), [bits, tie, beside]).astype(dtype.numpy)


def _saturated(x: np.ndarray, to: np.dtype) -> np.ndarray:
    """Float to integer: truncated, clamped, NaN to 0; in exact integers."""
    info = np.iinfo(to)
    out = [0 if np.isnan(v) else info.max if v == np.inf else info.min if v == -np.inf else int(v) for v in x]
    return np.array([min(max(v, info.min), info.max) for v in out], to)


def reference(x: np.ndarray, to: kd.dtypes.DType, saturate: bool = True) -> np.ndarray:
    """`x` converted to `to`, as the language says."""
    target = to.numpy
    own = kd.dtypes.as_dtype(x.dtype)
    with np.errstate(all="ignore"):
        if to.is_bool:
            return x.astype(np.float64) != 0 if own.is_float else x != 0
        if own.is_bool:
            return x.astype(np.float32).astype(target) if to.is_float else x.astype(target)
        if to.is_integer:
            return _saturated(x.astype(np.float64), target) if own.is_float else x.astype(target)
        if to.itemsize >= 4:
            return x.astype(np.float64).astype(target) if own.is_float else x.astype(target)
        rounded = nearest(x, target)
        if to in kd.dtypes.FP8 and saturate:
            largest = float(ml_dtypes.finfo(target).max)
            wide = x.astype(np.float64)
            clamped = np.where(np.isnan(wide), wide, np.clip(wide, -largest, largest))
            return nearest(clamped, target)
        return rounded
