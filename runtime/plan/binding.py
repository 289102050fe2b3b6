"""`bind`:

a call with its arrays fixed. Every parameter is packed once; calling it is one driver call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernel_dsl.compiled import CompiledKernel
from kernel_dsl.dtypes import uint8

from ..arrays.array_view import CPU, ArrayView, frameworks, interop_of, view
from ..devices import driver, memory
from ..devices.cuda_device import CudaLoaded
from ..devices.device import Loaded
from ..devices.launch import ParamBuffer, settle
from . import recording
from .calls import call, plan_call


class Binding:
    """A kernel with its arguments: `bound()` launches it and returns the same outputs each time.

    `outputs`: the arrays that it writes, in order. It follows the framework's current stream unless
    it was bound to one. Arrays are kept alive. Scalars keep the values they had.
    """

    def __init__(self, kernel: CompiledKernel, outputs: list[Any], result: Any) -> None:
        self.kernel = kernel
        self.outputs = outputs
        self.result = result

    def __call__(self) -> Any:
        raise TypeError("a Binding is made by bind()")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.kernel.name!r}>"


class CallBinding(Binding):
    """A binding that copies or waits around each launch:

    host arrays on a GPU, the interpreter, JAX.
    """

    def __init__(
        self,
        loaded: Loaded,
        inputs: Sequence[Any],
        scalars: Sequence[Any],
        outputs: list[Any],
        result: Any,
        stream: Any,
    ) -> None:
        super().__init__(loaded.kernel, outputs, result)
        self._arguments = (loaded.kernel, loaded, list(inputs), list(scalars), outputs, stream)

    def __call__(self) -> Any:
        call(*self._arguments)
        return self.result


class FreshBinding(Binding):
    """A binding whose outputs are new arrays each time: JAX's cannot be written again."""

    def __init__(
        self,
        loaded: Loaded,
        inputs: Sequence[Any],
        scalars: Sequence[Any],
        stream: Any,
        structure: Callable[[list[Any]], Any] | None,
    ) -> None:
        super().__init__(loaded.kernel, [], None)
        self._arguments = (loaded.kernel, loaded, list(inputs), list(scalars), None, stream)
        self._structure = structure

    def __call__(self) -> Any:
        self.outputs: list[Any] = call(*self._arguments)
        self.result: Any = self._structure(self.outputs) if self._structure else self.outputs
        return self.result


class CudaBinding(Binding):
    """Arrays on the kernel's own GPU:

    the launch alone, after fills, copies and zeroing where the kernel asks for them.
    """

    def __init__(
        self,
        loaded: CudaLoaded,
        views: list[ArrayView],
        scalars: Sequence[Any],
        outputs: list[Any],
        result: Any,
        stream: int | None,
    ) -> None:
        super().__init__(loaded.kernel, outputs, result)
        self._loaded = loaded
        self._views = views
        self._scalars = list(scalars)
        self._spaces = self._allocate(loaded, stream or 0)
        self._params = ParamBuffer(loaded.layout.offsets, loaded.layout.nbytes)
        values = loaded.layout.values([*views, *self._spaces], scalars, loaded.encode)
        loaded.layout.pack(self._params.buffer, self._params.shift, *values)
        self._before = self._preparations()
        self._fixed = stream
        interop = frameworks(views[0].framework) if views else frameworks("numpy")
        self._current: Callable[[int], int] = interop.current_stream
        self._index = loaded.device.index
        self._calls: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        self._success = driver.success()

    def _allocate(self, loaded: CudaLoaded, stream: int) -> list[ArrayView]:
        """Hidden memory, for the life of the binding."""
        made: list[ArrayView] = []
        for space in loaded.kernel.workspaces:
            block = loaded.device.allocate(space.bytes, stream)
            loaded.device.synchronize(stream)  # any stream may use it
            made.append(block.view((space.bytes,), uint8, loaded.device.index))
        return made

    def _preparations(self) -> list[Callable[[int], None]]:
        """What each launch does to memory first, in its stream."""
        kernel = self.kernel
        before: list[Callable[[int], None]] = []
        for i, spec in enumerate(kernel.outputs):
            target = self._views[kernel.inputs + i]
            if spec.alias is not None:
                source = self._views[spec.alias]
                if not target.same_memory(source):
                    before.append(lambda s, t=target, o=source: memory.copy(t, o, s))
            elif spec.fill is not None:
                before.append(lambda s, t=target, v=spec.fill: memory.fill(t, v, s))
        for space, block in zip(kernel.workspaces, self._spaces, strict=True):
            if space.zeroed:
                before.append(lambda s, t=block: memory.fill(t, 0, s))
        return before

    def __call__(self) -> Any:
        if recording.active and recording.current() is not None:
            arrays, count = [v.owner for v in self._views], self.kernel.inputs
            call(self.kernel, self._loaded, arrays[:count], self._scalars, arrays[count:])
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
                for step in self._before:
                    step(stream)
        except driver.CudaError as error:
            raise self._loaded.failure(error, self._views, "preparing") from error

    def _settle(self, launch: Any, arguments: tuple[Any, ...], outcome: tuple[Any, ...]) -> None:
        try:
            settle(self._loaded.device.context, launch, arguments, outcome)
        except driver.CudaError as error:
            raise self._loaded.failure(error, self._views) from error


def bind(
    kernel: CompiledKernel,
    loaded: Loaded,
    inputs: Sequence[Any],
    scalars: Sequence[Any],
    out: Sequence[Any] | None = None,
    stream: Any = None,
    structure: Callable[[list[Any]], Any] | None = None,
) -> Binding:
    """Fix a call's arrays and scalars. Arguments as `call`'s; the kernel does not run.

    Outputs are allocated once where `out` is not given, except JAX's, which are new each time.
    `structure` turns the list of outputs into what a call of the binding returns (the list itself by default).
    """
    if out is None and any(_immutable(a) for a in inputs):
        return FreshBinding(loaded, inputs, scalars, stream, structure)
    outputs, views, handle = plan_call(kernel, loaded, inputs, out, stream)
    result: Any = structure(outputs) if structure else outputs
    if isinstance(loaded, CudaLoaded) and all(
        v.device == ("cuda", loaded.device.index) and v.framework != "jax" for v in views
    ):
        return CudaBinding(loaded, views, scalars, outputs, result, handle)
    return CallBinding(loaded, inputs, scalars, outputs, result, stream)


def _immutable(array: Any) -> bool:
    """Whether results beside `array` cannot be written a second time, or are of another framework."""
    name = interop_of(array).name
    return name == "jax" or (name == "generic" and view(array).device == CPU)
