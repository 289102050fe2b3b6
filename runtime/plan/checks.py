"""The checks of a launch's arrays."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_dsl.compiled import ArrayAssumption
from kernel_dsl.launch_plan import LaunchPlan

from ..arrays.array_view import ArrayView, overlap
from ..devices.failures import array_name, where
from ..errors import ArgumentTypeError, ArgumentValueError


def check_arrays(plan: LaunchPlan, arrays: Sequence[ArrayView]) -> None:
    """Raise an error if `arrays` (inputs, then outputs) break the compiled code's assumptions."""
    if len(arrays) != len(plan.arrays):
        raise ArgumentTypeError(
            f"kernel {plan.name!r} takes {plan.inputs} input arrays and {len(plan.arrays) - plan.inputs} outputs, "
            f"and got {len(arrays)} arrays{where(plan)}"
        )
    for index, (view, assumed) in enumerate(zip(arrays, plan.arrays, strict=True)):
        problem = _mismatch(view, assumed)
        if problem:
            raise ArgumentValueError(f"{array_name(plan, index)} of kernel {plan.name!r} {problem}{where(plan)}")
    check_overlaps(plan, arrays)


def _mismatch(view: ArrayView, assumed: ArrayAssumption) -> str:
    if view.dtype != assumed.dtype:
        return f"must hold {assumed.dtype}, and holds {view.dtype}"
    if tuple(view.shape) != tuple(assumed.shape):
        return f"must have shape {tuple(assumed.shape)}, and has {tuple(view.shape)}"
    if assumed.written and view.readonly:
        return "is written by the kernel, and is read-only. Pass a writable array, or let the call allocate the output"
    if view.size == 0:
        return ""
    if assumed.contiguous and not view.contiguous:
        return f"must be row-major without gaps, and has strides {view.strides} (in elements)"
    # Host memory may have any alignment: a GPU gets a copy.
    alignment = max(assumed.alignment, min(view.dtype.itemsize, 8) if view.device[0] == "cuda" else 1)
    if view.address % alignment:
        return f"must be {alignment}-byte aligned, and lies at {view.address:#x}"
    if assumed.written and view.overlaps_itself:
        return "is written by the kernel, and several of its elements share memory. Pass an array with memory for each element"
    return ""


def check_overlaps(plan: LaunchPlan, arrays: Sequence[ArrayView]) -> None:
    """Raise an error if written memory is shared in a way that the kernel was not compiled for."""
    for i, j in plan.pairs:
        if not overlap(arrays[i], arrays[j]):
            continue
        pair = f"{array_name(plan, i)} and {array_name(plan, j)} of kernel {plan.name!r}"
        if i >= plan.inputs:
            raise ArgumentValueError(f"{pair} share memory: each output needs its own memory{where(plan)}")
        if j >= plan.inputs and not arrays[i].same_memory(arrays[j]):
            raise ArgumentValueError(
                f"{pair} overlap in memory. For work in place pass the very same array as input and in out=; "
                f"otherwise pass a copy{where(plan)}"
            )
        if (i, j) not in plan.shared:
            raise ArgumentValueError(f"{pair} share memory, which this kernel was not compiled for{where(plan)}")
