"""Any other array, by `__cuda_array_interface__` or DLPack; results on a GPU are `DeviceArray`s, on
the host NumPy's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernel_dsl.dtypes import DType, as_dtype

from ...devices import driver, memory
from ...devices.devices import cuda_device
from ...errors import ArgumentTypeError
from .. import dlpack
from ..array_view import CPU, ArrayView, Streamless, frameworks, row_major
from .numpy import element_strides


class DeviceArray:
    """A row-major array in a GPU's memory, that any framework can take over.

    It speaks DLPack 1.0 and the CUDA array interface 3, and copies itself to the host for NumPy.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: DType, index: int, stream: int, borrowed: _Borrowed | None = None
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device: tuple[str, int] = ("cuda", index)
        self.stream = stream
        nbytes = max(dtype.itemsize, dtype.itemsize * int(np.prod(shape, dtype=np.int64)))
        self._memory = borrowed or cuda_device(index).allocate(nbytes, stream)

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype}{list(self.shape)} on cuda:{self.device[1]}>"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def view(self) -> ArrayView:
        """The memory."""
        address, strides = self._memory.address, row_major(self.shape)
        return ArrayView(address, self.shape, strides, self.dtype, self.device, "generic", False, self)

    def numpy(self) -> Any:
        """A copy in host memory, once the work that writes it is done."""
        device = cuda_device(self.device[1])
        host = np.empty(self.shape, self.dtype.numpy)
        with driver.current(device.context):
            memory.copy(memory.host_view(host, self.dtype), self.view(), self.stream)
            device.synchronize(self.stream)
        return host

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("an array on a GPU cannot become a NumPy array without a copy")
        host = self.numpy()
        return host if dtype is None else host.astype(dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.numpy.str,
            "data": (self._memory.address, False),
            "strides": None,
            "stream": self.stream or 1,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device[1]

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        if copy:
            raise BufferError("a DeviceArray is exported as it is; copy it afterwards")
        if stream != -1:  # -1: the consumer orders its own work
            _order(cuda_device(self.device[1]), self.stream, 0 if stream in (None, 1) else int(stream))
        return dlpack.export(self.view(), versioned=max_version is not None and max_version[0] >= 1)


@dataclass(frozen=True)
class _Borrowed:
    """Memory that belongs to an array."""

    address: int
    owner: Any


def narrowed(there: ArrayView, shape: tuple[int, ...]) -> Any:
    """The first elements of a row-major array, as an array of another shape in the same memory."""
    if there.device == CPU:
        return memory.host_array(dataclasses.replace(there, shape=shape, strides=row_major(shape)))
    stream = there.owner.stream if isinstance(there.owner, DeviceArray) else 0
    return DeviceArray(shape, there.dtype, there.device[1], stream, _Borrowed(there.address, there.owner))


def _order(device: Any, earlier: int, later: int) -> None:
    """Make stream `later` wait for work issued to `earlier`."""
    if earlier == later:
        return
    cu = driver.api()
    with driver.current(device.context):
        event = driver.check(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING.value))
        try:
            driver.check(cu.cuEventRecord(event, earlier))
            driver.check(cu.cuStreamWaitEvent(later, event, 0))
        finally:
            cu.cuEventDestroy(event)


def producer_stream(arrays: Iterable[Any]) -> int:
    """The stream that the first array that names one was last written on; the legacy default stream otherwise."""
    for array in arrays:
        interface: Any = getattr(array, "__cuda_array_interface__", None)
        stream = interface.get("stream") if interface else None
        if stream is not None:
            return 0 if stream == 1 else int(stream)
    return 0


def _cuda_interface(array: Any, interface: dict[str, Any], stream: int) -> ArrayView:
    if interface.get("mask") is not None:
        raise ArgumentTypeError("a masked array cannot be passed to a kernel, which would ignore its mask")
    try:
        named, steps = interface["typestr"], interface.get("strides")
        shape = tuple(int(n) for n in interface["shape"])
        address, readonly = interface["data"]
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"the __cuda_array_interface__ of a {dlpack.type_of(array)} lacks a shape, a typestr or data: "
            f"{type(error).__name__}: {error}"
        ) from error
    try:
        dtype = as_dtype(np.dtype(named))
    except TypeError:
        raise ArgumentTypeError(
            f"an array of {named} cannot be passed to a kernel: kernels lack this dtype, so convert it"
        ) from None
    strides = row_major(shape) if steps is None else element_strides(tuple(steps), shape, dtype.itemsize)
    index = _owner(address) if address else cuda_device(None).index
    pending = interface.get("stream")
    if pending is not None:
        _order(cuda_device(index), 0 if pending == 1 else int(pending), stream)
    return ArrayView(int(address or 0), shape, strides, dtype, ("cuda", index), "generic", bool(readonly), array)


def _owner(address: int) -> int:
    """The GPU whose memory `address` lies in."""
    cu = driver.api()
    key = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(driver.check(cu.cuPointerGetAttribute(key, address)))


class _Generic(Streamless):
    name = "generic"
    narrowed = staticmethod(narrowed)

    def view(self, array: Any, stream: int) -> ArrayView:
        if type(array) is DeviceArray:  # a direct path, because the interface has no name for bfloat16 and fp8
            _order(cuda_device(array.device[1]), array.stream, stream)
            return array.view()
        interface: Any = getattr(array, "__cuda_array_interface__", None)
        if interface is not None:
            return _cuda_interface(array, interface, stream)
        if hasattr(array, "__dlpack__"):
            return dlpack.read(array, stream)
        try:
            held = np.asarray(array)
        except (TypeError, ValueError) as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # by the object's own code, as its `__array__`
            raise ArgumentTypeError(f"NumPy can't make an array of a {dlpack.type_of(array)}: {error}") from None
        view = frameworks("numpy").view(held, stream)
        view.framework = "generic"
        return view

    def empty(self, shape: tuple[int, ...], dtype: DType, device: tuple[str, int], stream: int) -> Any:
        if device == CPU:
            return np.empty(shape, dtype.numpy)
        return DeviceArray(shape, dtype, device[1], stream)


INTEROP = _Generic()
