"""NVSHMEM's device library, whose functions kernels on several hosts call: it becomes a part of their machine code.

Its wheel has it as LLVM bitcode. `lowering` makes PTX of the functions that kernels may call, which is appended to a kernel's.
Both are assembled together, and not linked by nvJitLink, which ignores `setmaxnreg`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from kernel_dsl import forking
from kernel_dsl.compiled import CompiledKernel
from kernel_dsl.options import environment

from .problems import AssemblerError, ToolMissing

# (the library's path, the functions, the target, the PTX version) -> PTX of these functions
Definitions = Callable[[Path, Sequence[str], str], str]

STATE = "nvshmemi_device_state_d"  # a variable of the library, which the host's part fills in each module
_FOLDER = "nvidia/nvshmem/lib"
_SYSTEM = ("/usr/local/nvshmem/lib", "/opt/nvidia/nvshmem/lib", "/usr/local/lib", "/usr/lib")
_CALLED = re.compile(r"^\.extern \.func\s+(?:\(.*\)\s*)?(nvshmem\w+)", re.MULTILINE)
_HEADER = re.compile(r"^\.(?:version|target|address_size)\b.*\n", re.MULTILINE)

_lock = forking.lock()
_made: dict[tuple[str, ...], str] = {}


def calls(ptx: str) -> list[str]:
    """The functions of NVSHMEM that PTX declares, and does not define."""
    return _CALLED.findall(ptx) if ".extern .func" in ptx else []


def find(target: str) -> Path | None:
    """The device library for a target such as "sm_90a", or None.

    Looked for in `NVSHMEM_LIB_DIR`, or else in NVSHMEM's wheels beside our own packages, and in the customary folders.
    """
    named = environment().nvshmem
    folders = (
        [Path(named)] if named else [*(Path(root) / _FOLDER for root in filter(None, sys.path)), *map(Path, _SYSTEM)]
    )
    number = target.removeprefix("sm_").rstrip("af")
    for folder in folders:
        for name in (f"libnvshmem_device_sm_{number}.bc", "libnvshmem_device.bc"):
            if os.path.isfile(folder / name):
                return folder / name
    return None


def identity(target: str) -> str:
    """A text that differs between two builds of the library, for cache keys."""
    path = find(target)
    return "no NVSHMEM" if path is None else _build(path)


def _build(path: Path) -> str:
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"


def with_definitions(kernel: CompiledKernel, functions: Sequence[str], definitions: Definitions) -> str:
    """The kernel's PTX, with what it calls of the library. `functions`: all that kernels may call, for the next kernels, too.

    Raises ToolMissing if the library is not installed, AssemblerError if it lacks a function.
    """
    called = calls(kernel.ptx)
    path = find(kernel.target)
    if path is None:
        raise ToolMissing(
            f"Kernel {kernel.name!r} calls {called[0]}, and NVSHMEM's device library was not found. Install it: pip install "
            "nvidia-nvshmem-cu13, or say in NVSHMEM_LIB_DIR where libnvshmem_device.bc lies. Tracing and the interpreter "
            "need none, and neither does a mesh without `hosts`."
        )
    missing = [name for name in called if name not in functions]
    try:
        if missing:
            raise LookupError(f"no function {missing[0]} is known of it")
        with _lock:
            key = (_build(path), kernel.target, *functions)
            if key not in _made:
                _made[key] = definitions(path, functions, kernel.target)
            library = _made[key]
    except (LookupError, RuntimeError, OSError) as error:
        said = f"kernel {kernel.name!r} was not assembled: NVSHMEM's device library {path}: {error}"
        raise AssemblerError(said, log=str(error)) from None
    # functions that only this module calls: the assembler leaves out those that nothing calls
    own = re.sub(r"^\.extern \.func(?=\s+(?:\(.*\)\s*)?nvshmem)", ".func", kernel.ptx, flags=re.MULTILINE)
    return own + "\n" + re.sub(r"^\.visible \.func\b", ".func", _HEADER.sub("", library), flags=re.MULTILINE)
