"""A GPU for tests that have none: the driver of `tests/runtime/fake_cuda.c`, with the interpreter behind its launches.

Everything on the way to the driver is the real thing: staging, fills, parameters, modules, launches. What a GPU would
then run is run by the interpreter, on the memory that the fake driver handed out.
"""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

import numpy as np

from kernel_dsl.runtime.custom import nvrtc
from kernel_dsl.runtime.devices import cuda_device, memory
from kernel_dsl.runtime.interpreter import GlobalMemory, parse, run
from tests.runtime.fake import CALLBACK, LIB, Launch

from .worker import compile_ptx


class FakeGpu:
    """Keeps what the driver was given, and plays launches."""

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}  # address -> bytes
        self.images: dict[Any, bytes] = {}  # by module
        self.callback: Any = None
        self.current = b""
        self.failure: Exception | None = None
        self.launched: list[Launch] = []

    def play(self, *got: Any) -> int:
        launch = Launch(*got)
        self.launched.append(launch)
        try:
            self._run(launch)
        except Exception as error:
            self.failure = error
        return 0

    def _run(self, launch: Launch) -> None:
        space = GlobalMemory()
        placed: dict[int, int] = {}
        params = [self._pointer(p, space, placed) if len(p) == 8 else p for p in launch.params]
        run(
            parse(self.current.decode()),
            launch.name,
            params,
            grid=launch.grid,
            block=launch.block,
            dynamic_smem=launch.smem,
            memory=space,
        )

    def _pointer(self, param: bytes, space: GlobalMemory, placed: dict[int, int]) -> bytes:
        """The parameter, moved to the interpreter's memory if it lies in a block."""
        value = int.from_bytes(param, "little")
        for start, size in self.blocks.items():
            if start <= value < start + size:
                if start not in placed:
                    data = np.frombuffer((ctypes.c_uint8 * size).from_address(start), np.uint8)
                    placed[start] = space.allocate(data, f"block of {size} bytes")
                return (placed[start] + value - start).to_bytes(8, "little")
        return param


@cache
def _worker() -> ProcessPoolExecutor:
    """A process that the fake driver is not loaded into: NVRTC does not bear it."""
    hidden = os.environ.pop("LD_LIBRARY_PATH", None)
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    pool.submit(os.getpid).result()
    if hidden is not None:
        os.environ["LD_LIBRARY_PATH"] = hidden
    return pool


def _compile(text: str, *, kind: str, **more: Any) -> bytes:
    """PTX whatever is asked for."""
    return _worker().submit(compile_ptx, text, more).result()


@cache
def install() -> FakeGpu:
    """Put a fake GPU under the runtime, for the rest of the process."""
    gpu = FakeGpu()
    gpu.callback = CALLBACK(gpu.play)
    LIB.fake_callback(gpu.callback)
    nvrtc.compile_source = _compile  # type: ignore[assignment]
    load = cuda_device.CudaDevice.load_module
    launch = cuda_device.CudaLoaded.launch
    make, close = memory.DeviceMemory.__init__, memory.DeviceMemory.close

    def load_module(self: Any, image: Any, *more: Any) -> Any:
        module = load(self, image, *more)
        gpu.images[module] = image if isinstance(image, bytes) else image.encode()
        return module

    def launch_image(self: Any, *args: Any, **more: Any) -> None:
        gpu.current = gpu.images[self._code]
        launch(self, *args, **more)
        if gpu.failure is not None:
            failure, gpu.failure = gpu.failure, None
            raise failure

    def made(self: Any, context: Any, nbytes: int, stream: int) -> None:
        make(self, context, nbytes, stream)
        gpu.blocks[self.address] = nbytes + nbytes % 2  # allocations of a GPU are of whole words

    def closed(self: Any) -> None:
        gpu.blocks.pop(self.address, None)
        close(self)

    cuda_device.CudaDevice.load_module = load_module
    cuda_device.CudaLoaded.launch = launch_image
    memory.DeviceMemory.__init__ = made
    memory.DeviceMemory.close = closed
    return gpu
