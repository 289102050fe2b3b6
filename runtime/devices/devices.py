"""The choice of a device for a call."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from kernel_dsl import forking
from kernel_dsl.interpret_params import InterpretParams
from kernel_dsl.lazy import once

from ..arrays.array_view import ArrayView
from ..errors import ArgumentTypeError, ArgumentValueError, DeviceError
from . import driver
from .device import Device

if TYPE_CHECKING:
    from .cuda_device import CudaDevice
    from .interpreter_device import InterpreterDevice

# The device that watches all launches of this thread, and the one that watches those of all threads.
watching: ContextVar[Device | None] = ContextVar("watching", default=None)
_everywhere: list[Device] = []
_lock = forking.lock()
_cuda: dict[int, CudaDevice] = {}


def cuda_device(index: int | None = None) -> CudaDevice:
    """The GPU `index`; by default that of the thread's current context, else the first.

    Raises DeviceError without one.
    """
    if index is None:
        index = _current_index()
    found = _cuda.get(index)
    if found is None:
        from .cuda_device import CudaDevice

        with _lock:
            found = _cuda.get(index)
            if found is None:
                found = _cuda[index] = CudaDevice(index)
    return found


def _current_index() -> int:
    cu = driver.api()
    status, device = cu.cuCtxGetDevice()
    return int(device) if int(status) == 0 else 0


def interpreter_device(params: Any = None) -> InterpreterDevice:
    """The PTX interpreter, with `params` (an InterpretParams) or its defaults."""
    from .interpreter_device import InterpreterDevice

    return InterpreterDevice(params)


@contextmanager
def watched_everywhere(device: Device) -> Generator[None]:
    """Send all launches of this process, except those with their own `InterpretParams`, to `device`."""
    _everywhere.append(device)
    try:
        yield
    finally:
        _everywhere.remove(device)


def is_watching() -> bool:
    """Whether launches of this thread go to a device that watches them."""
    return watching.get() is not None or bool(_everywhere)


@once
def _say_no_gpu(reason: str) -> None:
    logging.getLogger("kernel_dsl").warning("no GPU (%s): kernels run in the PTX interpreter, on the CPU", reason)


def device_index(arrays: Iterable[ArrayView]) -> int | None:
    """The one GPU that `arrays` lie on; None if all are in host memory.

    Two GPUs: ArgumentValueError.
    """
    found: int | None = None
    for view in arrays:
        kind, index = view.device
        if kind == "cpu":
            continue
        if found is not None and found != index:
            raise ArgumentValueError(
                f"the arrays of one call lie on two GPUs, cuda:{found} and cuda:{index}; move them to one"
            )
        found = index
    return found


def pick_device(interpret: Any, arrays: Sequence[ArrayView] = ()) -> Device:
    """The device for a call.

    `interpret`: None takes the arrays' GPU, else the current one, and the interpreter without a GPU (logged once); True
    or an `InterpretParams` takes the interpreter; False takes a GPU, or raises DeviceError. Anything else raises
    ArgumentTypeError. If launches are watched, it is the watcher's device.
    """
    watcher = watching.get() or (
        _everywhere[-1] if _everywhere and not isinstance(interpret, InterpretParams) else None
    )
    if watcher is not None:
        return watcher
    index = device_index(arrays)
    if interpret is None or interpret is False:
        if index is not None:
            return cuda_device(index)
        state = driver.available()
        if state or driver.forked():
            return cuda_device(None)
        if interpret is False:
            raise DeviceError(
                f"interpret=False asks for a GPU, and there is none: {state.reason}. "
                "Leave interpret out, or pass True, to run in the PTX interpreter"
            )
        _say_no_gpu(state.reason)
        return interpreter_device()
    if interpret is not True and not isinstance(interpret, InterpretParams):
        raise ArgumentTypeError(f"interpret= is None, True, False or kd.InterpretParams(...), and not {interpret!r}")
    return interpreter_device(None if interpret is True else interpret)
