"""A call:

frameworks' arrays in, outputs allocated, filled and aliased, memory brought to the device, results
out.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernel_dsl.compiled import CompiledKernel, OutputSpec, TensorMapParam
from kernel_dsl.source import here

from ..arrays.array_view import CPU, ArrayView, Interop, frameworks, interop_of, row_major, view
from ..devices import driver, memory
from ..devices.device import Device, Loaded, cuda_device, device_index
from ..devices.streams import stream_handle
from ..devices.tensormap import refusal
from ..errors import (
    ArgumentTypeError,
    ArgumentValueError,
    array_name,
    describe_array,
    is_out_of_memory,
    launch_error,
    no_memory,
    where,
)
from . import recording
from .args import check_arrays

_Pair = tuple[ArrayView, ArrayView]
Launch = Callable[[list[ArrayView], int, list[int]], None]


def call(
    kernel: CompiledKernel,
    loaded: Loaded,
    inputs: Sequence[Any],
    scalars: Sequence[Any],
    out: Sequence[Any] | None = None,
    stream: Any = None,
) -> list[Any]:
    """Run a loaded kernel on arrays of any one framework; the outputs, as that framework's arrays.

    `inputs`: the input arrays in order. `scalars`: values, or their bytes. `out`: arrays to write,
    one for each output. `stream`: a handle or a framework's stream; by default the framework's
    current one. Arrays in host memory are copied to a GPU and results back, and the other way round
    for the interpreter.
    """

    def launch(arrays: list[ArrayView], handle: int, fresh: list[int]) -> None:
        loaded.launch(arrays, scalars, handle, fresh)

    job = _job(kernel, loaded, scalars)
    return execute(job, inputs, kernel.outputs, launch, out=out, stream=stream)


def _job(kernel: CompiledKernel, loaded: Loaded, scalars: Sequence[Any] = ()) -> Job:
    def check(arrays: list[ArrayView]) -> None:
        check_arrays(kernel, arrays)

    written = [a.written for a in kernel.arrays]
    effects = kernel.effects or any(output.alias is not None for output in kernel.outputs)
    return Job(loaded.device, kernel.name, kernel, check, written, loaded, scalars, effects)


def plan_call(
    kernel: CompiledKernel,
    loaded: Loaded,
    inputs: Sequence[Any],
    out: Sequence[Any] | None,
    stream: Any,
) -> tuple[list[Any], list[ArrayView], int | None]:
    """A call up to its launch:

    the outputs (allocated where `out` is None), every view, and the stream if given.
    """
    state = _begin(_job(kernel, loaded), inputs, len(kernel.outputs), out, stream)
    allocate(state, kernel.outputs, out)
    return state.results, state.views, None if stream is None else state.handle


@dataclass
class Job:
    """What `execute` needs to know of the thing it runs.

    `check` is given every view (inputs, then outputs) before anything is copied or launched.
    `written` says of each array whether the kernel may store to it.
    """

    device: Device
    name: str
    kernel: CompiledKernel | None
    check: Callable[[list[ArrayView]], None]
    written: Sequence[bool]
    loaded: Loaded | None = None  # a traced kernel, with its scalars
    scalars: Sequence[Any] = ()
    effects: bool = False  # it may do more than write its arrays, or stands for an input: no graph leaves it out


@dataclass
class PendingCall:
    """One call under way: the arrays, where they lie, and what is left to do after the launch."""

    job: Job
    interop: Interop
    place: tuple[str, int]  # where outputs are allocated
    handle: int  # the stream's
    views: list[ArrayView]
    given: list[ArrayView]
    results: list[Any] = field(default_factory=list[Any])
    blocks: list[memory.DeviceMemory] = field(default_factory=list[memory.DeviceMemory])
    back: list[_Pair] = field(default_factory=list[_Pair])
    keep: list[Any] = field(default_factory=list[Any])


def execute(
    job: Job,
    inputs: Sequence[Any],
    outputs: Sequence[OutputSpec],
    launch: Launch,
    *,
    out: Sequence[Any] | None = None,
    stream: Any = None,
) -> list[Any]:
    """Run `launch` on views that the device can reach, around it all that `call` promises.

    `launch(arrays, stream, fresh)` gets inputs then outputs; `fresh` lists the arrays that hold
    nothing yet.
    """
    state = _begin(job, inputs, len(outputs), out, stream)
    if job.device.kind != "cuda" and state.place == CPU:
        return _perform(state, outputs, launch, out)
    index = state.place[1] if state.place != CPU else job.device.index
    try:
        with driver.current(cuda_device(index).context):
            return _perform(state, outputs, launch, out)
    except driver.CudaError as error:
        raise launch_error(
            error,
            error.name,
            error.meaning,
            name=job.name,
            kernel=job.kernel,
            arrays=state.views,
            doing="running",
        ) from error


def _begin(job: Job, inputs: Sequence[Any], count: int, out: Sequence[Any] | None, stream: Any) -> PendingCall:
    """View the arrays, and settle framework, place and stream."""
    if out is not None and len(out) != count:
        raise ArgumentTypeError(
            f"out= holds {len(out)} arrays, and {job.name!r} has {count} outputs{where(job.kernel)}"
        )
    handle = _given_stream(stream, [*inputs, *(out or ())])
    views = [view(a, handle or 0) for a in inputs]
    given = [view(a, handle or 0) for a in out or ()]
    everything = views + given
    names = {v.framework for v in everything}
    if len(names) > 1:
        listed = " and ".join(sorted(names))
        raise ArgumentTypeError(
            f"the arrays of a call of {job.name!r} belong to {listed}; convert them to one framework{where(job.kernel)}"
        )
    index = device_index(everything)
    if index is not None and job.device.kind == "cuda" and index != job.device.index:
        raise ArgumentValueError(
            f"{job.name!r} was loaded on cuda:{job.device.index}, and its arrays lie on cuda:{index}{where(job.kernel)}"
        )
    interop = frameworks(names.pop() if names else "numpy")
    place = CPU if index is None else ("cuda", index)
    if handle is None:
        handle = 0 if index is None else interop.current_stream(index)
    return PendingCall(job, interop, place, handle, views, given)


def _given_stream(stream: Any, arrays: list[Any]) -> int | None:
    """The stream that was asked for, or that an array of no framework was written on."""
    if stream is not None:
        return stream_handle(stream)
    if arrays and type(arrays[0]) is not ArrayView and interop_of(arrays[0]).name == "generic":
        from ..arrays.interop.generic import producer_stream

        return producer_stream(arrays)
    return None


def _perform(state: PendingCall, outputs: Sequence[OutputSpec], launch: Launch, out: Sequence[Any] | None) -> list[Any]:
    recorder = recording.current()
    if recorder is not None:
        return recorder.launch(state, outputs, launch, out)
    count = len(state.views)
    allocate(state, outputs, out)
    fresh = prepare(state, outputs, count)
    placed = _stage(state, fresh)
    launch(placed, state.handle, fresh)
    _unstage(state)
    return [
        a if state.given else state.interop.finish(a, v, state.handle)
        for a, v in zip(state.results, state.views[count:], strict=True)
    ]


def allocate(state: PendingCall, outputs: Sequence[OutputSpec], out: Sequence[Any] | None) -> None:
    """Check the arrays, and give every output its memory."""
    count = len(state.views)
    kernel = state.job.kernel
    if kernel is not None and kernel.launch.empty and not state.given:
        warn_of_garbage(kernel.name, [s for s in outputs if s.alias is None], kernel)
    state.views += state.given or [_reserve(i, spec) for i, spec in enumerate(outputs)]
    state.job.check(state.views)
    if state.given:
        state.results = list(out or ())
        return
    for i, spec in enumerate(outputs):
        try:
            array = state.interop.empty(spec.shape, spec.dtype, state.place, state.handle)
        except driver.CudaError:
            raise  # `execute` words it
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            label = array_name(kernel, count + i) if kernel else f"output {i}"
            raise no_memory(
                error, label, spec.shape, spec.dtype, state.job.name, kernel, state.views[:count]
            ) from error
        state.results.append(array)
        fresh = view(array, state.handle)
        fresh.readonly = False  # JAX's arrays are immutable once the user has them
        state.views[count + i] = fresh


def warn_of_garbage(name: str, outputs: Sequence[OutputSpec], kernel: CompiledKernel | None = None) -> None:
    """Say that a grid without blocks leaves outputs as they were allocated, where there are such without `init=`."""
    left = [s for s in outputs if s.fill is None and math.prod(s.shape)]
    if left:
        shapes = ", ".join(f"{s.dtype}[{','.join(map(str, s.shape))}]" for s in left)
        text = (
            f"the grid of kernel {name!r} has no blocks, so nothing writes its outputs ({shapes}), which hold what their "
            f"memory held: give them a value with `kd.ShapeDtypeStruct(shape, dtype, init=0)`{where(kernel)}"
        )
        loc = here()
        warnings.warn_explicit(text, RuntimeWarning, loc.file, loc.line)


def _reserve(i: int, spec: OutputSpec) -> ArrayView:
    """A stand-in for an output that is allocated after the checks:

    at an address that nothing overlaps.
    """
    return ArrayView(0, spec.shape, row_major(spec.shape), spec.dtype, ("unplaced", i), "numpy")


def prepare(state: PendingCall, outputs: Sequence[OutputSpec], count: int) -> list[int]:
    """Fill outputs and copy aliased inputs into theirs.

    The arrays that hold nothing yet, by index.
    """
    fresh: list[int] = []
    for i, spec in enumerate(outputs):
        target = state.views[count + i]
        if spec.alias is not None:
            source = state.views[spec.alias]
            if not target.same_memory(source):
                memory.copy(target, source, state.handle)
        elif spec.fill is not None:
            memory.fill(target, spec.fill, state.handle)
        elif not state.given:
            fresh.append(count + i)
    return fresh


def _stage(state: PendingCall, fresh: list[int]) -> list[ArrayView]:
    """The views that the device can reach:

    themselves, or copies where an array lies in other memory.
    """
    wanted = "cuda" if state.job.device.kind == "cuda" else "cpu"
    placed: list[ArrayView] = []
    moved: list[tuple[ArrayView, ArrayView]] = []
    for i, source in enumerate(state.views):
        if source.device[0] == wanted:
            placed.append(source)
            continue
        twin = next((there for here, there in moved if here.size and here.same_memory(source)), None)
        if twin is None:
            twin = _twin(state, i, source)
            moved.append((source, twin))
            if i not in fresh:
                _bring(state, twin, source)
        if state.job.written[i] and not any(there is twin for _, there in state.back):
            state.back.append((source, twin))
        placed.append(twin)
    if moved and wanted == "cpu":
        driver.check(driver.api().cuStreamSynchronize(state.handle))
    return placed


def _twin(state: PendingCall, i: int, source: ArrayView) -> ArrayView:
    """Memory for the elements of array `i` on the side where the device is."""
    layout = _layout(state, i, source)
    if state.job.device.kind != "cuda":
        return memory.host_memory(source, layout)
    index = state.job.device.index
    block = memory.DeviceMemory(cuda_device(index).context, layout.count * source.dtype.itemsize, state.handle)
    state.blocks.append(block)
    return layout.at(block.address, source, ("cuda", index), block)


def _layout(state: PendingCall, i: int, source: ArrayView) -> memory.Layout:
    """How the copy lies: without gaps, unless TMA can't address that and can address what the caller passes."""
    kernel, plain = state.job.kernel, memory.gapless(source)
    if kernel is None or source.contiguous:
        return plain
    same = {j for j, other in enumerate(state.views) if j == i or other.same_memory(source)}
    maps = [p for p in kernel.params if isinstance(p, TensorMapParam) and p.array in same]
    for layout in (plain, memory.alike(source)):
        if all(refusal(p, layout.at(0, source, source.device, None)) is None for p in maps):
            return layout
    return plain


def _bring(state: PendingCall, twin: ArrayView, source: ArrayView) -> None:
    if source.device == CPU and not source.contiguous:
        laid = memory.host_memory(source, _as_it_lies(twin))
        memory.copy(laid, source)
        state.keep.append(laid)
        twin, source = memory.flat(twin), memory.flat(laid)
    memory.copy(twin, source, state.handle)


def _as_it_lies(twin: ArrayView) -> memory.Layout:
    first, last = twin.span()
    return memory.Layout(twin.strides, (last - first) // twin.dtype.itemsize)


def _unstage(state: PendingCall) -> None:
    """Copy results back to where the caller's arrays lie, and give back what was borrowed."""
    if not state.back and not state.blocks:
        return
    laid: list[_Pair] = []
    for target, twin in state.back:
        if target.device == CPU and not target.contiguous:
            pulled = memory.host_memory(target, _as_it_lies(twin))
            memory.copy(memory.flat(pulled), memory.flat(twin), state.handle)
            laid.append((target, pulled))
        else:
            memory.copy(target, twin, state.handle)
    driver.check(driver.api().cuStreamSynchronize(state.handle))
    for target, pulled in laid:
        memory.copy(target, pulled)
    for block in state.blocks:
        block.close()


def describe(views: Sequence[ArrayView]) -> str:
    """One line for a list of arrays, for messages."""
    return ", ".join(map(describe_array, views))
