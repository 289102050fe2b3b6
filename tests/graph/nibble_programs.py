"""Kernels on arrays of 4-bit elements, and how results are compared."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import kernel_dsl as kd

DTYPES = (kd.int4, kd.uint4, kd.float4_e2m1fn)
SHAPE = (8, 32)
INTERPRET = None if os.environ.get("KERNEL_DSL_FAKE_CUDA") else True  # see cuda_nibble_cases.py


def add_body(x: Any, y: Any, out: Any) -> None:
    out[...] = (x[...].astype(kd.float32) + y[...].astype(kd.float32)).astype(out.dtype)


def _widened(x: Any, out: Any) -> None:
    out[...] = x[...].astype(kd.float32) * 2


def like(x: Any, *_: Any) -> Any:
    return kd.ShapeDtypeStruct(x.shape, x.dtype)


def _wide(x: Any) -> Any:
    return kd.ShapeDtypeStruct(x.shape, kd.float32)


ADD = {d: kd.kernel(add_body, out_type=like, name=f"nibble_add_{d}", interpret=INTERPRET) for d in DTYPES}
WIDENED = {d: kd.kernel(_widened, out_type=_wide, name=f"nibble_widened_{d}", interpret=INTERPRET) for d in DTYPES}


def numbers(dtype: kd.DType, seed: int, shape: tuple[int, ...] = SHAPE) -> Any:
    """Random elements. Their sums are exact, where they don't saturate."""
    codes = np.random.default_rng(seed).integers(0, 8, shape, dtype=np.uint8)
    return codes.view(dtype.numpy)


def sums(x: Any, y: Any) -> Any:
    """What `add` gives, by NumPy."""
    total = x.astype(np.float32) + y.astype(np.float32)
    name = x.dtype.name
    return total.clip(*{"int4": (-8, 7), "uint4": (0, 15)}.get(name, (-6, 6))).astype(x.dtype)


def same(got: Any, expected: Any) -> None:
    assert got.shape == expected.shape and got.dtype == expected.dtype
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))
