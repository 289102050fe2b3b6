"""Times kernels in a tuning run: random inputs on the GPU like those of the call, and samples with L2 cleared."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernel_dsl import forking
from kernel_dsl.dtypes import DType, as_dtype
from kernel_dsl.memory import is_array_leaf
from kernel_dsl.options import environment

from .. import assemble
from ..arrays import dlpack
from ..arrays.array_view import ArrayView, is_array, row_major, view
from ..devices import driver, memory
from ..devices.cuda_device import CudaDevice
from ..devices.device import Device
from ..devices.devices import is_watching
from ..plan import recording
from ..timing import ColdRuns, Stopwatch

PERIOD = 1_048_573  # the number of random numbers: a prime, so that two rows or tiles get different ones
COMPARED = 1 << 24  # the most elements of a result to compare, in runs of `RUN`
RUN = 1 << 18
_alone = forking.lock()


def alone() -> Any:
    """The process' lock for measurements, because two threads would disturb each other."""
    return _alone


def is_watched() -> bool:
    """Whether this thread's calls are recorded or watched, so that no measurement may run."""
    return recording.current() is not None or is_watching()


def assembles_apart() -> bool:
    """Whether a child process can assemble: it needs ptxas, because it must not use a GPU."""
    return assemble.find_ptxas(_options()) is not None


def assembler() -> str:
    """The name of the assembler: ptxas and its version, or the driver."""
    version = assemble.ptxas_version(_options())
    return "driver" if version is None else f"ptxas {version}"


def _options() -> assemble.AssemblerOptions:
    return assemble.AssemblerOptions(ptxas=environment().ptxas)


def bench_of(device: Device | CudaDevice) -> CudaBench | None:
    """The bench of a device; None for a device that is no GPU."""
    return CudaBench(device) if isinstance(device, CudaDevice) else None


class TrialArray:
    """An array on a GPU, with any strides, for a tried kernel. Strides are in bytes, as in NumPy."""

    def __init__(self, there: ArrayView) -> None:
        self._view = there
        self.shape: tuple[int, ...] = there.shape
        self.dtype: DType = there.dtype
        self.strides: tuple[int, ...] = tuple(s * there.dtype.itemsize for s in there.strides)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def T(self) -> TrialArray:  # noqa: N802
        return self._of(self.shape[::-1], self._view.strides[::-1])

    def swapaxes(self, one: int, other: int) -> TrialArray:
        """The same memory with two axes exchanged."""
        order = list(range(self.ndim))
        order[one], order[other] = order[other], order[one]
        return self._of(tuple(self.shape[i] for i in order), tuple(self._view.strides[i] for i in order))

    def reshape(self, *shape: int) -> TrialArray:
        """The same row-major memory in another shape; one extent may be -1."""
        known = -int(np.prod(shape, dtype=np.int64)) if -1 in shape else 1
        whole = tuple(self._view.size // max(known, 1) if n == -1 else n for n in shape)
        return self._of(whole, row_major(whole))

    def _of(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> TrialArray:
        v = self._view
        return TrialArray(ArrayView(v.address, shape, strides, v.dtype, v.device, "generic", False, v.owner))

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._view.device[1]

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **_: Any) -> Any:
        return dlpack.export(self._view, versioned=max_version is not None and max_version[0] >= 1)


class CudaBench:
    """Measures on a GPU, in its legacy default stream."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self.gpu: str = device.name
        self.target: str = device.target.name
        self._cold: ColdRuns | None = None
        self._watch: Stopwatch | None = None
        self._rng = np.random.default_rng(0)

    def clock(self) -> float:
        return time.perf_counter()

    # --- arrays -----------------------------------------------------------------------------------

    def inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """Arrays like these, with the same strides and alignment.

        Floats are random and normal; ints are copied. For structs, which have no data, 8-bit ints and bools are random,
        and wider ints, which may be indices, are 0.
        """
        with driver.current(self._device.context):
            return [self._like(x) for x in leaves]

    def _like(self, x: Any) -> Any:
        if not is_array_leaf(x):
            return x
        dtype = as_dtype(x.dtype)
        given = view(x) if is_array(x) else None
        shape = tuple(x.shape)
        steps = getattr(x, "strides", None) if given is None else None
        strides = row_major(shape) if steps is None else tuple(s // dtype.itemsize for s in steps)
        source = given or ArrayView(0, shape, strides, dtype, ("cpu", 0), "generic")
        first, last = source.span()
        block = self._device.allocate(last - first + 16, 0)
        start = block.address + first % 16 + source.address - first  # the alignment of the source
        index = ("cuda", self._device.index)
        made = ArrayView(start, shape, source.strides, dtype, index, "generic", False, block)
        floats = dtype.is_float or dtype.name == "complex64"
        if given is not None and not floats:
            memory.fill(memory.flat(made), 0)
            memory.copy(made, given)
            self._device.synchronize(0)
        else:
            self._fill(memory.flat(made), dtype, floats)
        return TrialArray(made)

    def _fill(self, target: ArrayView, dtype: DType, floats: bool) -> None:
        """Fill with random elements, which repeat every `PERIOD`."""
        count = min(target.size // dtype.itemsize, PERIOD)
        if not floats and dtype.itemsize > 1:
            memory.fill(target, 0)
            return
        if floats:
            drawn = self._rng.standard_normal((count, 2 if dtype.name == "complex64" else 1), np.float32)
            values = drawn.view(np.complex64)[:, 0] if dtype.name == "complex64" else drawn[:, 0].astype(dtype.numpy)
        else:
            values = self._rng.integers(0, 2 if dtype.name == "bool" else 256, count, np.uint8).view(dtype.numpy)
        data = np.ascontiguousarray(values).view(np.uint8)
        done = data.nbytes
        cu = driver.api()
        if done:
            driver.check(cu.cuMemcpyHtoDAsync(target.address, data.ctypes.data, done, 0))
            self._device.synchronize(0)
        while 0 < done < target.size:
            more = min(done, target.size - done)
            driver.check(cu.cuMemcpyDtoDAsync(target.address + done, target.address, more, 0))
            done += more

    def poison(self, outputs: Sequence[Any]) -> None:
        """Set every bit of arrays: floats are NaN, ints -1."""
        with driver.current(self._device.context):
            for x in outputs:
                memory.fill(memory.flat(view(x)), 255)

    def host(self, output: Any) -> Any:
        """The elements; of more than `COMPARED`, runs of neighbours with the first and the last."""
        there = view(output)
        with driver.current(self._device.context):
            if there.size <= COMPARED or not there.contiguous:
                host = np.empty(there.shape, there.dtype.numpy)
                memory.copy(memory.host_view(host, there.dtype), there)
                self._device.synchronize(0)
                return host.reshape(-1)
            parts = np.empty((COMPARED // RUN, RUN), there.dtype.numpy)
            starts = np.linspace(0, there.size - RUN, len(parts)).astype(np.int64)
            for part, start in zip(parts, starts.tolist(), strict=True):
                address = there.address + start * there.dtype.itemsize
                run = ArrayView(address, (RUN,), (1,), there.dtype, there.device, "generic", False, there.owner)
                memory.copy(memory.host_view(part, there.dtype), run)
            self._device.synchronize(0)
            return parts.reshape(-1)

    # --- times ------------------------------------------------------------------------------------

    def sample(self, run: Callable[[], object]) -> float:
        """GPU seconds between two events around a run. L2 is cleared before it, as `ColdRuns` does it."""
        if self._cold is None or self._watch is None:
            self._cold, self._watch = ColdRuns(self._device), Stopwatch(self._device)
        self._cold(self._watch, run)
        return self._watch.seconds
