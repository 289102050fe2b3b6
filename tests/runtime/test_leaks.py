"""Compiling, loading, running and dropping kernels keeps the process, and the GPU, as full as they were."""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import loading
from kernel_dsl.runtime.assemble import find_ptxas
from kernel_dsl.runtime.build.cache import KernelCache
from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.devices.devices import cuda_device

X = np.ones(64, np.float32)
WARM = 320  # more kernels than any cache keeps
_numbers = itertools.count(1)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


ON_CUDA = pytest.param(False, marks=[pytest.mark.gpu, pytest.mark.alone])


@pytest.fixture(params=[True, ON_CUDA], ids=["interpreter", "cuda"])
def interpret(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """`interpret=` for a call; nothing is kept on disk."""
    if not request.param and find_ptxas() is None:
        pytest.skip("the driver's own compiler keeps some of each compile: there is no ptxas")
    cache = KernelCache(capacity=64)
    monkeypatch.setattr(loading, "kernel_cache", lambda: cache)
    return request.param


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


class _Malloc(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library."""

    _fields_ = [({4: "mapped", 7: "used"}.get(n, f"field{n}"), ctypes.c_size_t) for n in range(10)]


def malloced() -> int:
    """Bytes that malloc has given out and not got back. Unlike resident memory they do not depend on free space between them."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("this C library does not count what malloc gives out")
    library.mallinfo2.restype = _Malloc
    found = library.mallinfo2()
    return found.used + found.mapped


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


class Growth(NamedTuple):
    """What one cycle leaves behind: bytes of resident memory, bytes of malloc's, blocks of Python's; and all of them on the GPU."""

    resident: float
    malloced: float
    blocks: float
    device: int


def growth(cycles: int, interpret: bool, warm: int = WARM) -> Growth:
    def now() -> tuple[int, int, int, int]:
        gc.collect()
        return resident(), malloced(), sys.getallocatedblocks(), on_the_gpu(interpret)

    for _ in range(warm):
        cycle(interpret)
    before = now()
    for _ in range(cycles):
        cycle(interpret)
    *host, device = (b - a for a, b in zip(before, now(), strict=True))
    return Growth(*(x / cycles for x in host), device)


def test_compile_run_drop(interpret: bool) -> None:
    warm = 80  # more than the caches of compiled kernels and of parsed texts keep
    for _ in range(12):  # a leak is in every stretch; what other tests left free in pieces fills up once
        grown = growth(32, interpret, warm=warm)
        if grown.resident < 16_000:  # what LLVM keeps of one pass pipeline alone is 68,000
            break
        warm = 0
    assert max(grown.resident, grown.malloced) < 16_000
    assert grown.device <= 4 << 20


@pytest.mark.slow
def test_two_thousand_times(interpret: bool) -> None:
    grown = growth(1984, interpret)  # 31 times the number of texts that the interpreter keeps parsed
    assert grown.malloced < 2_500  # 1,950 are llvmlite's own, which never frees the callbacks of a pass builder
    assert grown.blocks < 1
    assert grown.device <= 4 << 20
