"""A driver without a GPU (see `fake_graph.c`), where kernels are played here by entry name.

Order within a replay is random but for the edges, so a missing edge gives a wrong result.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
from typing import Any

import numpy as np
import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda_graph.py", allow_module_level=True)

from kernel_dsl.runtime.arrays.array_view import CPU, view
from kernel_dsl.runtime.devices import memory
from kernel_dsl.runtime.devices.devices import cuda_device
from kernel_dsl.runtime.plan import calls

from .kernels import Kernel, like

LIB = ctypes.CDLL("libcuda.so.1")
LIB.fake_count.restype = LIB.fake_graph_count.restype = ctypes.c_long
GRAPHS, EXECS, UPDATES, INSTANTIATIONS, CLASHES = range(5)
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int,
    ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_uint), ctypes.c_uint, ctypes.c_void_p,
    ctypes.c_int, ctypes.c_int,
)  # fmt: skip
N = 64
rng = np.random.default_rng(0)


class DeviceArray:
    """An array of no framework in 'device' memory, which is host memory here."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        contiguous = self.data.flags.c_contiguous
        return {
            "version": 3, "shape": self.data.shape, "typestr": self.data.dtype.str,
            "strides": None if contiguous else self.data.strides,
            "data": (self.data.ctypes.data, False), "stream": None,
        }  # fmt: skip


def on_device(n: int = N) -> DeviceArray:
    return DeviceArray(rng.integers(0, 1 << 30, n).astype(np.int32))


def host(array: Any) -> np.ndarray[Any, Any]:
    if isinstance(array, np.ndarray):
        return array
    return array.data if isinstance(array, DeviceArray) else array.numpy()


class CudaKernel(Kernel):
    """A kernel whose launches call its body on NumPy views of its arguments."""

    def __init__(self, body: Any, outputs: Any, attributes: Any = None, **more: Any) -> None:
        device = type("Bodies", (), {"bodies": {}})()
        super().__init__(device, body, outputs, **more)
        self.attributes = attributes or {}
        self.compiled: dict[Any, Any] = {}

    def _call(self, args: Any, out: Any, stream: Any) -> Any:
        arrays = [a for a in args if not isinstance(a, (int, float))]
        scalars = [a for a in args if isinstance(a, (int, float))]
        kernel = self.kernel_for(arrays)
        given = None if out is None else list(out) if isinstance(out, (tuple, list)) else [out]
        loaded = self.compiled.setdefault(kernel, None) or cuda_device(0).load(kernel)
        self.compiled[kernel] = loaded
        result = calls.call(loaded, arrays, scalars, given, stream)
        return result[0] if len(result) == 1 else result

    def kernel_for(self, arrays: Any) -> Any:
        views = [memory.host_array(_as_host(a)) for a in arrays]
        kernel = self.compile(views)
        names = [f".param .u64 p{i}" for i in range(len(kernel.arrays))]
        names += [f".param .s32 s{i}" for i in range(self.scalars)]
        shapes = "_".join(str(d) for a in kernel.arrays for d in a.shape)
        entry = f"{kernel.entry}_{kernel.arrays[0].dtype}_{shapes}"
        PLAYED[entry] = self, kernel.arrays
        ptx = f".version 8.0\n.entry {entry}({', '.join(names)})\n{{}}"
        launch = dataclasses.replace(kernel.launch, **self.attributes)
        return dataclasses.replace(kernel, entry=entry, ptx=ptx, launch=launch, output_tree=0)

    def play(self, assumptions: Any, params: list[bytes]) -> None:
        numbers = [int.from_bytes(p, "little", signed=True) for p in params]
        arrays = []
        for address, assumed in zip(numbers, assumptions, strict=False):
            count = int(np.prod(assumed.shape))
            raw = (ctypes.c_char * (count * assumed.dtype.itemsize)).from_address(address)
            flat = np.frombuffer(raw, assumed.dtype.numpy)
            arrays.append(flat.reshape(assumed.shape))
        self.body(*arrays, *numbers[len(arrays) :])


def _as_host(array: Any) -> Any:
    there = view(array)
    there.device = CPU
    return there


PLAYED: dict[str, tuple[CudaKernel, Any]] = {}  # by entry: a kernel, and what its arrays are
LAUNCHES: list[dict[str, Any]] = []


def _play(name, params, count, sizes, dims, smem, stream, cluster, pdl) -> int:
    blobs = [ctypes.string_at(params[i], sizes[i]) for i in range(count)]
    LAUNCHES.append(
        {"name": name.decode(), "params": blobs, "dims": tuple(dims[:6]), "smem": smem,
         "stream": stream or 0, "cluster": cluster}
    )  # fmt: skip
    if name.decode() == "axpb":
        x, y, n, b = blobs
        n = int.from_bytes(n, "little", signed=True)
        source, target = (
            np.frombuffer((ctypes.c_char * (4 * n)).from_address(int.from_bytes(p, "little")), np.float32)
            for p in (x, y)
        )
        target[...] = source * 2 + np.frombuffer(b, np.float32)[0]
    elif name.decode() == "axpc":  # x, a scalar that became an array, and y
        x, c, y = (int.from_bytes(p, "little") for p in blobs)
        source, target = (np.frombuffer((ctypes.c_char * 4 * N).from_address(p), np.float32) for p in (x, y))
        target[...] = source + np.frombuffer((ctypes.c_char * 4).from_address(c), np.float32)[0]
    else:
        kernel, assumptions = PLAYED[name.decode()]
        kernel.play(assumptions, blobs)
    return 0


CALLBACK = _CALLBACK(_play)
LIB.fake_callback(CALLBACK)


def blocks() -> int:
    """Blocks of 'device' memory there are now."""
    return int(LIB.fake_count(0))


def graphs(which: int) -> int:
    """The driver's count of GRAPHS there are now, of EXECS, of UPDATES so far and so on."""
    return int(LIB.fake_graph_count(which))


def xor(a, b, out):
    np.bitwise_xor(a, b, out=out)


def double(x, out):
    out[...] = x * 2


def plus(x, out, k):
    out[...] = x + k


XOR, DOUBLE = CudaKernel(xor, like), CudaKernel(double, like)
PLUS = CudaKernel(plus, like, scalars=1)
