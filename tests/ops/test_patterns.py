"""Every elementwise operation on every bit pattern of the narrow dtypes (pairs of 8-bit ones too) against NumPy.

What is tested comes from `tests/table.py` alone: a new row is covered, and a function without one fails here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests import table
from tests.ops import patterns

NARROW = (*table.FP8, "float16", "bfloat16", "int8", "uint8", "bool")


def check(dtype: str, full: bool, interpret: Any = patterns.QUIET, **options: Any) -> None:
    kind = kd.dtypes.as_dtype(dtype)
    for arity in (1, 2, 3):
        # those that go through float32 in many steps round as the exact ones do: the short form leaves them to one fp8
        rows = patterns.rows_of(dtype, arity, inexact=full or dtype == table.FP8[0])
        if not rows:
            continue
        values = patterns.operands(kind, arity, np.random.default_rng(arity), full)
        results = patterns.evaluate([r.function for r in rows], values, interpret, **options)
        found = {r.name: patterns.wrong(r, got, values) for r, got in zip(rows, results, strict=True)}
        assert not any(found.values()), {name: bad for name, bad in found.items() if bad}


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.sampled(2)
def test_interpreter(dtype: str) -> None:
    check(dtype, full=False)


def specials(dtype: kd.dtypes.DType) -> np.ndarray:
    """Zeros, infinities, NaN, halves, what overflows, and the ends of the integers and of the format."""
    info = np.finfo(dtype.numpy)
    numbers = [0.0, 1.0, 0.5, 1.5, 2.5, 3.0, 0.75, 1e-3, 2.0**23, 2.0**31, 2.0**52, 2.0**63, 10.0, 100.0]
    numbers += [float(n) for n in (info.tiny, info.smallest_subnormal, info.max, info.max / 2, np.inf, np.nan)]
    return np.array([s * n for n in numbers for s in (1, -1)], dtype.numpy)


@pytest.mark.parametrize(
    "interpret", [patterns.QUIET, pytest.param(False, marks=pytest.mark.gpu)], ids=["interpreter", "gpu"]
)
@pytest.mark.parametrize("dtype", [kd.float32, kd.float64], ids=str)
def test_specials(dtype: kd.dtypes.DType, interpret: Any) -> None:
    """The rows that are exact, on all pairs of special numbers; the signs of zeros count."""
    x = specials(dtype)
    for arity, values in ((1, [x]), (2, [a.ravel() for a in np.meshgrid(x, x)])):
        rows = patterns.rows_of(dtype.name, arity, inexact=False)
        for row, got in zip(rows, patterns.evaluate([r.function for r in rows], values, interpret), strict=True):
            assert not patterns.wrong(row, got, values), (row.name, patterns.wrong(row, got, values))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", NARROW)
def test_interpreter_everything(dtype: str, target: str) -> None:
    check(dtype, full=True, compiler_params=kd.CompilerParams(target=target))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", NARROW)
def test_gpu(dtype: str) -> None:
    check(dtype, full=True, interpret=False)
