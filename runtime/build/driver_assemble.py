"""The driver's own compiler, for machines that have a GPU and no ptxas."""

from __future__ import annotations

import ctypes
from typing import Any

from kernel_dsl.compiled import CompiledKernel

from ..devices import driver

_LOG_BYTES = 64 * 1024


def assemble_with_driver(
    kernel: CompiledKernel, context: Any, *, optimization: int, line_info: bool
) -> tuple[bytes, str, bool]:
    """The cubin, the log, and whether the PTX was taken.

    The linker compiles as if for linking and may then ignore `setmaxnreg`. Devices load such a kernel as PTX, which the
    driver compiles as a whole; its cubin is empty. `context` is the GPU's.
    """
    cu = driver.api()
    whole = "setmaxnreg" in kernel.ptx
    with driver.current(context), driver.relaxed_capture():
        logs = bytearray(_LOG_BYTES), bytearray(_LOG_BYTES)
        names, values = _options(cu, kernel, logs, optimization, line_info)
        data = kernel.ptx.encode() + b"\0"
        if whole:
            result = cu.cuModuleLoadDataEx(data, len(names), names, values)
            if int(result[0]) == 0:
                driver.check(cu.cuModuleUnload(result[1]))
            cubin, taken = b"", int(result[0]) == 0
        else:
            cubin, taken = _link(cu, data, names, values)
    log = "\n".join(bytes(text).split(b"\0")[0].decode(errors="replace") for text in logs)
    return cubin, log, taken


def _options(
    cu: Any,
    kernel: CompiledKernel,
    logs: tuple[bytearray, bytearray],
    optimization: int,
    line_info: bool,
) -> tuple[list[Any], list[Any]]:
    chosen: dict[str, Any] = {
        "INFO_LOG_BUFFER": logs[0],
        "INFO_LOG_BUFFER_SIZE_BYTES": len(logs[0]),
        "ERROR_LOG_BUFFER": logs[1],
        "ERROR_LOG_BUFFER_SIZE_BYTES": len(logs[1]),
        "LOG_VERBOSE": 1,
        "OPTIMIZATION_LEVEL": optimization,
        "GENERATE_LINE_INFO": int(line_info),
    }
    if kernel.max_registers is not None and ".maxnreg" not in kernel.ptx:
        chosen["MAX_REGISTERS"] = kernel.max_registers
    names = [getattr(cu.CUjit_option, f"CU_JIT_{name}") for name in chosen]
    return names, list(chosen.values())


def _link(cu: Any, data: bytes, names: list[Any], values: list[Any]) -> tuple[bytes, bool]:
    state = driver.check(cu.cuLinkCreate(len(names), names, values))
    try:
        kind = cu.CUjitInputType.CU_JIT_INPUT_PTX
        result = cu.cuLinkAddData(state, kind, data, len(data), b"kernel.ptx", 0, [], [])
        if int(result[0]) == 0:
            result = cu.cuLinkComplete(state)
        if int(result[0]) != 0:
            return b"", False
        address, size = result[1:]
        # The linker owns the memory, so it is copied before the linker is destroyed.
        return ctypes.string_at(int(address), int(size)), True
    finally:
        cu.cuLinkDestroy(state)
