"""The CUDA driver: the only module that imports `cuda`.

It is loaded at first use. A missing driver is not an error: `available()` has the reason.

All work uses the device's primary context, which torch, CuPy and JAX share.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kernel_dsl import forking
from kernel_dsl.options import per_thread_streams

from ..errors import CudaError, DeviceError


@dataclass(frozen=True)
class Availability:
    """Whether there is a usable GPU; if not, `reason` says why. It has a truth value."""

    devices: int
    reason: str = ""

    def __bool__(self) -> bool:
        return self.devices > 0


_lock = forking.lock()
_availability: Availability | None = None
_module: Any = None
_starting = False  # a thread is starting the driver
_forked = False  # this process is the child of one that used CUDA

_FORKED = (
    "this process was forked from one that had used CUDA, and CUDA does not live through a fork: start processes with "
    "multiprocessing's 'spawn' or 'forkserver' method, or fork before the first call on a GPU"
)


def available() -> Availability:
    """Whether there are a driver and at least one GPU. Never raises; a process tests it once."""
    global _availability
    if _availability is None:
        with _lock:
            if _availability is None:
                _availability = _probe()
    return _availability


def forked() -> bool:
    """Whether CUDA can't work in this process because it was forked from one that had used CUDA."""
    return _forked


def import_bindings() -> None:
    """Import `cuda.bindings.driver` where a driver is installed. It starts no driver, which children of a fork could not use."""
    with suppress(Exception):  # `available` has the reason
        _library()
        import_module("cuda.bindings.driver").cuDriverGetVersion()  # the first call looks up hundreds of functions


def _library() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def address(name: str) -> int:
    """The address of a C function of the driver or of CPython, for host code. Raises OSError, AttributeError.

    Of the driver's two forms it is the one that `cuda.bindings` calls.
    """
    library = _library() if name.startswith("cu") else ctypes.pythonapi
    own = f"{name}_ptsz"  # takes stream 0 to be the thread's own
    function = getattr(library, own if per_thread_streams() and hasattr(library, own) else name)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _in_child() -> None:
    global _availability, _forked, _module
    if _module is not None or _starting:
        _module, _forked, _availability = None, True, Availability(0, _FORKED)


forking.in_child(_in_child)


def _probe() -> Availability:
    global _starting
    _starting = True
    try:
        return _start()
    finally:
        _starting = False


def _start() -> Availability:
    global _module
    try:
        module: Any = import_module("cuda.bindings.driver")
    except ImportError as error:
        return Availability(0, f"cuda-python is not installed ({error})")
    try:
        status = module.cuInit(0)[0]
        if int(status) != 0:
            return Availability(0, f"cuInit says {status.name}")
        status, count = module.cuDeviceGetCount()
    except Exception as error:  # several kinds, when libcuda is missing or too old
        if type(error).__name__ == "DynamicLibNotFoundError":
            return Availability(0, "no CUDA driver (libcuda) is installed")
        return Availability(0, f"the CUDA driver does not start: {error}")
    if int(status) != 0:
        return Availability(0, f"cuDeviceGetCount says {status.name}")
    if not count:
        return Availability(0, "the CUDA driver finds no GPU")
    _module = module
    return Availability(int(count))


def api() -> Any:
    """The `cuda.bindings.driver` module, initialised. Raises DeviceError, with the reason, without a GPU."""
    if _module is None:
        state = available()
        if _forked:
            raise DeviceError(f"{_FORKED}. With interpret=True kernels run here, on the CPU")
        if not state:
            raise DeviceError(f"no GPU can be used: {state.reason}")
    return _module


def check(result: tuple[Any, ...]) -> Any:
    """The values of a driver call's result tuple:

    None, the one value, or a tuple. Raises CudaError on failure.
    """
    status = result[0]
    if int(status) != 0:
        raise error_of(status)
    if len(result) == 1:
        return None
    return result[1] if len(result) == 2 else result[1:]


def success() -> Any:
    """The driver's CUDA_SUCCESS: its functions return this same object."""
    return api().CUresult.CUDA_SUCCESS


_tellers: list[Callable[[], list[str]]] = []


def tell_by(teller: Callable[[], list[str]]) -> None:
    """Append the lines of `teller()` to the meaning of every error of the driver."""
    _tellers.append(teller)


def error_of(status: Any) -> CudaError:
    """The CudaError for a `CUresult`."""
    failed, text = api().cuGetErrorString(status)
    meaning = text.decode() if int(failed) == 0 and text else "an error this driver has no text for"
    meaning = "\n  ".join([meaning, *(line for teller in _tellers for line in teller())])
    return CudaError(getattr(status, "name", f"CUresult {int(status)}"), meaning)


def device_count() -> int:
    """How many GPUs there are; 0 without a driver."""
    return available().devices


def attribute(device: Any, name: str) -> int:
    """`CU_DEVICE_ATTRIBUTE_<name>` of a `CUdevice`."""
    cu = api()
    key = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(check(cu.cuDeviceGetAttribute(key, device)))


@contextmanager
def current(context: Any) -> Generator[None, None, None]:
    """A context manager: `context` is current on this thread inside it."""
    cu = api()
    check(cu.cuCtxPushCurrent(context))
    try:
        yield
    finally:
        cu.cuCtxPopCurrent()


@contextmanager
def relaxed_capture() -> Generator[None, None, None]:
    """A context manager: allows calls, such as loading a module, that a stream capture in this thread forbids."""
    cu = api()
    mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    previous = check(cu.cuThreadExchangeStreamCaptureMode(mode))
    try:
        yield
    finally:
        cu.cuThreadExchangeStreamCaptureMode(previous)


def alive() -> bool:
    """Whether the driver may still be called: false once Python is shutting down."""
    return _module is not None and not sys.is_finalizing()
