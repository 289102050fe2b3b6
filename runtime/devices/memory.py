"""Copies and fills of views with any strides, on the host and on CUDA, without a framework."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernel_dsl.compiled import ScalarParam
from kernel_dsl.dtypes import DType, uint8
from kernel_dsl.launch_plan import CopyStep, FillStep, MemoryStep, ZeroStep

from ..arrays.array_view import CPU, ArrayView, row_major
from ..errors import ArgumentValueError
from . import driver

_MAX_PITCH = 2**31 - 1
_UNIT = 16  # bytes: the widest vector, and what TMA counts strides in


class _Host:
    """Host memory of a view, for NumPy. It is writable: permission was checked before."""

    def __init__(self, view: ArrayView) -> None:
        item = view.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{item}" if item not in (1, 2, 4, 8) else f"{'|' if item == 1 else '<'}u{item}",
            "shape": view.shape,
            "strides": tuple(s * item for s in view.strides),
            "data": (view.address, False),
        }
        self.owner = view.owner


def host_array(view: ArrayView) -> np.ndarray[Any, np.dtype[Any]]:
    """A NumPy array, in `view`'s dtype, over the host memory of `view`."""
    if view.size == 0:
        return np.empty(view.shape, view.dtype.numpy)
    return np.asarray(_Host(view)).view(view.dtype.numpy)


def host_view(array: np.ndarray[Any, np.dtype[Any]], dtype: DType) -> ArrayView:
    """A view of a NumPy array that this package made."""
    item = dtype.itemsize
    strides = tuple(s // item for s in array.strides)
    return ArrayView(array.ctypes.data, array.shape, strides, dtype, CPU, "numpy", False, array)


@dataclass(frozen=True, slots=True)
class CopyLayout:
    """The layout of a copy: its strides, none negative, and the number of elements that it spans."""

    strides: tuple[int, ...]
    count: int

    def at(self, address: int, source: ArrayView, device: tuple[str, int], owner: Any) -> ArrayView:
        """The copy of `source` in memory that begins at `address`."""
        return ArrayView(address, source.shape, self.strides, source.dtype, device, "generic", False, owner)


def gapless(source: ArrayView) -> CopyLayout:
    """A row-major copy."""
    return CopyLayout(row_major(source.shape), source.size)


def alike(source: ArrayView) -> CopyLayout:
    """A layout that TMA can address if it can address `source`, unless that has negative strides.

    It keeps the order of axes, and strides that are multiples of 16 bytes. Wide gaps become narrow, and elements that
    share memory become separate.
    """
    unit = max(_UNIT // source.dtype.itemsize, 1)
    strides, count = list(row_major(source.shape)), 1
    moving = [axis for axis, extent in enumerate(source.shape) if extent > 1]
    # from the innermost axis on; an axis with stride 0 counts as outermost
    moving.sort(key=lambda axis: (source.strides[axis] == 0, abs(source.strides[axis]), -axis))
    for axis in moving:
        strides[axis] = count if source.strides[axis] % unit else -(-count // unit) * unit
        count += strides[axis] * (source.shape[axis] - 1)
    return CopyLayout(tuple(strides), count if source.size else 0)


@dataclass(slots=True)
class Rows:
    """A strided access in bytes: a loop over `outer` axes; in it, one call for `height` rows of `width` bytes."""

    outer: tuple[int, ...]
    steps: list[tuple[int, ...]]  # for each view, a byte step per outer axis
    height: int
    width: int
    pitches: list[int]  # for each view, bytes between rows

    def starts(self) -> Iterator[list[int]]:
        """The byte offset in each view of each block of rows."""
        for index in itertools.product(*map(range, self.outer)):
            yield [sum(i * s for i, s in zip(index, steps, strict=True)) for steps in self.steps]


def walk(views: Sequence[ArrayView], unit: int) -> Rows:
    """The `Rows` that visit views of one shape together, with two-dimensional calls; `unit` is the bytes of an element."""
    axes: list[tuple[int, list[int]]] = []
    for axis, extent in enumerate(views[0].shape):
        if extent != 1:
            axes.append((extent, [v.strides[axis] * unit for v in views]))
    merged: list[tuple[int, list[int]]] = []
    for extent, steps in axes:
        if merged and all(o == s * extent for o, s in zip(merged[-1][1], steps, strict=True)):
            merged[-1] = (merged[-1][0] * extent, steps)
        else:
            merged.append((extent, steps))
    width = unit
    if merged and all(s == unit for s in merged[-1][1]):
        width = merged.pop()[0] * unit
    height, pitches = 1, [width] * len(views)
    if merged and all(width <= s <= _MAX_PITCH for s in merged[-1][1]):
        height, pitches = merged.pop()
    outer = tuple(extent for extent, _ in merged)
    steps = [tuple(step[v] for _, step in merged) for v in range(len(views))]
    return Rows(outer, steps, height, width, pitches)


def host_memory(source: ArrayView, layout: CopyLayout) -> ArrayView:
    """Uninitialised host memory for the elements of `source`."""
    owner = np.empty(layout.count * source.dtype.itemsize, np.uint8)
    return layout.at(owner.ctypes.data, source, CPU, owner)


def flat(array: ArrayView) -> ArrayView:
    """All memory that an array spans, with gaps, as an array of bytes."""
    first, last = array.span()
    return replace(array, address=first, shape=(last - first,), strides=(1,), dtype=uint8)


def copy(target: ArrayView, source: ArrayView, stream: int = 0) -> None:
    """Copy the elements of `source` into `target`, of the same shape and dtype, in `stream`.

    Host memory must stay alive, and unchanged, until the stream has done the copy.
    """
    if target.size == 0:
        return
    if target.device == CPU and source.device == CPU:
        host_array(target)[...] = host_array(source)
        return
    rows = walk((target, source), target.dtype.itemsize)
    for to, of in rows.starts():
        _copy_rows(target, to, source, of, rows, stream)


def _copy_rows(target: ArrayView, to: int, source: ArrayView, of: int, rows: Rows, stream: int) -> None:
    cu = driver.api()
    a, b = target.address + to, source.address + of
    if rows.height == 1:
        if target.device == CPU:
            driver.check(cu.cuMemcpyDtoHAsync(a, b, rows.width, stream))
        elif source.device == CPU:
            driver.check(cu.cuMemcpyHtoDAsync(a, b, rows.width, stream))
        else:
            driver.check(cu.cuMemcpyDtoDAsync(a, b, rows.width, stream))
        return
    plan = cu.CUDA_MEMCPY2D()
    host, device = cu.CUmemorytype.CU_MEMORYTYPE_HOST, cu.CUmemorytype.CU_MEMORYTYPE_DEVICE
    if target.device == CPU:
        plan.dstMemoryType, plan.dstHost = host, a
    else:
        plan.dstMemoryType, plan.dstDevice = device, a
    if source.device == CPU:
        plan.srcMemoryType, plan.srcHost = host, b
    else:
        plan.srcMemoryType, plan.srcDevice = device, b
    plan.dstPitch, plan.srcPitch = rows.pitches
    plan.WidthInBytes, plan.Height = rows.width, rows.height
    driver.check(cu.cuMemcpy2DAsync(plan, stream))


def fill_pattern(value: Any, dtype: DType) -> bytes:
    """The bytes of one element of a fill. Raises ArgumentValueError if `value` does not fit `dtype`."""
    if dtype.is_integer and isinstance(value, int):
        info = np.iinfo(dtype.numpy)
        if not info.min <= value <= info.max:
            raise ArgumentValueError(f"the fill value {value} does not fit {dtype} ({info.min} to {info.max})")
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(value).astype(dtype.numpy).tobytes()


def fill(target: ArrayView, value: Any, stream: int = 0) -> None:
    """Set every element of `target` to `value`. On CUDA: issued to `stream`."""
    if target.size == 0:
        return
    if target.device == CPU:
        host_array(target)[...] = np.frombuffer(fill_pattern(value, target.dtype), target.dtype.numpy)[0]
        return
    for call, offset, rest in memsets(target, value):
        driver.check(call(target.address + offset, *rest, stream))


def fill_value(step: FillStep | ZeroStep, scalars: Sequence[Any]) -> Any:
    """The value of a fill step: a number, or a scalar argument."""
    if isinstance(step, ZeroStep):
        return 0
    return scalars[step.value.scalar] if isinstance(step.value, ScalarParam) else step.value


def take(step: MemoryStep, arrays: Sequence[ArrayView], scalars: Sequence[Any], stream: int) -> None:
    """Do one step of a launch, in `stream`. On CUDA the context must be current."""
    if isinstance(step, CopyStep):
        target, source = arrays[step.target], arrays[step.source]
        if not target.same_memory(source):
            copy(target, source, stream)
    else:
        fill(arrays[step.array], fill_value(step, scalars), stream)


# A driver function, the offset in bytes of the memory that it sets, and its arguments between address and stream.
Memset = tuple[Any, int, tuple[int, ...]]


def memsets(target: ArrayView, value: Any) -> list[Memset]:
    """The driver's calls that set every element of an array like `target` on CUDA, at any address.

    Raises ArgumentValueError where `value` does not fit its dtype.
    """
    if target.size == 0:
        return []
    pattern = fill_pattern(value, target.dtype)
    if len(set(pattern)) == 1:
        return _set_words(target, pattern[:1])
    return _set_words(target, pattern) if len(pattern) <= 4 else _set_wide(target, pattern)


def _set_words(target: ArrayView, word: bytes) -> list[Memset]:
    """Fill with a repeated 1-, 2- or 4-byte word, which divides the element's size."""
    cu = driver.api()
    size = len(word)
    set1, set2 = {
        1: (cu.cuMemsetD8Async, cu.cuMemsetD2D8Async),
        2: (cu.cuMemsetD16Async, cu.cuMemsetD2D16Async),
        4: (cu.cuMemsetD32Async, cu.cuMemsetD2D32Async),
    }[size]
    number = int.from_bytes(word, "little")
    rows = walk((target,), target.dtype.itemsize)
    width = rows.width // size
    if rows.height == 1:
        return [(set1, start, (number, width)) for (start,) in rows.starts()]
    return [(set2, start, (rows.pitches[0], number, width, rows.height)) for (start,) in rows.starts()]


def _set_wide(target: ArrayView, pattern: bytes) -> list[Memset]:
    """Fill 8-byte elements, for which there is no memset: low and high words as two strided fills."""
    cu = driver.api()
    item = len(pattern)
    rows = walk((target,), item)
    found: list[Memset] = []
    for (start,) in rows.starts():
        for row in range(rows.height):
            for at in range(0, item, 4):
                number = int.from_bytes(pattern[at : at + 4], "little")
                rest = (item, number, 1, rows.width // item)
                found.append((cu.cuMemsetD2D32Async, start + row * rows.pitches[0] + at, rest))
    return found


def put(address: int, value: bytes, stream: int) -> None:
    """Write `value`, of 1, 2 or whole words of 4 bytes, to a GPU's memory.

    Fills are used because a copy would read host memory later, when a capture of the stream is replayed.
    """
    cu = driver.api()
    number = int.from_bytes(value, "little")
    if len(value) == 1:
        driver.check(cu.cuMemsetD8Async(address, number, 1, stream))
    elif len(value) == 2:
        driver.check(cu.cuMemsetD16Async(address, number, 1, stream))
    else:
        words = np.frombuffer(value, np.uint32).tolist()
        if len(set(words)) == 1:
            driver.check(cu.cuMemsetD32Async(address, words[0], len(words), stream))
            return
        for i, word in enumerate(words):
            driver.check(cu.cuMemsetD32Async(address + 4 * i, word, 1, stream))


class DeviceMemory:
    """Memory from a GPU's pool. It is freed in the order of `stream` when it is closed or collected."""

    def __init__(self, context: Any, nbytes: int, stream: int) -> None:
        self.nbytes = nbytes
        cu = driver.api()
        # In whole words, because 8-bit atomics use wider ones, also at the end of an odd number of bytes.
        size = -(-max(nbytes, 1) // 4) * 4
        self.address: int = int(driver.check(cu.cuMemAllocAsync(size, stream)))
        self._context = context
        self._stream = stream

    def close(self) -> None:
        """Free the memory after the work issued so far to its stream. A second call has no effect."""
        if self.address:
            address, self.address = self.address, 0
            cu = driver.api()
            cu.cuCtxPushCurrent(self._context)
            cu.cuMemFreeAsync(address, self._stream)
            cu.cuCtxPopCurrent()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the process the driver frees the memory, and this module's names may be gone.
        if getattr(self, "address", 0) and not ending() and driver.alive():
            self.close()

    def view(self, shape: tuple[int, ...], dtype: DType, index: int) -> ArrayView:
        """The memory as a row-major array on GPU `index`."""
        return ArrayView(self.address, shape, row_major(shape), dtype, ("cuda", index), "generic", False, self)


class LastingMemory(DeviceMemory):
    """Memory of a GPU with this content. It is never freed, and can be made while a stream is being captured."""

    def __init__(self, data: bytes) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.nbytes: int = len(data)
        cu = driver.api()
        with driver.relaxed_capture():
            self.address: int = int(driver.check(cu.cuMemAlloc(len(data))))
            stream = driver.check(cu.cuStreamCreate(int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)))
            driver.check(cu.cuMemcpyHtoDAsync(self.address, data, len(data), stream))
            driver.check(cu.cuStreamSynchronize(stream))
            driver.check(cu.cuStreamDestroy(stream))

    def close(self) -> None:
        """A graph may be replayed at any time."""
