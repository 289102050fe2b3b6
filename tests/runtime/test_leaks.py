"""Compiling, loading, running and dropping kernels keeps the process as large as it was."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

X = np.ones(64, np.float32)


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def cycle(factor: float) -> None:
    @kd.kernel(out_type=kd.ShapeDtypeStruct((64,), kd.float32))
    def scaled(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * factor

    assert scaled(X, interpret=True)[0] == factor


def growth(cycles: int) -> float:
    """Bytes that one cycle leaves behind."""
    for _ in range(60):
        cycle(2.0)
    gc.collect()
    before = resident()
    for _ in range(cycles):
        cycle(2.0)
    gc.collect()
    return (resident() - before) / cycles


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_compile_run_drop() -> None:
    assert growth(200) < 16_000  # what LLVM keeps of one pass pipeline alone is 68,000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ten_thousand_times() -> None:
    assert growth(10_000) < 4_000
