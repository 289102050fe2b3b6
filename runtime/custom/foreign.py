"""Launches of kernels that were not traced: what `precompiled_cuda_kernel`, `cuda_kernel` and
`metal_kernel` share.

Grids count threads here, as in MLX. Inputs may be scalars, which become rank-0 arrays.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from kernel_dsl.compiled import OutputSpec
from kernel_dsl.dtypes import DType, as_dtype
from kernel_dsl.errors import VariableUse
from kernel_dsl.variables import Symbol

from ..arrays.array_view import CPU, ArrayView, row_major, view
from ..devices import memory
from ..devices.cuda_device import CudaDevice
from ..devices.device import Device, Dims, LoadedImage, pick_device
from ..errors import ArgumentTypeError, ArgumentValueError
from ..plan import recording
from ..plan.calls import Job, execute, warn_of_garbage
from .gather import gather

_MAX_THREADS = 1024
_MAX_BLOCK: Dims = (1024, 1024, 64)
_MAX_BLOCKS: Dims = (2**31 - 1, 65535, 65535)


# --- grids ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Threads:
    """A launch counted in threads, and the blocks that make it. `empty`: nothing is launched."""

    grid: Dims
    block: Dims
    blocks: Dims

    @property
    def empty(self) -> bool:
        return 0 in self.grid

    @property
    def divides(self) -> bool:
        """Whether the blocks hold exactly the grid's threads."""
        return all(b * n == g for g, b, n in zip(self.grid, self.block, self.blocks, strict=True))


def count_threads(grid: Any, threadgroup: Any, name: str) -> Threads:
    """The blocks for a grid of threads.

    A threadgroup larger than the grid is cut to it; otherwise the last block of an axis is full, so
    that more threads than `grid` may run. Raises ArgumentTypeError, ArgumentValueError.
    """
    wanted = _three(grid, "grid", name)
    group = _three(threadgroup, "threadgroup", name)
    if min(wanted) < 0:
        raise ArgumentValueError(f"grid={wanted} of kernel {name!r} has a negative extent")
    if min(group) < 1:
        raise ArgumentValueError(f"threadgroup={group} of kernel {name!r} must have at least 1 thread along each axis")
    block = cast(Dims, tuple(min(t, max(g, 1)) for t, g in zip(group, wanted, strict=True)))
    if math.prod(block) > _MAX_THREADS or any(b > m for b, m in zip(block, _MAX_BLOCK, strict=True)):
        raise ArgumentValueError(
            f"threadgroup={group} of kernel {name!r} has {math.prod(block)} threads: a "
            "threadgroup holds at most "
            f"{_MAX_THREADS} threads, and at most {_MAX_BLOCK} along its axes"
        )
    blocks = cast(Dims, tuple(-(-g // t) for g, t in zip(wanted, group, strict=True)))
    if any(n > m for n, m in zip(blocks, _MAX_BLOCKS, strict=True)):
        raise ArgumentValueError(
            f"grid={wanted} with threadgroup={group} of kernel {name!r} needs {blocks} blocks, "
            "and CUDA launches at "
            f"most {_MAX_BLOCKS}; use a larger threadgroup, or put the long axis first"
        )
    return Threads(wanted, block, blocks)


def _three(value: Any, what: str, name: str) -> Dims:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or len(cast(Sequence[Any], value)) != 3:
        raise ArgumentTypeError(f"{what}={value!r} of kernel {name!r} must be three integers, (x, y, z)")
    try:
        x, y, z = (operator.index(v) for v in cast(Sequence[Any], value))
    except VariableUse:
        raise
    except TypeError:
        raise ArgumentTypeError(f"{what}={value!r} of kernel {name!r} must hold integers") from None
    return x, y, z


# --- inputs and outputs ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Scalar:
    """A scalar input: a rank-0 array that the launch makes, on the device."""

    value: Any  # a NumPy scalar
    dtype: DType


@dataclass(frozen=True)
class Input:
    """An input with what the generated signature depends on."""

    array: Any  # what the user gave; a Scalar if it is none
    dtype: DType
    shape: tuple[int, ...]
    name: str  # for reports
    view: ArrayView | None = None


def as_input(value: Any, what: str, name: str, called: str = "") -> Input:
    """An array or a scalar, checked. Errors call it `what`, reports `called`, by default the same.

    Python's bool, int, float and complex are bool, int32 (int64 if it must be), float32 and
    complex64; NumPy's scalars keep their dtype.
    """
    if isinstance(value, (bool, int, float, complex, np.generic)):
        scalar = _scalar(value, what, name)
        return Input(scalar, scalar.dtype, (), called or what)
    if isinstance(value, Symbol):
        operator.index(value)  # a graph gives each call its value: here there is none, which it says
    try:
        seen = view(value)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{what} of kernel {name!r}: {error.fields['message']}") from None
    return Input(value, seen.dtype, seen.shape, called or what, seen)


def _scalar(value: Any, what: str, name: str) -> Scalar:
    if isinstance(value, np.generic):
        array: Any = cast(Any, value)
    elif isinstance(value, bool):
        array = np.bool_(value)
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ArgumentValueError(f"{what} of kernel {name!r}, {value}, does not fit 64 bits")
        array = np.int32(value) if -(2**31) <= value < 2**31 else np.int64(value)
    elif isinstance(value, float):
        with np.errstate(over="ignore"):
            array = np.float32(value)
    else:
        with np.errstate(over="ignore"):
            array = np.complex64(value)
    try:
        return Scalar(array, as_dtype(array.dtype))
    except TypeError:
        raise ArgumentTypeError(f"{what} of kernel {name!r} is {value!r}, of a dtype that no kernel can hold") from None


def output_specs(shapes: Any, dtypes: Any, init_value: Any, name: str) -> list[OutputSpec]:
    """The outputs of a call, checked. `init_value` fills them all, cast to each one's dtype."""
    if init_value is not None and not isinstance(init_value, (bool, int, float, complex, np.generic)):
        raise ArgumentTypeError(f"init_value={init_value!r} of kernel {name!r} must be a number or None")
    specs: list[OutputSpec] = []
    for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        kind = as_output_dtype(dtype, f"output_dtypes[{i}]", name)
        specs.append(OutputSpec(_shape(shape, i, name), kind, _fill(init_value, kind, name)))
    return specs


def as_output_dtype(dtype: Any, what: str, name: str) -> DType:
    """`dtype` as a DType. Raises ArgumentTypeError where it names none."""
    try:
        if dtype is None or isinstance(dtype, (bool, int, float)):
            raise TypeError
        return as_dtype(dtype)
    except TypeError:
        raise ArgumentTypeError(f"{what}={dtype!r} of kernel {name!r} is not a dtype that a kernel can hold") from None


def _shape(shape: Any, index: int, name: str) -> tuple[int, ...]:
    what = f"output_shapes[{index}]={shape!r} of kernel {name!r}"
    if isinstance(shape, (str, bytes)) or not hasattr(shape, "__iter__"):
        raise ArgumentTypeError(f"{what} must be a tuple of integers")
    try:
        extents = tuple(operator.index(n) for n in shape)
    except VariableUse:
        raise
    except TypeError:
        raise ArgumentTypeError(f"{what} must hold integers") from None
    if any(n < 0 for n in extents):
        raise ArgumentValueError(f"{what} has a negative extent")
    return extents


def _fill(value: Any, dtype: DType, name: str) -> Any:
    if value is None:
        return None
    if isinstance(value, (complex, np.complexfloating)):
        if dtype.name == "complex64":
            return cast(complex, value)
        raise ArgumentValueError(f"init_value={value!r} of kernel {name!r} is complex, and an output holds {dtype}")
    if dtype.is_integer and not math.isfinite(value):
        raise ArgumentValueError(f"init_value={value!r} of kernel {name!r} does not fit an output of {dtype}")
    wanted = int(value) if dtype.is_integer else value
    try:
        memory.fill_pattern(wanted, dtype)
    except ArgumentValueError as error:
        raise ArgumentValueError(f"init_value= of kernel {name!r}: {error.fields['message']}") from None
    return wanted


# --- launches -------------------------------------------------------------------------------------

# From the arrays as they lie on the device, inputs then outputs, to the kernel's parameters.
Parameters = Callable[[list[ArrayView], list[ArrayView]], Sequence[ArrayView | bytes]]


@dataclass(frozen=True)
class ForeignCall:
    """One call of a kernel that was not traced, ready to be launched."""

    name: str
    inputs: Sequence[Input]
    outputs: Sequence[OutputSpec]
    threads: Threads
    shared_memory: int
    contiguous: bool  # inputs are copied to row-major memory first
    stream: Any
    names: Sequence[str]  # of the outputs, for reports
    read_only: bool  # the kernel has no way to write its inputs
    scalars: Sequence[bytes] = ()  # parameters that follow those of `launch`
    effects: bool = True  # it may do more than write its outputs


def choose_device(interpret: Any, inputs: Sequence[Input]) -> Device:
    """The device for a call on `inputs`."""
    return pick_device(interpret, [i.view for i in inputs if i.view is not None])


def check_shared_memory(value: Any, name: str) -> int:
    """`shared_memory=` in bytes, checked but for the device's limit."""
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"shared_memory={value!r} of kernel {name!r} must be an integer, in bytes") from None
    if count < 0:
        raise ArgumentValueError(f"shared_memory={count} of kernel {name!r} is negative")
    return count


def launch(device: Device, image: LoadedImage, call: ForeignCall, parameters: Parameters) -> list[Any]:
    """Run `image`; the outputs, in order.

    A grid without threads makes them and launches nothing.
    """
    limit = device.target.limits.smem_per_block
    if call.shared_memory > limit:
        raise ArgumentValueError(
            f"shared_memory={call.shared_memory} of kernel {call.name!r} is over the {limit} "
            "bytes that a block can "
            f"have on {device.target}"
        )
    spanned = [_spanned(device, i, call) for i in call.inputs]
    arrays = [i.array if s is None else s for i, s in zip(call.inputs, spanned, strict=True) if i.view is not None]

    def run(placed: list[ArrayView], stream: int, fresh: list[int]) -> None:
        if call.threads.empty:
            warn_of_garbage(call.name, call.outputs)
            return
        borrowed: list[memory.DeviceMemory] = []
        given = iter(placed)
        inputs: list[ArrayView] = []
        for item, span in zip(call.inputs, spanned, strict=True):
            if item.view is None:
                here = _place_scalar(device, item.array, stream, borrowed)
            else:
                here = next(given)
                if span is not None:
                    here = _within(here, span, item.view)
            if call.contiguous and not (here.contiguous and here.address % here.dtype.itemsize == 0):
                here = _row_major_copy(device, here, stream, borrowed)
            inputs.append(here)
        outputs = list(given)
        if call.read_only:
            inputs = [dataclasses.replace(v, readonly=True) for v in inputs]
        params = [*parameters(inputs, outputs), *call.scalars]
        known = dict(zip(map(id, inputs), (i.name for i in call.inputs), strict=True))
        known |= zip(map(id, outputs), call.names, strict=True)
        empty = {id(outputs[i - len(arrays)]) for i in fresh}
        image.launch(
            params,
            grid=call.threads.blocks,
            block=call.threads.block,
            dynamic_smem=call.shared_memory,
            stream=stream,
            names=[known.get(id(p), "") for p in params],
            fresh=[i for i, p in enumerate(params) if id(p) in empty],
        )
        for block in borrowed:
            block.close()

    written = [False] * len(arrays) + [True] * len(call.outputs)
    job = Job(device, call.name, None, _no_check, written, effects=call.effects)
    return execute(job, arrays, call.outputs, run, stream=call.stream)


def _spanned(device: Device, item: Input, call: ForeignCall) -> ArrayView | None:
    """All of the memory that an input spans, as a flat array, where that is what must be brought to the device: for an
    array with gaps, in other memory than the device's, that the kernel is to see as it is.
    """
    seen = item.view
    if seen is None or call.contiguous or seen.contiguous or (seen.device == CPU) == (device.kind != "cuda"):
        return None
    first, last = seen.span()
    extent = ((last - first) // seen.dtype.itemsize,)
    return dataclasses.replace(seen, address=first, shape=extent, strides=(1,))


def _within(here: ArrayView, span: ArrayView, seen: ArrayView) -> ArrayView:
    """The input with its own axes, in the memory that was brought to the device."""
    address = here.address + seen.address - span.address
    return dataclasses.replace(here, address=address, shape=seen.shape, strides=seen.strides)


def _no_check(arrays: list[ArrayView]) -> None:
    """Outputs are fresh, and what the kernel assumes of its inputs is its author's to say."""


def _place_scalar(device: Device, scalar: Scalar, stream: int, borrowed: list[memory.DeviceMemory]) -> ArrayView:
    """A rank-0 array with the scalar's value, made in the order of `stream` and without host
    memory.
    """
    if not isinstance(device, CudaDevice):
        return memory.host_view(np.array(scalar.value), scalar.dtype)
    block = memory.DeviceMemory(device.context, scalar.dtype.itemsize, stream)
    borrowed.append(block)
    there = block.view((), scalar.dtype, device.index)
    memory.fill(there, scalar.value, stream)
    return there


def _row_major_copy(device: Device, source: ArrayView, stream: int, borrowed: list[memory.DeviceMemory]) -> ArrayView:
    if not isinstance(device, CudaDevice):
        array = np.ascontiguousarray(memory.host_array(source))
        return ArrayView(
            array.ctypes.data,
            source.shape,
            row_major(source.shape),
            source.dtype,
            CPU,
            "numpy",
            False,
            array,
        )
    block = memory.DeviceMemory(device.context, source.nbytes, stream)
    borrowed.append(block)
    there = block.view(source.shape, source.dtype, device.index)
    if recording.sink() is None:
        gather(device, there, source, stream)
    else:
        memory.copy(there, source, stream)  # a graph keeps copies as such
    return there
