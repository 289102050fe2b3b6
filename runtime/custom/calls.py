"""Calls of custom kernels: what `precompiled_cuda_kernel`, `cuda_kernel` and `metal_kernel` share.

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

from kernel_dsl.compiled import ArrayAssumption, LaunchAttributes, OutputSpec, PointerParam, ScalarParam
from kernel_dsl.diagnostics import shown
from kernel_dsl.dtypes import DType, as_dtype, complex64, int64, of_python
from kernel_dsl.errors import VariableUse
from kernel_dsl.launch_plan import (
    AnyParam,
    ConstantParam,
    CopyStep,
    FillStep,
    LaunchPlan,
    LaunchStep,
    OffsetParam,
    ScratchSpec,
    Step,
)
from kernel_dsl.variables import Symbol

from ..arrays.array_view import CPU, ArrayView, row_major, view
from ..devices import memory
from ..devices.device import Device, Dims, Loaded, LoadedImage
from ..devices.devices import pick_device
from ..errors import ArgumentTypeError, ArgumentValueError
from ..plan import recording
from ..plan.calls import call as run

_MAX_THREADS = 1024
_MAX_BLOCK: Dims = (1024, 1024, 64)
_MAX_BLOCKS: Dims = (2**31 - 1, 65535, 65535)


# --- grids ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Threads:
    """A launch counted in threads, and its blocks. `empty`: nothing is launched."""

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

    A threadgroup larger than the grid is reduced to it. Otherwise the last block of an axis is full, so more threads
    than `grid` may run. Raises ArgumentTypeError, ArgumentValueError.
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
class Input:
    """An input, with the properties that the generated signature depends on."""

    array: Any  # the user's array; a NumPy scalar for other values
    dtype: DType
    shape: tuple[int, ...]
    name: str  # for reports
    view: ArrayView | None = None


def as_input(value: Any, what: str, name: str, called: str = "") -> Input:
    """An array or a scalar, checked. Errors call it `what`, reports `called`, by default the same.

    Python's bool, int, float and complex become bool, int32 (int64 if needed), float32 and complex64; NumPy's scalars
    keep their dtype.
    """
    if isinstance(value, (bool, int, float, complex, np.generic)):
        scalar, dtype = _scalar(value, what, name)
        return Input(scalar, dtype, (), called or what)
    if isinstance(value, Symbol):
        operator.index(value)  # a graph's variable without a value raises its own error
    try:
        seen = view(value)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{what} of kernel {name!r}: {error.fields['message']}") from None
    return Input(value, seen.dtype, seen.shape, called or what, seen)


def _scalar(value: Any, what: str, name: str) -> tuple[Any, DType]:
    """A scalar input as a NumPy scalar, with its dtype."""
    dtype = of_python(value)
    scalar: Any = value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ArgumentValueError(f"{what} of kernel {name!r}, {value}, does not fit 64 bits")
        dtype = dtype if -(2**31) <= value < 2**31 else int64
    elif isinstance(value, complex):
        dtype = complex64
    if dtype is not None and not isinstance(value, np.generic):
        with np.errstate(over="ignore"):
            return dtype.numpy.type(value), dtype
    try:
        return scalar, as_dtype(scalar.dtype)
    except TypeError:
        raise ArgumentTypeError(
            f"{what} of kernel {name!r} is {value!r}, of a dtype that kernels do not have"
        ) from None


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
    """`dtype` as a DType. Raises ArgumentTypeError if it names none."""
    try:
        if dtype is None or isinstance(dtype, (bool, int, float)):
            raise TypeError
        return as_dtype(dtype)
    except TypeError:
        raise ArgumentTypeError(f"{what}={dtype!r} of kernel {name!r} is not a dtype that a kernel can hold") from None


def _shape(shape: Any, index: int, name: str) -> tuple[int, ...]:
    what = f"output_shapes[{index}]={shown(shape)} of kernel {name!r}"
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

# A function from the arrays that the kernel sees, inputs then outputs, to its parameters. It does not use addresses.
Parameters = Callable[[list[ArrayView], list[ArrayView]], Sequence[ArrayView | bytes]]


@dataclass(frozen=True)
class CustomCall:
    """One call of a custom kernel, checked."""

    name: str
    inputs: Sequence[Input]
    outputs: Sequence[OutputSpec]
    threads: Threads
    shared_memory: int
    contiguous: bool  # inputs are copied to row-major memory first
    stream: Any
    names: Sequence[str]  # names of the outputs, for reports
    read_only: bool  # the kernel has no way to write its inputs
    scalars: Sequence[Any] = ()  # parameters by value, which follow those of `launch`
    effects: bool = True  # it may do more than write its outputs


def choose_device(interpret: Any, inputs: Sequence[Input]) -> Device:
    """The device for a call on `inputs`."""
    return pick_device(interpret, [i.view for i in inputs if i.view is not None])


def check_shared_memory(value: Any, name: str) -> int:
    """`shared_memory=` in bytes, checked except for the device's limit."""
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"shared_memory={value!r} of kernel {name!r} must be an integer, in bytes") from None
    if count < 0:
        raise ArgumentValueError(f"shared_memory={count} of kernel {name!r} is negative")
    return count


def launch(
    device: Device, image: LoadedImage, call: CustomCall, parameters: Parameters
) -> tuple[list[Any], Loaded | None]:
    """Run `image`.

    Returns the outputs, in order, and the launched plan (None if other scalars would need another plan). A grid without
    threads makes the outputs and launches nothing.
    """
    limit = device.target.limits.smem_per_block
    if call.shared_memory > limit:
        raise ArgumentValueError(
            f"shared_memory={call.shared_memory} of kernel {call.name!r} is over the {limit} bytes that a block can "
            f"have on {device.target}"
        )
    made = _Planner(device, call)
    loaded = image.prepare(made.plan(image.entry, parameters))
    results = run(loaded, made.arrays, made.scalars, stream=call.stream)
    return results, None if made.fixed else loaded


class _Planner:
    """Makes the plan of a call: its arrays, its scratch, and its parameters. `arrays`: the inputs that are passed.
    `scalars`: those among the inputs, which lie in scratch, and those by value. `fixed`: a scalar's value is in the
    plan.
    """

    def __init__(self, device: Device, call: CustomCall) -> None:
        self._call = call
        self._device = device
        self._count = sum(item.view is not None for item in call.inputs) + len(call.outputs)
        self._staged = recording.current() is None  # a graph itself brings arrays to the device, unchanged
        self._assumed: list[ArrayAssumption] = []
        self._scratch: list[ScratchSpec] = []
        self._steps: list[Step] = []
        self._pointers: dict[int, AnyParam] = {}  # by the id of an array's stand-in
        self.arrays: list[Any] = []
        self.scalars: list[Any] = []
        self.fixed = False
        self._seen = [self._scalar(i) if i.view is None else self._array(i, i.view) for i in call.inputs]

    def plan(self, entry: str, parameters: Parameters) -> LaunchPlan:
        call, first = self._call, len(self._assumed)
        made = [_stand_in(spec.shape, spec.dtype) for spec in call.outputs]
        for i, (there, spec, name) in enumerate(zip(made, call.outputs, call.names, strict=True), first):
            self._assume(there, name, written=True)
            self._pointers[id(there)] = PointerParam(i)
            if spec.fill is not None:
                self._steps.append(FillStep(i, spec.fill))
        given = parameters(self._seen, made)
        params = [self._pointers[id(p)] if isinstance(p, ArrayView) else ConstantParam(bytes(p)) for p in given]
        params += [self._by_value(value) for value in call.scalars]
        threads, steps = call.threads, self._steps
        if threads.empty:
            self._scratch, steps = [], [s for s in steps if isinstance(s, FillStep) and s.array < self._count]
        else:
            attributes = LaunchAttributes(threads.blocks, threads.block, dynamic_smem=call.shared_memory)
            steps = [*steps, LaunchStep(entry, tuple(params), attributes)]
        return LaunchPlan(
            name=call.name,
            arrays=tuple(self._assumed),
            inputs=first,
            outputs=tuple(call.outputs),
            scratch=tuple(self._scratch),
            steps=tuple(steps),
            traced=False,
            guarded=call.read_only,
            effects=call.effects,
        )

    def _array(self, item: Input, seen: ArrayView) -> ArrayView:
        """An input that is an array, in the form that the kernel sees."""
        number, wanted = len(self._assumed), self._call.contiguous
        elsewhere = (seen.device == CPU) == (self._device.kind == "cuda")
        if elsewhere and not wanted and not seen.contiguous:
            # The kernel sees its strides: all memory that it spans goes to the device.
            low, high = seen.span()
            spanned = dataclasses.replace(seen, address=low, shape=((high - low) // seen.dtype.itemsize,), strides=(1,))
            self.arrays.append(spanned)
            self._assume(spanned, item.name)
            self._pointers[id(seen)] = OffsetParam(number, seen.address - low)
            return seen
        self.arrays.append(item.array)
        self._assume(seen, item.name)
        staged = elsewhere and self._staged
        if not staged and (not wanted or (seen.contiguous and seen.address % seen.dtype.itemsize == 0)):
            self._pointers[id(seen)] = PointerParam(number)
            return seen
        here = _stand_in(seen.shape, seen.dtype)
        if staged:
            self._pointers[id(here)] = PointerParam(number)
        else:
            there = self._put(item)
            self._steps.append(CopyStep(there, number))
            self._pointers[id(here)] = PointerParam(there)
        return here

    def _scalar(self, item: Input) -> ArrayView:
        """A scalar among the inputs: a rank-0 array that each launch fills."""
        there = self._put(item)
        self._steps.append(FillStep(there, ScalarParam(len(self.scalars), item.dtype)))
        self.scalars.append(item.array)
        here = _stand_in((), item.dtype)
        self._pointers[id(here)] = PointerParam(there)
        return here

    def _put(self, item: Input) -> int:
        """Scratch for an input; its number among the arrays."""
        size = item.dtype.itemsize
        self._scratch.append(ScratchSpec(item.shape, item.dtype, size, not self._call.read_only, item.name))
        return self._count + len(self._scratch) - 1

    def _assume(self, seen: ArrayView, name: str, written: bool = False) -> None:
        self._assumed.append(ArrayAssumption(seen.shape, seen.dtype, False, seen.dtype.itemsize, written, name))

    def _by_value(self, value: Any) -> AnyParam:
        self.scalars.append(value)
        try:
            dtype = of_python(value) or as_dtype(value.dtype)
        except TypeError:  # a NumPy scalar of a dtype that kernels lack
            self.fixed = True
            return ConstantParam(value.tobytes())
        return ScalarParam(len(self.scalars) - 1, dtype)


def _stand_in(shape: tuple[int, ...], dtype: DType) -> ArrayView:
    """An array without memory."""
    return ArrayView(0, shape, row_major(shape), dtype, CPU, "")
