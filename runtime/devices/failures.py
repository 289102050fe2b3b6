"""Messages of failed launches: the step, the kernel and arrays, and a remedy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernel_dsl.compiled import CompiledKernel
from kernel_dsl.dtypes import DType
from kernel_dsl.launch_plan import LaunchPlan

from ..arrays.array_view import ArrayView
from ..errors import CudaError, LaunchError, OutOfMemoryError

# CUDA driver API, CUresult: 'This leaves the process in an inconsistent state and any further CUDA
# work will return the same error', and errors that mean that the device or the context is gone.
_STICKY = frozenset(
    "CUDA_ERROR_" + name
    for name in (
        "ILLEGAL_ADDRESS",
        "LAUNCH_TIMEOUT",
        "LAUNCH_FAILED",
        "ILLEGAL_INSTRUCTION",
        "MISALIGNED_ADDRESS",
        "INVALID_ADDRESS_SPACE",
        "INVALID_PC",
        "HARDWARE_STACK_ERROR",
        "ASSERT",
        "CONTEXT_IS_DESTROYED",
        "ECC_UNCORRECTABLE",
        "NVLINK_UNCORRECTABLE",
        "CONTAINED",
        "TENSOR_MEMORY_LEAK",
        "DEINITIALIZED",
        "DEVICE_UNAVAILABLE",
        "MPS_CONNECTION_FAILED",
        "MPS_CLIENT_TERMINATED",
        "EXTERNAL_DEVICE",
        "SYSTEM_NOT_READY",
        "UNKNOWN",
    )
)
_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"

_HINTS = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": (
        "a kernel touched memory that is not its own. Run the same call with interpret=True: the "
        "interpreter "
        "names the line and the index"
    ),
    "CUDA_ERROR_MISALIGNED_ADDRESS": ("run the same call with interpret=True to see which access is misaligned"),
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": ("the kernel was compiled for another target; check CompilerParams(target=)"),
    "CUDA_ERROR_LAUNCH_FAILED": "run the same call with interpret=True to see the line that faults",
    "CUDA_ERROR_NOT_INITIALIZED": (
        "CUDA does not live through a fork: start processes with multiprocessing's 'spawn' method"
    ),
    "CUDA_ERROR_LAUNCH_TIMEOUT": "the kernel ran longer than the display driver allows",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": (
        "too many registers or threads for one block; use fewer warpgroups or CompilerParams(max_registers=)"
    ),
    _OUT_OF_MEMORY: "free some arrays, or use smaller ones",
}


def survives(code: str) -> bool:
    """Whether the CUDA context is still usable after the driver said `code`."""
    return code not in _STICKY


def describe_array(view: ArrayView) -> str:
    """`float32[128, 64] on cuda:0`."""
    kind, index = view.device
    where = "the CPU" if kind == "cpu" else f"{kind}:{index}"
    return f"{view.dtype}[{', '.join(map(str, view.shape))}] on {where}"


def where(kernel: CompiledKernel | LaunchPlan | None) -> str:
    """` (defined at file:line)`, or nothing for a kernel without a source."""
    return f" (defined at {kernel.source})" if kernel is not None and kernel.source else ""


def array_name(plan: LaunchPlan, index: int) -> str:
    """The user's name for array `index`: its Ref's name, else its position. A place in a body's `*refs`, as of most
    outputs of library kernels, is no name.
    """
    if index >= len(plan.arrays):
        return plan.scratch[index - len(plan.arrays)].name
    name = plan.arrays[index].name if plan.traced else ""
    name = "" if name.endswith("]") else name
    role = "input" if index < plan.inputs else "output"
    place = index if index < plan.inputs else index - plan.inputs
    return f"{role} {name!r}" if name else f"{role} {place}"


def launch_error(
    error: CudaError, name: str, plan: LaunchPlan | None, arrays: Sequence[ArrayView], doing: str = "launching"
) -> LaunchError:
    """The exception for a driver error met while `doing` something for a kernel."""
    code = error.name
    alive = survives(code)
    lines = [f"{doing} kernel {name!r}{where(plan)} failed: {code}: {error.meaning or str(error)}"]
    for index, view in enumerate(arrays):
        label = array_name(plan, index) if plan and index < len(plan.arrays) else f"array {index}"
        lines.append(f"  {label}: {describe_array(view)}")
    if not alive:
        lines.append(
            "  Launches are asynchronous: an earlier kernel on this GPU may be the one at fault. "
            "CUDA_LAUNCH_BLOCKING=1 in the environment makes each launch report its own fault."
        )
    if code in _HINTS:
        lines.append(f"  What to do: {_HINTS[code]}.")
    lines.append(
        "  The CUDA context survives: other work can go on."
        if alive
        else "  The CUDA context does not survive: no more GPU work is possible in this process."
    )
    cls = OutOfMemoryError if code == _OUT_OF_MEMORY else LaunchError
    return cls("\n".join(lines), status=code, context_survives=alive)


def is_out_of_memory(error: Exception) -> bool:
    """Whether a framework's error means that it has no memory for an array.

    Texts differ, and torch on a CPU has no class.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("RESOURCE_EXHAUSTED", "allocate memory", "not enough memory")
    )


def no_memory(
    error: Exception,
    label: str,
    shape: Sequence[int],
    dtype: DType,
    plan: LaunchPlan,
    inputs: Sequence[ArrayView],
) -> OutOfMemoryError:
    """The exception for an array of a call, such as an output, that its framework has no memory for."""
    size = math.prod(shape) * dtype.itemsize
    lines = [
        f"there is no memory for {label} of kernel {plan.name!r}{where(plan)}: "
        f"{dtype}[{', '.join(map(str, shape))}], {size} bytes"
    ]
    lines += [f"  {array_name(plan, index)}: {describe_array(view)}" for index, view in enumerate(inputs)]
    said = str(error).strip().splitlines()
    lines += [f"  {line}" for line in said[:1]]
    lines.append(f"  What to do: {_HINTS[_OUT_OF_MEMORY]}. Nothing was launched, and other work can go on.")
    return OutOfMemoryError("\n".join(lines), status=_OUT_OF_MEMORY)
