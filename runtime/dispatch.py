"""The short way from a plain call to a launch, for tensors on the kernel's own GPU.

A kernel object owns a `FastCalls`. A call first asks it; where it has seen such arguments before,
the launch is: read the addresses, pack, one driver call. Everything else, and everything that could
be an error, is MISS: the long way (`call`) deals with it, and then teaches the `FastCalls`.

    result = fast(args, out, stream)
    if result is MISS:
        ...            # look at the arguments, compile, load, runtime.call
        fast.learn(args, out, loaded, structure)

`args` are the call's leaves: arrays and scalars, in order.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter, methodcaller
from typing import Any, cast

import numpy as np

from kernel_dsl.compiled import CompiledKernel, PointerParam, ScalarParam, TensorMapParam
from kernel_dsl.dtypes import DType, complex64

from . import driver, memory, recording
from .args import told
from .arrays import ArrayView, frameworks, is_array, view
from .cuda_device import CudaLoaded
from .errors import Error
from .launch import ParamBuffer, settle
from .signature import LongWayError, scan, signature_of
from .streams import stream_handle

MISS: Any = object()

__all__ = ["MISS", "FastCall", "FastCalls", "fast_call", "signature_of"]

_ADDRESS: dict[str, Callable[[Any], int]] = {
    "torch": methodcaller("data_ptr"),
    "cupy": attrgetter("data.ptr"),
}

# NumPy has no struct code for bfloat16 and fp8, and Python scalars are never of those types.
_PACKERS = {
    "bool": "?",
    "int32": "i",
    "int64": "q",
    "uint32": "I",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
}


def _packer(value: Any, dtype: DType) -> Callable[[Any], bytes] | None:
    """How a scalar of `value`'s type becomes `dtype`'s bytes, or None where the long way must see
    to it.
    """
    if isinstance(value, np.generic):
        same = np.asarray(cast("Any", value)).dtype == dtype.numpy
        return methodcaller("tobytes") if same else None
    code = _PACKERS.get(dtype.name)
    return None if code is None else struct.Struct("=" + code).pack


class FastCall:
    """One compiled kernel and one signature.

    Called with arguments of that signature, it launches or says MISS.
    """

    def __init__(
        self,
        loaded: CudaLoaded,
        args: Sequence[Any],
        views: list[ArrayView],
        given: bool,
        single: bool,
        structure: Callable[[list[Any]], Any] | None,
    ) -> None:
        kernel = loaded.kernel
        self._loaded = loaded
        self._launcher: Any = loaded.launcher
        self._device = views[0].device
        self._interop = frameworks(views[0].framework)
        self._address = _ADDRESS[self._interop.name]
        self._current = self._interop.current_stream
        self._index = loaded.device.index
        self._inputs = [i for i, a in enumerate(args) if is_array(a)]
        self._given, self._single = given, single
        self._structure = structure
        self._specs = [(spec.shape, spec.dtype) for spec in kernel.outputs]
        self._allocators = [self._interop.allocator(shape, dtype, self._device) for shape, dtype in self._specs]
        self._lock = threading.Lock()
        self._params = ParamBuffer(loaded.layout.offsets, loaded.layout.nbytes)
        self._buffer, self._shift = self._params.buffer, self._params.shift
        self._pack = loaded.layout.pack
        self._calls: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        # The imaginary part of a lazy conjugate is lazily negated: it has gaps, or one element.
        self._lazy = [
            i
            for i, v in enumerate(views[: None if given else kernel.inputs])
            if v.framework == "torch" and v.dtype.is_float and (v.size == 1 or not v.contiguous)
        ]
        self._plan_values(args, views)
        self._plan_overlaps(views)
        self._fills = [(kernel.inputs + i, spec.fill) for i, spec in enumerate(kernel.outputs) if spec.fill is not None]
        self._success = driver.success()

    def _plan_values(self, args: Sequence[Any], views: list[ArrayView]) -> None:
        """Which parameter comes from where. What the signature fixes is kept as it is."""
        scalars = [a for a in args if not is_array(a)]
        places = [i for i, a in enumerate(args) if not is_array(a)]
        self._pointers: list[tuple[int, int]] = []
        self._scalars: list[tuple[int, int, Callable[[Any], bytes]]] = []
        self._maps: list[tuple[int, int, TensorMapParam, dict[int, bytes]]] = []
        self._values = self._loaded.layout.values(views, scalars, self._loaded.encode)
        self._shapes = [(v.shape, v.strides, v.dtype) for v in views]
        params = self._loaded.layout.params
        # The commonest kernels take one pointer an array, in order, and nothing else.
        self._direct = params == tuple(PointerParam(i) for i in range(len(views)))
        for slot, param in enumerate(params):
            if isinstance(param, PointerParam):
                self._pointers.append((slot, param.array))
            elif isinstance(param, TensorMapParam):
                self._maps.append((slot, param.array, param, {}))
            elif isinstance(param, ScalarParam):
                pack = _packer(scalars[param.scalar], param.dtype)
                assert pack is not None  # `fast_call` has asked
                self._scalars.append((slot, places[param.scalar], pack))

    def _plan_overlaps(self, views: list[ArrayView]) -> None:
        """The pairs of arrays to compare at each call:

        those of which one is written, and was not made for it.
        """
        kernel = self._loaded.kernel
        last = len(views) if self._given else kernel.inputs
        self._apart: list[tuple[int, int, int, int]] = []
        self._equal: list[tuple[int, int]] = []
        for j in range(last):
            for i in range(j):
                if not (kernel.arrays[i].written or kernel.arrays[j].written):
                    continue
                if told(kernel, i, j) and views[i].same_memory(views[j]):
                    self._equal.append((i, j))
                    continue
                (low_i, high_i), (low_j, high_j) = views[i].span(), views[j].span()
                # i and j share bytes if -below < address[i] - address[j] < above
                below = high_i - views[i].address - (low_j - views[j].address)
                above = high_j - views[j].address - (low_i - views[i].address)
                if low_i < high_i and low_j < high_j:
                    self._apart.append((i, j, -below, above))

    def __call__(self, args: Sequence[Any], out: Any, stream: int | None, addresses: list[int]) -> Any:
        """`addresses`: where the arrays of `args`, then those of `out`, lie."""
        for i, j, low, high in self._apart:
            if low < addresses[i] - addresses[j] < high:
                return MISS
        for i, j in self._equal:
            if addresses[i] != addresses[j]:
                return MISS
        if self._lazy and self._is_lazy(args, out):
            return MISS
        if stream is None:
            stream = self._current(self._index)
        if self._given:
            outputs: list[Any] = [out] if self._single else list(out)
        else:
            outputs = self._allocate(stream)
            addresses += map(self._address, outputs)
        if self._direct:
            values: list[Any] = addresses
        else:
            values = self._values.copy()
            for slot, array in self._pointers:
                values[slot] = addresses[array]
        if self._scalars and not self._pack_scalars(values, args):
            return MISS
        for slot, array, param, known in self._maps:
            address = addresses[array]
            values[slot] = known.get(address) or self._encode(address, array, param, known)
        if self._fills:
            self._fill(addresses, stream)
        call, arguments = self._calls.get(stream) or self._prepare(stream)
        with self._lock:
            self._pack(self._buffer, self._shift, *values)
            outcome = call(*arguments)
            if outcome[0] is not self._success:
                self._settle(call, arguments, outcome, args, outputs)
        return outputs if self._structure is None else self._structure(outputs)

    def _pack_scalars(self, values: list[Any], args: Sequence[Any]) -> bool:
        try:
            for slot, place, pack in self._scalars:
                values[slot] = pack(args[place])
        except (struct.error, OverflowError):
            return False
        return True

    def _allocate(self, stream: int) -> list[Any]:
        """Outputs of this call, in memory that belongs to `stream`."""
        if stream == self._current(self._index):
            return [allocate() for allocate in self._allocators]
        empty, device = self._interop.empty, self._device
        return [empty(shape, dtype, device, stream) for shape, dtype in self._specs]

    def _is_lazy(self, args: Sequence[Any], out: Any) -> bool:
        """Whether a tensor's memory holds its elements' negatives: views of complex ones can."""
        given = [] if out is None else [out] if self._single else list(out)
        arrays = [args[i] for i in self._inputs] + given
        return any(arrays[i].is_neg() for i in self._lazy)

    def _encode(self, address: int, array: int, param: TensorMapParam, known: dict[int, bytes]) -> bytes:
        shape, strides, dtype = self._shapes[array]
        made = self._loaded.encode(param, ArrayView(address, shape, strides, dtype, self._device, ""))
        if len(known) >= 1024:
            known.clear()
        known[address] = made
        return made

    def _fill(self, addresses: list[int], stream: int) -> None:
        device = self._loaded.device
        with driver.current(device.context):
            for array, value in self._fills:
                shape, strides, dtype = self._shapes[array]
                target = ArrayView(addresses[array], shape, strides, dtype, self._device, "")
                memory.fill(target, value, stream)

    def _prepare(self, stream: int) -> tuple[Any, tuple[Any, ...]]:
        made = self._launcher.call_for(stream, self._params.address)
        if len(self._calls) >= 64:
            self._calls.clear()
        self._calls[stream] = made
        return made

    def _settle(
        self,
        call: Any,
        arguments: tuple[Any, ...],
        outcome: tuple[Any, ...],
        args: Sequence[Any],
        outputs: list[Any],
    ) -> None:
        try:
            settle(self._loaded.device.context, call, arguments, outcome)
        except driver.CudaError as error:
            views = [view(args[i]) for i in self._inputs] + [view(a) for a in outputs]
            raise self._loaded.failure(error, views) from error


class FastCalls:
    """The fast calls of one kernel object. Safe to use from several threads."""

    CAPACITY = 1024
    miss = MISS

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[FastCall, ...]] = {}
        # The latest call's key and answer: comparing with it is cheaper than hashing.
        self._latest: tuple[list[Any], tuple[FastCall, ...]] = ([], ())

    def __call__(self, args: Sequence[Any], out: Any = None, stream: Any = None) -> Any:
        """The call's result if it has a fast way, else MISS: nothing was done then."""
        if recording.active and recording.current() is not None:
            return MISS  # a graph takes this call
        addresses: list[int] = []
        try:
            if out is None:
                key = scan(args, addresses)
            else:
                key = _key(args, out, addresses)
        except (LongWayError, RuntimeError):  # RuntimeError: a tensor without memory
            return MISS
        latest, found = self._latest
        if latest != key:
            found = self._known.get(tuple(key), ())
            self._latest = (key, found)
        if stream is not None:
            stream = stream_handle(stream)
        for fast in found:
            result = fast(args, out, stream, addresses)
            if result is not MISS:
                return result
        return MISS

    def learn(
        self,
        args: Sequence[Any],
        out: Any,
        loaded: Any,
        structure: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        """Remember that calls like this one run `loaded`. Does nothing where they have no fast way.

        `out` is what the call was given: None, one array, or a list or tuple of arrays, one an
        output. `structure` makes the call's result of the list of outputs.
        """
        try:
            key = tuple(_key(args, out, []))
        except (LongWayError, RuntimeError):
            return
        fast = fast_call(loaded, args, out, structure)
        if fast is None:
            return
        if len(self._known) >= self.CAPACITY:
            self._known.clear()
        self._known[key] = (fast, *self._known.get(key, ()))[:4]
        self._latest = ([], ())


def _key(args: Sequence[Any], out: Any, addresses: list[int]) -> list[Any]:
    """The signature of arguments and given outputs, ending in how the outputs were given."""
    if out is None:
        return scan(args, addresses)
    if type(out) is list or type(out) is tuple:
        key = scan((*args, *cast("Sequence[Any]", out)), addresses)
        key.append("listed")
    else:
        key = scan((*args, out), addresses)
        key.append("single")
    return key


def fast_call(
    loaded: Any,
    args: Sequence[Any],
    out: Any,
    structure: Callable[[list[Any]], Any] | None,
) -> FastCall | None:
    """The fast call for arguments like these, or None:

    arrays elsewhere, aliased outputs that start as a copy, workspaces.
    """
    if not isinstance(loaded, CudaLoaded):
        return None
    kernel = loaded.kernel
    if loaded.launcher is None or kernel.workspaces:
        return None
    if any(a.dtype == complex64 for a in kernel.arrays):  # lazily conjugated tensors
        return None
    outs: list[Any] = [] if out is None else list(out) if type(out) in (list, tuple) else [out]
    arrays = [a for a in args if is_array(a)] + outs
    if out is not None and len(outs) != len(kernel.outputs):
        return None
    try:
        views = [view(a) for a in arrays]
    except Error:
        return None
    if not views or any(v.framework not in _ADDRESS for v in views):
        return None
    if any(v.device != ("cuda", loaded.device.index) for v in views):
        return None
    if not all(_in_place(kernel, i, views) for i in range(len(kernel.outputs))):
        return None
    if out is None:
        interop = frameworks(views[0].framework)
        views += [
            view(interop.empty(o.shape, o.dtype, views[0].device, interop.current_stream(loaded.device.index)))
            for o in kernel.outputs
        ]
    scalars = [a for a in args if not is_array(a)]
    for param in kernel.params:
        if isinstance(param, ScalarParam) and _packer(scalars[param.scalar], param.dtype) is None:
            return None
    single = out is not None and type(out) not in (list, tuple)
    return FastCall(loaded, args, views, out is not None, single, structure)


def _in_place(kernel: CompiledKernel, output: int, views: list[ArrayView]) -> bool:
    """Whether an output needs no copy of the input that it is aliased to."""
    alias = kernel.outputs[output].alias
    if alias is None:
        return True
    place = kernel.inputs + output
    return place < len(views) and views[place].same_memory(views[alias])
