"""Tensor copies of im2col mode on the GPU: maps that the driver makes, and columns that a copy brings, are the interpreter's."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.interpreter.test_im2col import text

from .launcher import Gpu, why_no_gpu

_REASON = why_no_gpu()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_REASON is not None, reason=str(_REASON))]
_FORMATS = {"float16": 6, "float32": 7, "uint8": 0}


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with Gpu() as gpu:
        yield gpu


def random_copies(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Arrays, maps and copies that begin in the map's bounding box (an H200 faults outside of it)."""
    rng = np.random.default_rng(seed)
    while count:
        between = int(rng.integers(1, 4))
        dtype = np.dtype((np.float16, np.float32, np.uint8)[rng.integers(3)])
        unit = 16 // dtype.itemsize
        shape = (
            int(rng.integers(1, 4)),
            *(int(n) for n in rng.integers(1, 12, between)),
            int(rng.integers(1, 5)) * unit,
        )
        lower, upper, strides = (
            tuple(int(n) for n in rng.integers(*span, between)) for span in ((-4, 3), (-4, 4), (1, 4))
        )
        channels, pixels = int(rng.integers(1, 6)) * unit, int(rng.integers(1, 100))
        ends = [d + u for d, u in zip(shape[1:-1], upper, strict=True)]
        if channels > 256 or any(end <= low for end, low in zip(ends, lower, strict=True)):
            continue
        first = [
            int(rng.integers(shape[0])),
            *(int(rng.integers(low, end)) for low, end in zip(lower, ends, strict=True)),
        ]
        offsets = tuple(int(n) for n in rng.integers(0, 32 if count % 5 == 0 else 5, between))
        count -= 1
        yield {"x": rng.integers(1, 200, shape).astype(dtype), "lower": lower, "upper": upper, "strides": strides, "channels": channels,
               "pixels": pixels, "coordinates": (int(rng.integers(3)) * unit, *first[::-1]), "offsets": offsets[::-1]}  # fmt: skip


def brought(cuda: Any, c: dict[str, Any], ptx: str) -> np.ndarray:
    """What the copy of a case brings on the GPU."""
    x = c["x"]
    source, out = ctypes.c_uint64(), ctypes.c_uint64()
    found = np.empty((c["pixels"], c["channels"]), x.dtype)
    for place, size in ((source, x.nbytes), (out, found.nbytes + 16)):
        assert not cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(size))
    assert not cuda.cuMemcpyHtoD_v2(source, x.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(x.nbytes))
    room = (ctypes.c_uint8 * 256)()
    place = (ctypes.addressof(room) + 127) // 128 * 128
    extents, strides = (ctypes.c_uint64 * 5)(*x.shape[::-1]), (ctypes.c_uint64 * 5)(*x.strides[::-1][1:])
    lower, upper = ((ctypes.c_int * 3)(*c[name][::-1]) for name in ("lower", "upper"))
    steps = (ctypes.c_uint32 * 5)(1, *c["strides"][::-1], 1)
    assert not cuda.cuTensorMapEncodeIm2col(
        ctypes.c_void_p(place), _FORMATS[x.dtype.name], x.ndim, source, extents, strides, lower, upper,
        ctypes.c_uint32(c["channels"]), ctypes.c_uint32(c["pixels"]), steps, 0, 0, 0, 0,
    )  # fmt: skip
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert not cuda.cuModuleLoadData(ctypes.byref(module), ptx.encode() + b"\0")
    assert not cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k")
    args = (ctypes.c_void_p * 2)(place, ctypes.addressof(out))
    assert not cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, args, None)
    assert not cuda.cuCtxSynchronize()
    assert not cuda.cuMemcpyDtoH_v2(found.ctypes.data_as(ctypes.c_void_p), out, ctypes.c_size_t(found.nbytes))
    assert not cuda.cuModuleUnload(module)
    for held in (source, out):
        assert not cuda.cuMemFree_v2(held)
    return found


def test_columns(gpu: Gpu) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    for c in random_copies(0, 40):
        m = kd.check.im2col_map(
            c["x"], c["pixels"], c["channels"], lower=c["lower"], upper=c["upper"], strides=c["strides"]
        )
        ptx = text(m, c["coordinates"], c["offsets"])
        ours = np.zeros((c["pixels"], c["channels"]), c["x"].dtype)
        report = kd.check(ptx, m, ours, grid=1, block=32, schedules=("eager",))
        assert not report.hazards, str(report)
        assert np.array_equal(brought(cuda, c, ptx), ours), {k: v for k, v in c.items() if k != "x"}
