"""`bind`: a call with its arrays fixed. Every parameter is packed once; calling it is one driver call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from kernel_dsl.launch_plan import CopyStep, LaunchPlan, MemoryStep
from kernel_dsl.packed import elements_shape, on_host, pack, packed_dtype, unpack

from ..arrays.array_view import CPU, ArrayView, frameworks, interop_of, view
from ..devices import driver, memory
from ..devices.cuda_device import CudaLoaded
from ..devices.device import Loaded
from ..devices.launch import ParamBuffer, settle
from . import recording
from .calls import allocate, begin, call


class Binding:
    """A kernel with its arguments: `bound()` launches it and returns the same outputs each time.

    `outputs`: the arrays that it writes, in order. It uses the framework's current stream unless it was bound to one.
    Arrays are kept alive. Scalars keep the values they had.
    """

    def __init__(self, plan: LaunchPlan, outputs: list[Any], result: Any) -> None:
        self.plan = plan
        self.outputs = outputs
        self.result = result

    def __call__(self) -> Any:
        raise TypeError("a Binding is made by bind()")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.plan.name!r}>"


class CallBinding(Binding):
    """A binding that copies or waits around each launch: host arrays on a GPU, the interpreter, JAX."""

    def __init__(
        self,
        loaded: Loaded,
        inputs: Sequence[Any],
        scalars: Sequence[Any],
        outputs: list[Any],
        result: Any,
        stream: Any,
    ) -> None:
        super().__init__(loaded.plan, outputs, result)
        self._arguments = (loaded, list(inputs), list(scalars), outputs, stream)

    def __call__(self) -> Any:
        call(*self._arguments)
        return self.result


class FreshBinding(Binding):
    """A binding whose outputs are new arrays each time, for JAX, whose arrays can't be written again."""

    def __init__(
        self,
        loaded: Loaded,
        inputs: Sequence[Any],
        scalars: Sequence[Any],
        stream: Any,
        structure: Callable[[list[Any]], Any] | None,
    ) -> None:
        super().__init__(loaded.plan, [], None)
        self._arguments = (loaded, list(inputs), list(scalars), None, stream)
        self._structure = structure

    def __call__(self) -> Any:
        self.outputs: list[Any] = call(*self._arguments)
        self.result: Any = self._structure(self.outputs) if self._structure else self.outputs
        return self.result


class CudaBinding(Binding):
    """Arrays on the kernel's own GPU: the launch alone, after the plan's other steps, if it has some."""

    def __init__(
        self,
        loaded: CudaLoaded,
        views: list[ArrayView],
        scalars: Sequence[Any],
        outputs: list[Any],
        result: Any,
        stream: int | None,
    ) -> None:
        super().__init__(loaded.plan, outputs, result)
        self._loaded = loaded
        self._views = views
        self._scalars = list(scalars)
        self._arrays = [*views, *self._scratch(stream or 0)]
        self._params = ParamBuffer(loaded.layout.offsets, loaded.layout.nbytes)
        values = loaded.layout.values(self._arrays, scalars, loaded.encode)
        loaded.layout.pack(self._params.buffer, self._params.shift, *values)
        self._before = [self._prepared(s) for s in (*self.plan.first, *self.plan.then) if not self._in_place(s)]
        self._fixed = stream
        interop = frameworks(views[0].framework) if views else frameworks("numpy")
        self._current: Callable[[int], int] = interop.current_stream
        self._index = loaded.device.index
        self._calls: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self._success = driver.success()

    def _scratch(self, stream: int) -> list[ArrayView]:
        """Allocate hidden memory for the life of the binding."""
        if not self.plan.scratch:
            return []
        device = self._loaded.device
        with driver.current(device.context):
            made = self._loaded.scratch(stream)
        device.synchronize(stream)  # any stream may use it
        return made

    def _in_place(self, step: Any) -> bool:
        """Whether a step is a copy of an array to itself."""
        return isinstance(step, CopyStep) and self._arrays[step.target].same_memory(self._arrays[step.source])

    def _prepared(self, step: MemoryStep) -> Callable[[int], None]:
        """The function that does a step in a stream. The context must be current."""
        if isinstance(step, CopyStep):
            return partial(memory.take, step, self._arrays, self._scalars)
        target = self._arrays[step.array]
        sets = memory.memsets(target, memory.fill_value(step, self._scalars))
        made = [(memset, (target.address + offset, *rest)) for memset, offset, rest in sets]

        def fill(stream: int) -> None:
            for memset, arguments in made:
                driver.check(memset(*arguments, stream))

        return fill

    def __call__(self) -> Any:
        if recording.active and recording.current() is not None:
            arrays, count = [v.owner for v in self._views], self.plan.inputs
            call(self._loaded, arrays[:count], self._scalars, arrays[count:])
            return self.result
        stream = self._fixed
        if stream is None:
            stream = self._current(self._index)
        prepared = self._calls.get(stream)
        if prepared is None:
            prepared = self._prepare(stream)
        if self._before:
            self._run_before(stream)
        launch, arguments = prepared
        outcome = launch(*arguments)
        if outcome[0] is not self._success:
            self._settle(launch, arguments, outcome)
        return self.result

    def _prepare(self, stream: int) -> tuple[Any, tuple[Any, ...]]:
        launcher = self._loaded.launcher
        if launcher is None:  # an empty grid
            prepared: tuple[Any, tuple[Any, ...]] = (lambda: (self._success,), ())
        else:
            prepared = launcher.call_for(stream, self._params.address)
        if len(self._calls) >= 64:
            self._calls.clear()
        self._calls[stream] = prepared
        return prepared

    def _run_before(self, stream: int) -> None:
        try:
            with driver.current(self._loaded.device.context):
                for take in self._before:
                    take(stream)
        except driver.CudaError as error:
            raise self._loaded.failure(error, self._views, "preparing") from error

    def _settle(self, launch: Any, arguments: tuple[Any, ...], outcome: tuple[Any, ...]) -> None:
        try:
            settle(self._loaded.device.context, launch, arguments, outcome)
        except driver.CudaError as error:
            raise self._loaded.failure(error, self._views) from error


class PackedBinding(Binding):
    """A binding of arrays of 4-bit elements: it packs and unpacks them around each launch on their bytes."""

    def __init__(
        self, inner: Binding, call: Any, structure: Callable[[list[Any]], Any], again: Callable[..., Any]
    ) -> None:
        made = [s.packed and np.empty(elements_shape(s.shape), s.packed.numpy) for s in inner.plan.outputs]
        self._inner, self._structure, self._again = inner, structure, again
        self._elements: list[Any] = made if call.given is None else list(call.given)
        super().__init__(inner.plan, [], None)
        self._note()
        given = [] if call.given is None else zip(call.given, call.outs, strict=True)
        pairs = [*zip(call.logical, call.arrays, strict=True), *given]
        self._packed = [(x, data, kind) for x, data in pairs if (kind := packed_dtype(x)) is not None]

    def _note(self) -> None:
        """Fill the list of outputs: those of the launch on bytes, with elements for packed ones."""
        pairs = zip(self._elements, self._inner.outputs, self.plan.outputs, strict=False)
        self.outputs: list[Any] = [data if s.packed is None else x for x, data, s in pairs]
        self.result: Any = self._structure(self.outputs) if self.outputs or not self.plan.outputs else None

    def __call__(self) -> Any:
        if recording.active and recording.current() is not None:
            self._again(out=self.result)
            return self.result
        for elements, data, kind in self._packed:
            data[...] = pack(elements, kind)
        self._inner()
        for elements, data, spec in zip(self._elements, self._inner.outputs, self.plan.outputs, strict=True):
            if spec.packed is not None:
                elements[...] = unpack(on_host(data, self.plan.name), spec.packed)
        self._note()
        return self.result


def bind_packed(
    call: Any, stream: Any, structure: Callable[[list[Any]], Any], again: Callable[..., Any]
) -> PackedBinding:
    """`bind` for a prepared call with arrays of 4-bit elements.

    `again` makes the call, with `out=`, if a graph records it.
    """
    inner = bind(call.loaded, call.arrays, call.scalars, call.outs, stream)
    for data, spec in zip(inner.outputs, inner.plan.outputs, strict=False):
        if spec.packed is not None:
            on_host(data, inner.plan.name)
    return PackedBinding(inner, call, structure, again)


def bind(
    loaded: Loaded,
    inputs: Sequence[Any],
    scalars: Sequence[Any],
    out: Sequence[Any] | None = None,
    stream: Any = None,
    structure: Callable[[list[Any]], Any] | None = None,
) -> Binding:
    """Fix a call's arrays and scalars. Arguments as `call`'s; the kernel does not run.

    Without `out`, outputs are allocated once, except JAX's, which are new each time. `structure` makes the result of
    the binding's call from the list of outputs (by default the list itself).
    """
    if out is None and any(_immutable(a) for a in inputs):
        return FreshBinding(loaded, inputs, scalars, stream, structure)
    state = begin(loaded, inputs, scalars, out, stream)
    allocate(state)
    outputs, views = state.results, state.views
    result: Any = structure(outputs) if structure else outputs
    if isinstance(loaded, CudaLoaded) and all(
        v.device == ("cuda", loaded.device.index) and v.framework != "jax" for v in views
    ):
        return CudaBinding(loaded, views, scalars, outputs, result, None if stream is None else state.handle)
    return CallBinding(loaded, inputs, scalars, outputs, result, stream)


def _immutable(array: Any) -> bool:
    """Whether outputs of this framework can't be written again, or belong to another framework."""
    name = interop_of(array).name
    return name == "jax" or (name == "generic" and view(array).device == CPU)
