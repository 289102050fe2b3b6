"""Compiling, loading, running and dropping kernels keeps the process, and the GPU, as full as they were."""

from __future__ import annotations

import gc
import itertools
import sys
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import loading
from kernel_dsl.runtime.assemble import find_ptxas
from kernel_dsl.runtime.build.cache import KernelCache
from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.devices.devices import cuda_device

X = np.ones(64, np.float32)
WARM = 320  # more kernels than the process-wide cache keeps
_numbers = itertools.count(1)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


ON_CUDA = pytest.param(False, marks=[pytest.mark.gpu, pytest.mark.alone])


@pytest.fixture(params=[True, ON_CUDA], ids=["interpreter", "cuda"])
def interpret(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """`interpret=` for a call; nothing is kept on disk."""
    if not request.param and find_ptxas() is None:
        pytest.skip("the driver's own compiler keeps some of each compile: there is no ptxas")
    cache = KernelCache()
    monkeypatch.setattr(loading, "kernel_cache", lambda: cache)
    return request.param


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def on_the_gpu(interpret: bool) -> int:
    """Bytes in use on the GPU."""
    if interpret:
        return 0
    device = cuda_device()
    assert device is not None
    with driver.current(device.context):
        free, total = driver.check(driver.api().cuMemGetInfo())
    return int(total) - int(free)


def cycle(interpret: bool) -> None:
    factor = float(next(_numbers))  # a constant of the kernel: each is compiled

    @kd.kernel(out_type=kd.ShapeDtypeStruct((64,), kd.float32))
    def scaled(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * factor

    assert scaled(X, interpret=interpret)[0] == factor


def growth(cycles: int, interpret: bool) -> tuple[float, int]:
    """Bytes of host memory that one cycle leaves behind, and bytes on the GPU that all of them do."""
    for _ in range(WARM):
        cycle(interpret)
    gc.collect()
    host, device = resident(), on_the_gpu(interpret)
    for _ in range(cycles):
        cycle(interpret)
    gc.collect()
    return (resident() - host) / cycles, on_the_gpu(interpret) - device


def test_compile_run_drop(interpret: bool) -> None:
    host, device = growth(200, interpret)
    assert host < 16_000  # what LLVM keeps of one pass pipeline alone is 68,000
    assert device <= 4 << 20


@pytest.mark.slow
def test_ten_thousand_times(interpret: bool) -> None:
    host, device = growth(10_000, interpret)
    assert host < 4_000  # 1,500 are llvmlite's own, which never frees the callbacks of a pass builder
    assert device <= 4 << 20
