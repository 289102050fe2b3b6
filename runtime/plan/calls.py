"""A call: it views the frameworks' arrays, allocates outputs, copies memory to the device, runs a plan, and returns results."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

from kernel_dsl.compiled import OutputSpec, TensorMapParam
from kernel_dsl.launch_plan import LaunchPlan
from kernel_dsl.source import here

from ..arrays.array_view import CPU, ArrayView, beside, common_framework, interop_of, row_major, view
from ..devices import driver, memory
from ..devices.device import Loaded
from ..devices.devices import cuda_device, device_index
from ..devices.failures import array_name, is_out_of_memory, launch_error, no_memory, where
from ..devices.streams import stream_handle
from ..devices.tensormap import refusal
from ..errors import ArgumentTypeError, ArgumentValueError
from . import recording
from .checks import check_arrays
from .pending import PendingCall


def call(
    loaded: Loaded,
    inputs: Sequence[Any],
    scalars: Sequence[Any],
    out: Sequence[Any] | None = None,
    stream: Any = None,
) -> list[Any]:
    """Run a loaded plan on arrays of any one framework. Returns the outputs as that framework's arrays.

    `inputs`: the input arrays in order. `scalars`: values, or their bytes. `out`: arrays to write, one for each output.
    `stream`: a handle or a framework's stream; by default the framework's current one. Arrays in host memory are copied
    to a GPU and results back, and in the other direction for the interpreter.
    """
    state = begin(loaded, inputs, scalars, out, stream)
    device = loaded.device
    if device.kind != "cuda" and state.place == CPU:
        return _perform(state)
    index = state.place[1] if state.place != CPU else device.index
    try:
        with driver.current(cuda_device(index).context):
            return _perform(state)
    except driver.CudaError as error:
        raise launch_error(error, loaded.plan.name, loaded.plan, state.views, "running") from error


def begin(
    loaded: Loaded, inputs: Sequence[Any], scalars: Sequence[Any], out: Sequence[Any] | None, stream: Any
) -> PendingCall:
    """View the arrays of a call, and choose framework, place and stream."""
    plan, device, count = loaded.plan, loaded.device, len(loaded.plan.outputs)
    if out is not None and len(out) != count:
        raise ArgumentTypeError(f"out= holds {len(out)} arrays, and {plan.name!r} has {count} outputs{where(plan)}")
    handle = _given_stream(stream, [*inputs, *(out or ())])
    views = [view(a, handle or 0) for a in inputs]
    given = [view(a, handle or 0) for a in out or ()]
    everything = views + given
    interop = beside(common_framework(everything, plan.name, where(plan)), everything, plan.name)
    index = device_index(everything)
    if index is not None and device.kind == "cuda" and index != device.index:
        raise ArgumentValueError(
            f"{plan.name!r} was loaded on cuda:{device.index}, and its arrays lie on cuda:{index}{where(plan)}"
        )
    place = CPU if index is None else ("cuda", index)
    if handle is None:
        handle = 0 if index is None else interop.current_stream(index)
    return PendingCall(loaded, scalars, interop, place, handle, views, given, out)


def _given_stream(stream: Any, arrays: list[Any]) -> int | None:
    """The stream of the call, or the one on which an array without a framework was written."""
    if stream is not None:
        return stream_handle(stream)
    if arrays and type(arrays[0]) is not ArrayView and interop_of(arrays[0]).name == "generic":
        from ..arrays.interop.generic import producer_stream

        return producer_stream(arrays)
    return None


def _perform(state: PendingCall) -> list[Any]:
    recorder = recording.current()
    if recorder is not None:
        return recorder.launch(state)
    count = len(state.views)
    allocate(state)
    for step in state.plan.first:
        memory.take(step, state.views, state.scalars, state.handle)
    fresh = state.fresh
    placed = _stage(state, fresh)
    state.loaded.launch(placed, state.scalars, state.handle, fresh)
    _unstage(state)
    return [
        a if state.given else state.interop.finish(a, v, state.handle)
        for a, v in zip(state.results, state.views[count:], strict=True)
    ]


def allocate(state: PendingCall) -> None:
    """Check the arrays, and give every output its memory."""
    count, plan = len(state.views), state.plan
    if plan.launch is None and not state.given:
        warn_of_garbage(plan, [s for s in plan.outputs if s.alias is None])
    state.views += state.given or [_reserve(i, spec) for i, spec in enumerate(plan.outputs)]
    check(state)
    if state.given:
        state.results = list(state.out or ())
        return
    for i, spec in enumerate(plan.outputs, count):
        try:
            array = state.interop.empty(spec.shape, spec.dtype, state.place, state.handle)
        except driver.CudaError:
            raise  # `call` writes the message
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise no_memory(error, array_name(plan, i), spec.shape, spec.dtype, plan, state.views[:count]) from error
        state.results.append(array)
        fresh = view(array, state.handle)
        fresh.readonly = False  # JAX's arrays are immutable once the user has them
        state.views[i] = fresh


def check(state: PendingCall) -> None:
    """Raise an error if the arrays break the code's assumptions. Only the author knows those of a custom kernel."""
    if state.plan.traced:
        check_arrays(state.plan, state.views)


def warn_of_garbage(plan: LaunchPlan, outputs: Sequence[OutputSpec]) -> None:
    """Warn that a grid without blocks leaves outputs uninitialised, if there are outputs without `init=`."""
    left = [s for s in outputs if s.fill is None and math.prod(s.shape)]
    if left:
        shapes = ", ".join(f"{s.dtype}[{','.join(map(str, s.shape))}]" for s in left)
        text = (
            f"the grid of kernel {plan.name!r} has no blocks, so nothing writes its outputs ({shapes}), which hold what their "
            f"memory held: give them a value with `kd.ShapeDtypeStruct(shape, dtype, init=0)`{where(plan)}"
        )
        loc = here()
        warnings.warn_explicit(text, RuntimeWarning, loc.file, loc.line)


def _reserve(i: int, spec: OutputSpec) -> ArrayView:
    """A stand-in for an output that is allocated after the checks, at an address that nothing overlaps."""
    return ArrayView(0, spec.shape, row_major(spec.shape), spec.dtype, ("unplaced", i), "numpy")


def _stage(state: PendingCall, fresh: Sequence[int]) -> list[ArrayView]:
    """Views that the device can access: the same ones, or copies of arrays in other memory."""
    wanted = "cuda" if state.loaded.device.kind == "cuda" else "cpu"
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
        if state.plan.written[i] and not any(there is twin for _, there in state.back):
            state.back.append((source, twin))
        placed.append(twin)
    if moved and wanted == "cpu":
        driver.check(driver.api().cuStreamSynchronize(state.handle))
    return placed


def _twin(state: PendingCall, i: int, source: ArrayView) -> ArrayView:
    """Memory for the elements of array `i` that the device can access."""
    layout = _layout(state, i, source)
    if state.loaded.device.kind != "cuda":
        return memory.host_memory(source, layout)
    index = state.loaded.device.index
    block = memory.DeviceMemory(cuda_device(index).context, layout.count * source.dtype.itemsize, state.handle)
    state.blocks.append(block)
    return layout.at(block.address, source, ("cuda", index), block)


def _layout(state: PendingCall, i: int, source: ArrayView) -> memory.CopyLayout:
    """The layout of the copy: without gaps, unless TMA can address the caller's array but not a gapless one."""
    step, plain = state.plan.launch, memory.gapless(source)
    if step is None or source.contiguous:
        return plain
    same = {j for j, other in enumerate(state.views) if j == i or other.same_memory(source)}
    maps = [p for p in step.params if isinstance(p, TensorMapParam) and p.array in same]
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


def _as_it_lies(twin: ArrayView) -> memory.CopyLayout:
    first, last = twin.span()
    return memory.CopyLayout(twin.strides, (last - first) // twin.dtype.itemsize)


def _unstage(state: PendingCall) -> None:
    """Copy results back to the caller's arrays, and free borrowed memory."""
    if not state.back and not state.blocks:
        return
    laid: list[tuple[ArrayView, ArrayView]] = []
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
