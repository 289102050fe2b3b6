"""The raw form of `precompiled_cuda_kernel`: arguments in the entry's parameter order, arrays changed in place."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from kernel_dsl.compiled import ArrayAssumption, LaunchAttributes, PointerParam
from kernel_dsl.diagnostics import shown
from kernel_dsl.launch_plan import AnyParam, ConstantParam, LaunchPlan, LaunchStep, OffsetParam

from .. import interpreter
from ..arrays.array_view import CPU, is_array, view
from ..check.arguments import Slot, slots
from ..check.images import as_image
from ..check.launches import attributes_of, entry_of
from ..check.structures import StructureArgument
from ..check.tensor_maps import Im2colArgument, TensorMapArgument
from ..devices.device import Device, LoadedImage
from ..devices.devices import pick_device
from ..devices.images import load_image
from ..errors import ArgumentTypeError, DeviceError, LoadError
from ..interpreter.ptx.module import Function, PtxError, Var
from ..plan.calls import call


def launch_raw(
    image: Any, args: Sequence[Any], grid: Any, block: Any, cluster: Any, smem: Any, entry: Any, stream: Any, interpret: Any
) -> list[Any]:  # fmt: skip
    """Launch once; the arrays of `args`, in order. Raises as `precompiled_cuda_kernel` does."""
    if grid is None or block is None:
        raise ArgumentTypeError("grid= and block= are missing: blocks, and the threads of one, as ints or tuples")
    arrays = [
        a.array if isinstance(a, TensorMapArgument) else a
        for a in args
        if isinstance(a, TensorMapArgument) or is_array(a)
    ]
    views = [view(a) for a in arrays]
    device = pick_device(interpret, views)
    source, known = _source(image, entry, device)
    if known is None:
        if not isinstance(entry, str) or not entry:
            raise ArgumentTypeError(f"entry={shown(entry)} must be the name of an entry of the machine code")
        loaded = load_image(device, source, entry)
        known = _from_sizes(loaded, entry)
    else:
        loaded = load_image(device, source, known.name)
    attributes = attributes_of(known, device.target, grid, block, cluster, smem)
    passed, plan = _plan(known, slots(known, args), attributes, device)
    call(loaded.prepare(plan), passed, (), stream=stream)
    return arrays


def _plan(
    entry: Function, given: Sequence[Slot], attributes: LaunchAttributes, device: Device
) -> tuple[list[Any], LaunchPlan]:
    """(the arrays of a launch, its plan)."""
    passed: list[Any] = []
    assumed: list[ArrayAssumption] = []
    params: list[AnyParam] = []
    for slot, declared in zip(given, entry.params, strict=True):
        if isinstance(slot, bytes):
            params.append(ConstantParam(slot))
            continue
        if isinstance(slot, Im2colArgument):
            fix = "pass the 128 bytes that the driver's cuTensorMapEncodeIm2col makes"
            raise ArgumentTypeError(f"the im2col map for '{declared.name}' is one of kd.check: {fix}")
        if isinstance(slot, StructureArgument):
            if slot.parts:
                fix = "pass its bytes, with the addresses of arrays on the device"
                raise ArgumentTypeError(
                    f"the structure for '{declared.name}' holds arrays, which kd.check alone takes: {fix}"
                )
            params.append(ConstantParam(slot.data))
            continue
        number = len(passed)
        seen, array = (view(slot.array), slot.array) if isinstance(slot, TensorMapArgument) else (slot, slot)
        if isinstance(slot, TensorMapArgument):
            params.append(dataclasses.replace(slot.recipe, array=number))
        elif seen.contiguous or (seen.device == CPU) == (device.kind != "cuda"):
            params.append(PointerParam(number))
        else:  # with its gaps: all memory that it spans goes to the device
            first, last = seen.span()
            params.append(OffsetParam(number, seen.address - first))
            extent = ((last - first) // seen.dtype.itemsize,)
            seen = array = dataclasses.replace(seen, address=first, shape=extent, strides=(1,))
        passed.append(array)
        # The kernel is unknown: it may read and write all of it, with any alignment.
        assumed.append(ArrayAssumption(seen.shape, seen.dtype, False, 1, not seen.readonly, declared.name))
    steps = () if attributes.empty else (LaunchStep(entry.name, tuple(params), attributes),)
    shared = tuple((i, j) for j in range(len(passed)) for i in range(j))
    return passed, LaunchPlan(
        entry.name, tuple(assumed), len(passed), (), (), steps, traced=False, guarded=False, shared=shared, effects=True
    )


def _source(image: Any, entry: Any, device: Device) -> tuple[bytes, Function | None]:
    """The image to load, and the entry that the PTX declares (None for machine code)."""
    try:
        found = as_image(image, entry)
    except (DeviceError, LoadError):
        if device.kind != "cuda" or not isinstance(image, (bytes, bytearray, memoryview)):
            raise
        return bytes(image), None
    try:
        module = interpreter.parse(found.ptx)
    except PtxError:
        if device.kind != "cuda":
            raise
        return found.ptx.encode(), None  # the driver may know instructions that the interpreter lacks
    binary = isinstance(image, (bytes, bytearray, memoryview)) and found.ptx.encode() != bytes(image).rstrip(b"\0")
    source = bytes(image) if binary and device.kind == "cuda" else found.ptx.encode()
    return source, entry_of(module, entry)


def _from_sizes(loaded: LoadedImage, entry: str) -> Function:
    """The entry of machine code: the driver reports the sizes of parameters, but not their types."""
    sizes: Sequence[int] | None = getattr(loaded, "param_sizes", None)
    if sizes is None:
        raise DeviceError(f"this driver can't report the parameters of {entry!r}; pass PTX instead of machine code")
    kinds = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}
    params = [
        Var(f"parameter {i}", "param", size, min(size, 16), kinds.get(size, "b8")) for i, size in enumerate(sizes)
    ]
    return Function(entry, True, params, [], [], [], {}, {}, {}, {}, 0)
