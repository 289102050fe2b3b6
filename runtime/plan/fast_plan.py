"""What a call that was seen before comes down to: the checks, the parameters and the launch, settled in advance."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, cast

import numpy as np

from kernel_dsl.compiled import CompiledKernel, ScalarParam, TensorMapParam
from kernel_dsl.dtypes import DType, complex64, int64, uint8

from ..arrays.array_view import ArrayView, Interop, frameworks, is_array, row_major, view
from ..custom.image_call import ImageCall
from ..devices import driver, memory
from ..devices.cuda_device import CudaLoaded
from ..devices.launch import ParamBuffer, settle
from ..errors import Error, array_name, is_out_of_memory, no_memory
from .args import PlacedParam, told

FRAMEWORKS = ("torch", "cupy")  # those with streams of their own and cheap addresses

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


# What a packer raises for a value that it is not for.
PACK_ERRORS = (struct.error, OverflowError)
_PAIR = struct.Struct("=ff")
_WIDE = struct.Struct("=q")


def packer(value: Any, param: ScalarParam | PlacedParam) -> Callable[[Any], bytes] | None:
    """How a scalar of `value`'s type becomes `param`'s bytes, or None where the long way must see to it."""
    dtype = param.dtype
    if isinstance(value, np.generic):
        same = np.asarray(cast("Any", value)).dtype == dtype.numpy
        return methodcaller("tobytes") if same else None
    if isinstance(param, PlacedParam) and dtype == int64:
        return _wide
    if isinstance(value, complex):
        return _pair if dtype == complex64 else None
    code = _PACKERS.get(dtype.name)
    return None if code is None else struct.Struct("=" + code).pack


def _wide(value: int) -> bytes:
    """An int that becomes an array of int64 because it must: those that fit int32 become one of int32."""
    if -(2**31) <= value < 2**31:
        raise OverflowError
    return _WIDE.pack(value)


def _pair(value: complex) -> bytes:
    return _PAIR.pack(value.real, value.imag)


def _packs(value: Any, param: ScalarParam | PlacedParam) -> bool:
    """Whether there is a packer, and it takes this very value: else calls with the value would never find it."""
    pack = packer(value, param)
    try:
        return pack is not None and bool(pack(value))
    except PACK_ERRORS:
        return False


PLACE = 16  # bytes from one scalar in the device's memory to the next: none is larger

# What one launch at a time needs: the parameters' buffer, how far into it they begin, and the launches by stream.
Desk = tuple[Any, int, dict[int, tuple[Any, tuple[Any, ...]]], ParamBuffer]


class FastPlan:
    """A loaded kernel and the arguments of one call; `unroll` makes a function for all calls of their signature.

    `args` are the call's leaves, `arrays` those that are arrays and then the given outputs, `views` theirs and then
    those of outputs to allocate, at no address: to learn a call takes no memory. `out` is what was given: None, an
    array, or a list or tuple of arrays.
    """

    def __init__(
        self, loaded: CudaLoaded | ImageCall, args: Sequence[Any], out: Any, arrays: list[Any], views: list[ArrayView]
    ) -> None:
        self.loaded = loaded
        self.kernel: CompiledKernel = loaded.kernel
        self.args, self.arrays, self.views = list(args), arrays, views
        self.out: Any = out
        self.inputs: list[int] = [i for i, a in enumerate(args) if is_array(a)]
        self.device: tuple[str, int] = views[0].device
        self.interop: Interop = frameworks(views[0].framework)
        self.current: Callable[[int], int] = self.interop.current_stream
        self.desks: list[Desk] = [self.desk()]
        self.shapes: list[tuple[tuple[int, ...], tuple[int, ...], DType]] = [
            (v.shape, v.strides, v.dtype) for v in views
        ]
        self.maps: dict[int, tuple[int, TensorMapParam, dict[int, bytes]]] = {
            slot: (param.array, param, {})
            for slot, param in enumerate(loaded.layout.params)
            if isinstance(param, TensorMapParam)
        }
        scalars = [a for a in args if not is_array(a)]
        self.values: list[Any] = loaded.layout.values(
            views, scalars, lambda param, array: b""
        )  # descriptors: see `encode`
        self.packers: dict[int, Callable[[Any], bytes] | None] = {
            slot: packer(scalars[param.scalar], param)
            for slot, param in enumerate(loaded.layout.params)
            if isinstance(param, (ScalarParam, PlacedParam))
        }
        self.placed: list[int] = [
            slot for slot, param in enumerate(loaded.layout.params) if isinstance(param, PlacedParam)
        ]
        self.scalars_shape: tuple[int] = (PLACE * len(self.placed),)
        outputs = list(enumerate(self.kernel.outputs, self.kernel.inputs))
        self.fills: list[tuple[int, Any]] = [(i, spec.fill) for i, spec in outputs if spec.fill is not None]

    def lazy(self, array: int) -> bool:
        """Whether a tensor like this can be lazily negated: the imaginary part of a lazy conjugate is.

        It has gaps, or one element.
        """
        seen = self.views[array]
        return seen.framework == "torch" and seen.dtype.is_float and (seen.size == 1 or not seen.contiguous)

    def overlaps(self) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int]]]:
        """What must hold of addresses: pairs that are equal, and (i, j, low, high) with i - j not between the two.

        They are the pairs of which one is written; outputs made for the call share nothing.
        """
        kernel, views = self.kernel, self.views
        equal: list[tuple[int, int]] = []
        apart: list[tuple[int, int, int, int]] = []
        for j in range(len(self.arrays)):
            for i in range(j):
                if not (kernel.arrays[i].written or kernel.arrays[j].written):
                    continue
                if told(kernel, i, j) and views[i].same_memory(views[j]):
                    equal.append((i, j))
                    continue
                (low_i, high_i), (low_j, high_j) = views[i].span(), views[j].span()
                below = high_i - views[i].address - (low_j - views[j].address)
                above = high_j - views[j].address - (low_i - views[i].address)
                if low_i < high_i and low_j < high_j:
                    apart.append((i, j, -below, above))
        return equal, apart

    def forget(self) -> None:
        """Let go of the call's arrays: the function is for others like them."""
        self.args: list[Any] = []
        self.arrays: list[Any] = []
        self.views: list[ArrayView] = []
        self.out = None

    # --- what the unrolled function calls, when it has to ------------------------------------------

    def encode(self, slot: int, address: int) -> bytes:
        """The TMA descriptor that parameter `slot` takes for an array at `address`."""
        array, param, known = self.maps[slot]
        shape, strides, dtype = self.shapes[array]
        made = self.loaded.encode(param, ArrayView(address, shape, strides, dtype, self.device, ""))
        if len(known) >= 1024:
            known.clear()
        known[address] = made
        return made

    def fill(self, addresses: Sequence[int], stream: int) -> None:
        """Fill the outputs that ask for it."""
        with driver.current(self.loaded.device.context):
            for array, value in self.fills:
                shape, strides, dtype = self.shapes[array]
                target = ArrayView(addresses[array], shape, strides, dtype, self.device, "")
                memory.fill(target, value, stream)

    def place(self, address: int, values: Sequence[bytes], stream: int) -> None:
        """Put scalars in the device's memory, `PLACE` bytes apart."""
        with driver.current(self.loaded.device.context):
            for value in values:
                memory.put(address, value, stream)
                address += PLACE

    def desk(self) -> Desk:
        """A place to launch from, for a thread that finds all others taken. One that an interrupt lost is no loss."""
        layout = self.loaded.layout
        params = ParamBuffer(layout.offsets, layout.nbytes)
        return params.buffer, params.shift, {}, params

    def prepare(self, stream: int, desk: Desk) -> tuple[Any, tuple[Any, ...]]:
        """The driver function and its arguments for a launch on `stream`."""
        launcher = self.loaded.launcher
        assert launcher is not None  # `plan_fast` has asked
        _, _, calls, params = desk
        made = launcher.call_for(stream, params.address)
        if len(calls) >= 64:
            calls.clear()
        calls[stream] = made
        return made

    def refuse(self, error: Exception, wanted: int, arrays: Sequence[Any]) -> None:
        """Deal with an error met in giving memory to output `wanted`, or to placed scalars, which come after them."""
        if not is_out_of_memory(error):
            return
        kernel, outputs = self.kernel, self.kernel.outputs
        if wanted < len(outputs):
            label = array_name(kernel, kernel.inputs + wanted)
            shape, dtype = outputs[wanted].shape, outputs[wanted].dtype
        else:
            label, shape, dtype = "scalars among the inputs", self.scalars_shape, uint8
        inputs = [view(a) for a in arrays]
        raise no_memory(error, label, shape, dtype, kernel.name, kernel, inputs) from error

    def failure(self, error: driver.CudaError, arrays: Sequence[Any]) -> Exception:
        """The exception for a driver error met in preparing a launch."""
        return self.loaded.failure(error, [view(a) for a in arrays], "preparing")

    def settle(self, call: Any, arguments: tuple[Any, ...], outcome: tuple[Any, ...], arrays: Sequence[Any]) -> None:
        """Deal with a launch that did not succeed at once."""
        try:
            settle(self.loaded.device.context, call, arguments, outcome)
        except driver.CudaError as error:
            raise self.loaded.failure(error, [view(a) for a in arrays]) from error


def plan_fast(loaded: Any, args: Sequence[Any], out: Any) -> FastPlan | None:
    """The plan for calls like this one, or None where there is no fast way.

    There is none for arrays elsewhere than on the kernel's GPU, outputs that start as a copy, and workspaces.
    """
    if not isinstance(loaded, (CudaLoaded, ImageCall)):
        return None
    kernel = loaded.kernel
    if loaded.launcher is None or kernel.workspaces:
        return None
    if any(a.dtype == complex64 for a in kernel.arrays):  # lazily conjugated tensors
        return None
    given: list[Any] = [] if out is None else list(out) if type(out) in (list, tuple) else [out]
    arrays = [a for a in args if is_array(a)] + given
    if out is not None and len(given) != len(kernel.outputs):
        return None
    try:
        views = [view(a) for a in arrays]
    except Error:
        return None
    if not views or any(v.framework not in FRAMEWORKS for v in views):
        return None
    if any(v.device != ("cuda", loaded.device.index) for v in views):
        return None
    if not all(_starts_in_place(kernel, i, views) for i in range(len(kernel.outputs))):
        return None
    scalars = [a for a in args if not is_array(a)]
    for param in loaded.layout.params:
        if isinstance(param, (ScalarParam, PlacedParam)) and not _packs(scalars[param.scalar], param):
            return None
    if out is None:
        framework, place = views[0].framework, views[0].device
        views += [ArrayView(0, o.shape, row_major(o.shape), o.dtype, place, framework) for o in kernel.outputs]
    return FastPlan(loaded, args, out, arrays, views)


def _starts_in_place(kernel: CompiledKernel, output: int, views: list[ArrayView]) -> bool:
    """Whether an output needs no copy of the input that it is aliased to."""
    alias = kernel.outputs[output].alias
    if alias is None:
        return True
    place = kernel.inputs + output
    return place < len(views) and views[place].same_memory(views[alias])
