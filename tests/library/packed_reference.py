"""What weights of 4 bits stand for, on the host, from their bytes alone."""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.library import PackedInt4, PackedMxfp4

VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def int4_numbers(packed: PackedInt4) -> Any:
    """What 4 bits, scales and zeros stand for, in float64, from the bytes alone."""
    (K, N), data = packed.shape, packed.data.view(np.uint8)
    q = np.zeros((data.shape[1] // 32 * 64, N))
    for row in range(q.shape[0]):
        own = data[:, row // 32 * 16 + row % 8 * 2 + row % 32 // 16]
        q[row] = own >> 4 if row % 16 >= 8 else own & 15
    scales, zeros = (
        8.0 if x is None else np.repeat(x.astype(np.float64), packed.group, 0)[:K]
        for x in (packed.scales, packed.zeros)
    )
    return (q[:K] - zeros) * scales


def rounded(packed: PackedInt4, dtype: Any) -> Any:
    """`int4_numbers` as products take them, in float64: rounded once, or in registers as the sum of two rounded products."""
    exact = int4_numbers(packed)
    if not packed.fast:
        return exact.astype(np.float32).astype(dtype.numpy).astype(np.float64)

    def to(x: Any) -> Any:
        return x.astype(np.float32).astype(dtype.numpy).astype(np.float64)

    def spread(x: Any) -> Any:
        return np.repeat(x.astype(np.float64), packed.group, 0)[: packed.shape[0]]

    scale = spread(packed.scales)
    zero = np.full_like(scale, 8.0) if packed.zeros is None else spread(packed.zeros)
    q, whole = np.rint(exact / scale + zero), np.rint(zero)
    high = to(scale)
    made = to((q - whole) * high + to((q - whole) * to(scale - high) + to((whole - zero) * scale)))
    # half a place of the number; where zeros are no integers, what they leave of a scale is rounded twice
    half = float(np.finfo(np.float16).eps if dtype == kd.float16 else 2.0**-7) / 2
    left = np.abs(whole - zero) * scale
    assert (
        np.abs(made - exact) <= half * (np.abs(exact) * 1.02 + 2.05 * left) + (2.0**-22 if dtype == kd.float16 else 0)
    ).all()
    return made


def zeros_for(form: str, shape: tuple[int, int], group: int, rng: Any) -> Any:
    if form != "given":
        return True if form == "found" else None
    return rng.integers(0, 16, (-(-shape[0] // group), shape[1])).astype(np.float32)


def mxfp4_numbers(packed: PackedMxfp4) -> Any:
    """What codes and scales stand for, in float64, from the bytes alone."""
    (K, N), data = packed.shape, packed.data.view(np.uint8)
    codes = np.zeros((data.shape[1] * 2, N), np.uint8)
    for row in range(codes.shape[0]):
        own = data[:, row // 32 * 16 + row % 8 * 2 + row % 32 // 16]
        codes[row] = own >> 4 if row % 16 >= 8 else own & 15
    wide = np.where(codes & 8, -1.0, 1.0) * VALUES[codes & 7]
    return (wide * np.repeat(2.0 ** (packed.scales.astype(np.float64) - 127), 32, 0))[:K]
