"""The driver of `fake_cuda.c` from Python: what it counted, and a kernel that the test plays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from kernel_dsl.dtypes import float32
from kernel_dsl.runtime.arrays.array_view import ArrayView, row_major
from kernel_dsl.runtime.devices import memory

LIB = ctypes.CDLL("libcuda.so.1")
LIB.fake_count.restype = ctypes.c_long
LIB.fake_host_side.restype = ctypes.c_long
BLOCKS, MODULES, LAUNCHES, ENCODES, DEPTH, DEVICE_WAITS = range(6)
CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int),
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_uint,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_int,
)


class Launch:
    """What the driver was told of one launch."""

    def __init__(self, *got: Any) -> None:
        name, params, count, sizes, dims, smem, stream, cluster, pdl = got
        self.name = name.decode()
        self.params = [ctypes.string_at(params[i], sizes[i]) for i in range(count)]
        self.grid, self.block = tuple(dims[:3]), tuple(dims[3:6])
        self.smem, self.stream, self.cluster, self.pdl = smem, stream or 0, cluster, pdl


class Player:
    """Plays `scale` for 32 float32 (strides in elements from the fourth and fifth parameter) and
    keeps the launches.
    """

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.shape: tuple[int, ...] = (32,)

    def __call__(self, *got: Any) -> int:
        launch = Launch(*got)
        self.launches.append(launch)
        if launch.name == "scale":
            numbers = [int.from_bytes(p, "little", signed=True) for p in launch.params]
            strides = numbers[3:5] if len(numbers) >= 5 else [1, 1]
            x, out = (
                memory.host_array(
                    ArrayView(
                        a,
                        self.shape,
                        (s,) if len(self.shape) == 1 else row_major(self.shape),
                        float32,
                        ("cpu", 0),
                        "",
                    )
                )
                for a, s in zip(numbers[:2], strides, strict=True)
            )
            out[...] = x * np.frombuffer(launch.params[2], np.float32)[0]
        return 0


@pytest.fixture
def player() -> Any:
    made = Player()
    callback = CALLBACK(made)
    LIB.fake_callback(callback)
    yield made
    LIB.fake_fail(0)
    LIB.fake_callback(CALLBACK(0))
    del callback


def count(which: int) -> int:
    return int(LIB.fake_count(which))


class CudaArray:
    """An array of no framework, in 'device' memory."""

    def __init__(self, data: np.ndarray[Any, Any], stream: int | None = None, readonly: bool = False) -> None:
        self.data = data
        self.stream = stream
        self.readonly = readonly

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.data.shape,
            "typestr": self.data.dtype.str,
            "strides": None if self.data.flags.c_contiguous else self.data.strides,
            "data": (self.data.ctypes.data, self.readonly),
            "stream": self.stream,
        }
