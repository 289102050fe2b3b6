"""NVSHMEM's part on the host, for modules that have its device library: it fills the library's variables in each module.

The program loads and initialises NVSHMEM, by nvshmem4py or PyTorch's backend; this finds what is loaded.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Any

from ..build.device_library import STATE
from ..errors import DeviceError

_HOST = "libnvshmem_host.so.3"
_modules: set[int] = set()  # modules that NVSHMEM knows


def in_image(image: bytes) -> bool:
    """Whether machine code has NVSHMEM's device library."""
    return STATE.encode() in image


def host_library() -> Any:
    """NVSHMEM's library on the host, if this process has loaded it; else None."""
    with suppress(OSError):
        return ctypes.CDLL(_HOST, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    return None


def initialise(module: Any, name: str) -> None:
    """Have NVSHMEM fill its variables in a module of the current context. `name`: the kernel's. Raises DeviceError."""
    library = host_library()
    if library is None or library.nvshmemx_init_status() == 0:
        raise DeviceError(
            f"kernel {name!r} calls NVSHMEM, which this process has not initialised: call nvshmem.core.init of nvshmem4py, or "
            'torch.distributed._symmetric_memory.set_backend("NVSHMEM") before the first symmetric array'
        )
    status = library.nvshmemx_cumodule_init(ctypes.c_void_p(int(module)))
    if status:
        raise DeviceError(
            f"kernel {name!r}: NVSHMEM refuses the module with its device library (status {status}); the library that was "
            "found when the kernel was assembled must be of the version of the one that runs (NVSHMEM_LIB_DIR)"
        )
    _modules.add(int(module))


def forget(module: Any) -> None:
    """Tell NVSHMEM that a module goes, if it knows it."""
    if _modules and int(module) in _modules:
        _modules.discard(int(module))
        library = host_library()
        if library is not None and library.nvshmemx_init_status() != 0:
            library.nvshmemx_cumodule_finalize(ctypes.c_void_p(int(module)))
