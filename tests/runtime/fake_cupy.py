"""As much of CuPy as the runtime touches, over host memory, which is device memory for the driver without a GPU."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np


class _Scope:
    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __enter__(self) -> _Scope:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class ndarray:  # noqa: N801
    """`cupy.ndarray` over a NumPy array."""

    shape: Any = ()
    dtype: Any = None

    def __init__(self, host: Any) -> None:
        self.host = host
        self.shape, self.strides, self.dtype = host.shape, host.strides, host.dtype
        self.data = SimpleNamespace(ptr=host.ctypes.data, device_id=0)
        self.device = SimpleNamespace(id=0)

    @property
    def T(self) -> ndarray:  # noqa: N802
        return ndarray(self.host.T)

    def swapaxes(self, one: int, other: int) -> ndarray:
        return ndarray(self.host.swapaxes(one, other))

    def reshape(self, *shape: Any) -> ndarray:
        return ndarray(self.host.reshape(*shape))

    def __getitem__(self, index: Any) -> ndarray:
        return ndarray(self.host[index])


class ExternalStream(_Scope):
    """Makes itself current for a while."""

    def __enter__(self) -> ExternalStream:
        self.before, STREAMS[-1:] = STREAMS[-1:], [self.arguments[0]]
        return self

    def __exit__(self, *_: Any) -> None:
        STREAMS[-1:] = self.before


STREAMS = [21]
MADE: list[int] = []


def empty(shape: Any, dtype: Any) -> ndarray:
    """An array, noting the stream that it belongs to."""
    MADE.append(STREAMS[-1])
    return ndarray(np.empty(shape, dtype))


def install(patch: Any) -> ModuleType:
    """Make this the process's `cupy`."""
    module: Any = ModuleType("cupy")
    ndarray.__module__ = "cupy"
    module.ndarray, module.empty = ndarray, empty
    module.cuda = SimpleNamespace(
        Device=_Scope,
        ExternalStream=ExternalStream,
        get_current_stream=lambda: SimpleNamespace(ptr=STREAMS[-1], synchronize=lambda: None),
    )
    patch.setitem(sys.modules, "cupy", module)
    return module
