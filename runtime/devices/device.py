"""The two devices behind one interface, and the choice between them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kernel_dsl import forking
from kernel_dsl.compiled import Assembled, CompiledKernel
from kernel_dsl.interpret_params import InterpretParams
from kernel_dsl.lazy import once
from kernel_dsl.target import Target

from ..arrays.array_view import ArrayView
from ..errors import ArgumentTypeError, ArgumentValueError, DeviceError
from . import driver

if TYPE_CHECKING:
    from .cuda_device import CudaDevice
    from .interpreter_device import InterpreterDevice

Dims = tuple[int, int, int]


class Loaded(Protocol):
    """A compiled kernel that a device has taken in."""

    @property
    def kernel(self) -> CompiledKernel: ...

    @property
    def device(self) -> Device: ...

    def launch(
        self,
        arrays: Sequence[ArrayView],
        scalars: Sequence[Any],
        stream: int | None = None,
        fresh: Sequence[int] = (),
    ) -> None:
        """Launch on `arrays`, inputs then outputs, which lie where this device can reach them.

        `fresh` lists the arrays that hold nothing yet: reading them before writing is a hazard.
        """
        ...


class LoadedImage(Protocol):
    """One entry of a raw PTX, cubin or fatbin image."""

    entry: str

    def launch(
        self,
        params: Sequence[ArrayView | bytes],
        *,
        grid: Dims,
        block: Dims,
        cluster: Dims = (1, 1, 1),
        dynamic_smem: int = 0,
        stream: int | None = None,
        names: Sequence[str] = (),
        fresh: Sequence[int] = (),
    ) -> None:
        """Launch with `params` in the entry's order:

        arrays as their addresses, scalars as their bytes. For reports: `names` of the parameters,
        and by index those arrays (`fresh`) that hold nothing yet.
        """
        ...


class Device(Protocol):
    """Where kernels run. `kind` is "cuda" or "interpreter"; `index` counts GPUs."""

    kind: str
    index: int
    target: Target

    def load(self, kernel: CompiledKernel | Assembled) -> Loaded: ...

    def load_image(self, image: bytes | str, entry: str) -> LoadedImage: ...


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

    `interpret`: None takes the arrays' GPU, else the current one, and the interpreter where there
    is no GPU (said once in the log); True or an `InterpretParams` the interpreter; False a GPU, or
    DeviceError. Anything else: ArgumentTypeError.
    """
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
