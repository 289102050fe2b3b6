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
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter, methodcaller
from typing import Any, cast

import numpy as np

from kernel_dsl.compiled import PointerParam, ScalarParam, TensorMapParam
from kernel_dsl.dtypes import DType

from . import driver
from .arrays import ArrayView, frameworks, interop_of, is_array, view
from .cuda_device import CudaLoaded
from .errors import Error
from .launch import ParamBuffer, settle
from .streams import stream_handle

MISS: Any = object()

Describe = Callable[[Any], Hashable]
_describers: dict[type, Describe] = {}


def signature_of(args: Sequence[Any]) -> Hashable:
    """What of `args` may pick another compiled kernel: hashable, and as cheap as can be.

    Of an array: dtype, shape, strides, address modulo 16, device, and what would make it unusable
    (requires_grad). Of a scalar: its type, or dtype; never its value. None for arguments that have
    no fast way.
    """
    try:
        return tuple([_describers[type(a)](a) for a in args])
    except KeyError:
        return _learn_types(args)
    except Exception:  # a tensor without memory, a deleted array: the long way has the words for it
        return None


def _learn_types(args: Sequence[Any]) -> Hashable:
    for a in args:
        cls = cast("type[Any]", type(a))
        if cls not in _describers:
            describe = _describer(a)
            if describe is None:
                return None
            _describers[cls] = describe
    return signature_of(args)


def _describer(value: Any) -> Describe | None:
    if isinstance(value, (bool, int, float)):
        cls: type = type(value)
        return lambda _: cls
    if isinstance(value, np.generic):
        return attrgetter("dtype")
    if not is_array(value):
        return None
    return {"torch": _of_torch, "cupy": _of_cupy, "numpy": _of_numpy}.get(interop_of(value).name)


def _of_torch(t: Any) -> Hashable:
    if t.is_neg() or t.is_conj() or (t.requires_grad and _torch_watches()):
        raise ValueError("an error of the long way's")
    return t.dtype, t.shape, t.stride(), t.data_ptr() & 15, t.get_device()


def _torch_watches() -> bool:
    return sys.modules["torch"].is_grad_enabled()


def _of_cupy(a: Any) -> Hashable:
    memory = a.data
    return a.dtype, a.shape, a.strides, memory.ptr & 15, memory.device_id


def _of_numpy(a: Any) -> Hashable:
    flags = a.flags
    return a.dtype, a.shape, a.strides, a.__array_interface__["data"][0] & 15, flags.writeable


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
        return methodcaller("tobytes") if np.dtype(type(value)) == dtype.numpy else None
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
        self._launcher = loaded.launcher
        self._device = views[0].device
        self._interop = frameworks(views[0].framework)
        self._address = _ADDRESS[self._interop.name]
        self._current = self._interop.current_stream
        self._index = loaded.device.index
        self._inputs = [i for i, a in enumerate(args) if is_array(a)]
        self._given, self._single = given, single
        self._structure = structure
        self._specs = [(spec.shape, spec.dtype) for spec in kernel.outputs]
        self._lock = threading.Lock()
        self._params = ParamBuffer(loaded.layout.offsets, loaded.layout.nbytes)
        self._pack = loaded.layout.pack
        self._plan_values(args, views)
        self._plan_overlaps(views)
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
        for slot, param in enumerate(self._loaded.layout.params):
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
        allowed = {tuple(sorted(pair)) for pair in kernel.overlaps}
        last = len(views) if self._given else kernel.inputs
        self._apart: list[tuple[int, int, int, int]] = []
        self._equal: list[tuple[int, int]] = []
        for j in range(last):
            for i in range(j):
                if not (kernel.arrays[i].written or kernel.arrays[j].written):
                    continue
                if (i, j) in allowed and views[i].same_memory(views[j]):
                    self._equal.append((i, j))
                    continue
                (low_i, high_i), (low_j, high_j) = views[i].span(), views[j].span()
                # i and j share bytes if -below < address[i] - address[j] < above
                below = high_i - views[i].address - (low_j - views[j].address)
                above = high_j - views[j].address - (low_i - views[i].address)
                if low_i < high_i and low_j < high_j:
                    self._apart.append((i, j, -below, above))
        self._shared = bool(self._apart or self._equal)

    def __call__(self, args: Sequence[Any], out: Any, stream: int | None) -> Any:
        arrays = [args[i] for i in self._inputs]
        current = self._current(self._index) if stream is None else stream
        if self._given:
            outputs: list[Any] = [out] if self._single else list(out)
            arrays += outputs
            addresses = [*map(self._address, arrays)]
            if not self._distinct(addresses):
                return MISS
        else:
            if self._shared and not self._distinct([*map(self._address, arrays)]):
                return MISS
            empty, device = self._interop.empty, self._device
            outputs = [empty(shape, dtype, device, current) for shape, dtype in self._specs]
            arrays += outputs
            addresses = [*map(self._address, arrays)]
        values = self._values.copy()
        for slot, array in self._pointers:
            values[slot] = addresses[array]
        try:
            for slot, place, pack in self._scalars:
                values[slot] = pack(args[place])
        except (struct.error, OverflowError):
            return MISS
        for slot, array, param, known in self._maps:
            address = addresses[array]
            values[slot] = known.get(address) or self._encode(address, array, param, known)
        self._launch(values, current, arrays)
        return outputs if self._structure is None else self._structure(outputs)

    def _distinct(self, addresses: list[int]) -> bool:
        for i, j, low, high in self._apart:
            if low < addresses[i] - addresses[j] < high:
                return False
        return all(addresses[i] == addresses[j] for i, j in self._equal)

    def _encode(
        self, address: int, array: int, param: TensorMapParam, known: dict[int, bytes]
    ) -> bytes:
        shape, strides, dtype = self._shapes[array]
        made = self._loaded.encode(
            param, ArrayView(address, shape, strides, dtype, self._device, "")
        )
        if len(known) >= 1024:
            known.clear()
        known[address] = made
        return made

    def _launch(self, values: list[Any], stream: int, arrays: list[Any]) -> None:
        launcher, params = self._launcher, self._params
        if launcher is None:
            return
        with self._lock:
            self._pack(params.buffer, params.shift, *values)
            outcome = launcher.launch(stream, params.address)
            if outcome[0] is self._success:
                return
            call, arguments = launcher.call_for(stream, params.address)
            try:
                settle(self._loaded.device.context, call, arguments, outcome)
            except driver.CudaError as error:
                raise self._loaded.failure(error, [view(a) for a in arrays]) from error


class FastCalls:
    """The fast calls of one kernel object. Safe to use from several threads."""

    CAPACITY = 1024

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[FastCall, ...]] = {}

    def __call__(self, args: Sequence[Any], out: Any = None, stream: Any = None) -> Any:
        """The call's result if it has a fast way, else MISS: nothing was done then."""
        key = _key(args, out)
        if key is None:
            return MISS
        for fast in self._known.get(key, ()):
            handle = None if stream is None else stream_handle(stream)
            result = fast(args, out, handle)
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
        key = _key(args, out)
        if key is None:
            return
        fast = fast_call(loaded, args, out, structure)
        if fast is None:
            return
        if len(self._known) >= self.CAPACITY:
            self._known.clear()
        self._known[key] = (fast, *self._known.get(key, ()))[:4]


def _key(args: Sequence[Any], out: Any) -> Hashable:
    if out is None:
        return signature_of(args)
    listed = type(out) in (list, tuple)
    outs = signature_of(out if listed else (out,))
    ins = signature_of(args)
    return None if ins is None or outs is None else (ins, outs, listed)


def fast_call(
    loaded: Any,
    args: Sequence[Any],
    out: Any,
    structure: Callable[[list[Any]], Any] | None,
) -> FastCall | None:
    """The fast call for arguments like these, or None:

    arrays elsewhere, fills, copies, workspaces.
    """
    if not isinstance(loaded, CudaLoaded):
        return None
    kernel = loaded.kernel
    if kernel.workspaces or any(o.fill is not None or o.alias is not None for o in kernel.outputs):
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
    if out is None:
        interop = frameworks(views[0].framework)
        views += [
            view(
                interop.empty(
                    o.shape, o.dtype, views[0].device, interop.current_stream(loaded.device.index)
                )
            )
            for o in kernel.outputs
        ]
    scalars = [a for a in args if not is_array(a)]
    for param in kernel.params:
        if isinstance(param, ScalarParam) and _packer(scalars[param.scalar], param.dtype) is None:
            return None
    single = out is not None and type(out) not in (list, tuple)
    return FastCall(loaded, args, views, out is not None, single, structure)
