"""PTX on a real GPU through the driver alone, for tests that ask the hardware what an
instruction does.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from kernel_dsl.runtime.assemble import find_ptxas


def why_no_gpu() -> str | None:
    """The reason to skip, or None where a Hopper GPU answers."""
    try:
        from cuda.bindings import driver

        (status,) = driver.cuInit(0)
    except Exception as error:  # no driver library: the loader's own error types vary
        return f"no CUDA driver: {type(error).__name__}"
    if status != driver.CUresult.CUDA_SUCCESS:
        return f"cuInit: {status.name}"
    major = _check(
        driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0)
    )
    return None if major == 9 else f"needs compute capability 9.0, this is {major}.x"


def _check(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"driver call failed: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)


def _assembled(ptx: bytes) -> bytes:
    ptxas = find_ptxas()
    if ptxas is None:
        return ptx
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "forms.ptx", Path(folder) / "forms.cubin"
        source.write_bytes(ptx)
        command = [str(ptxas), "-arch=sm_90a", str(source), "-o", str(cubin)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[:4000])
        return cubin.read_bytes()


class Gpu:
    """Device 0's primary context, for the length of a `with` block."""

    def __enter__(self) -> Gpu:
        from cuda.bindings import driver

        self.driver = driver
        _check(driver.cuInit(0))
        self.device = _check(driver.cuDeviceGet(0))
        _check(driver.cuCtxSetCurrent(_check(driver.cuDevicePrimaryCtxRetain(self.device))))
        self.name = _check(driver.cuDeviceGetName(128, self.device)).split(b"\0")[0].decode()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _check(self.driver.cuDevicePrimaryCtxRelease(self.device))

    def load(self, ptx: bytes) -> Any:
        """A module from PTX text: by ptxas where there is one, else by the driver's own compiler."""
        return _check(self.driver.cuModuleLoadData(_assembled(ptx) + b"\0"))

    def unload(self, module: Any) -> None:
        _check(self.driver.cuModuleUnload(module))

    def run(
        self,
        module: Any,
        entry: str,
        inputs: list[np.ndarray],
        output: np.ndarray,
        grid: int,
        block: int,
        scalars: tuple[int, ...] = (),
    ) -> np.ndarray:
        """Launch `entry(inputs..., output, 64-bit scalars...)` and return what it wrote over
        `output`.
        """
        driver = self.driver
        function = _check(driver.cuModuleGetFunction(module, entry.encode()))
        pointers = [self._upload(array) for array in [*inputs, output]]
        words = np.array([*(int(p) for p in pointers), *scalars], np.uint64)
        addresses = np.array([words[i : i + 1].ctypes.data for i in range(len(words))], np.uint64)
        _check(driver.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, 0, addresses.ctypes.data, 0))
        _check(driver.cuCtxSynchronize())
        result = np.empty_like(output)
        _check(driver.cuMemcpyDtoH(result.ctypes.data, pointers[-1], result.nbytes))
        for pointer in pointers:
            _check(driver.cuMemFree(pointer))
        return result

    def _upload(self, array: np.ndarray) -> Any:
        array = np.ascontiguousarray(array)
        pointer = _check(self.driver.cuMemAlloc(max(array.nbytes, 16)))
        _check(self.driver.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
        return pointer
