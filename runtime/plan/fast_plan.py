"""The fast path of a repeated call: its checks, parameters and launch, prepared in advance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from kernel_dsl.compiled import ScalarParam, TensorMapParam
from kernel_dsl.dtypes import DType, complex64, uint8
from kernel_dsl.launch_plan import CopyStep, FillStep, LaunchPlan, ZeroStep

from ..arrays.array_view import ArrayView, Interop, frameworks, is_array, row_major, view
from ..devices import driver, memory
from ..devices.cuda_device import CudaLoaded
from ..devices.failures import array_name, is_out_of_memory, no_memory
from ..devices.launch import ParamBuffer, settle
from ..devices.params import PACK_ERRORS, packer
from ..errors import RunError

FRAMEWORKS = ("torch", "cupy")  # frameworks with their own streams and fast access to addresses


def _packs(value: Any, dtype: DType, narrow: bool) -> bool:
    """Whether a packer takes this value. Without one, calls with it would never use the fast path."""
    pack = packer(value, dtype, narrow)
    try:
        return pack is not None and bool(pack(value))
    except PACK_ERRORS:
        return False


PACKED = 128  # launches of one signature that are kept packed: those of a model with as many layers
PLACE = 16  # bytes from one scalar in the device's memory to the next, enough for the largest

# The objects of one launch at a time: the parameters' buffer, their offset in it, and the launches by stream.
Desk = tuple[Any, int, dict[int, tuple[Any, tuple[Any, ...]]], ParamBuffer]


class FastPlan:
    """A loaded kernel and the arguments of one call; `unroll` makes a function for all calls of their signature.

    `args`: the call's leaves; `arrays`: the arrays among them, then those of `out=`; `views`: the views of these, then
    of outputs to allocate, without memory. `out`: None, an array, or a list or tuple of arrays.
    """

    def __init__(
        self, loaded: CudaLoaded, args: Sequence[Any], out: Any, arrays: list[Any], views: list[ArrayView]
    ) -> None:
        self.loaded = loaded
        plan = loaded.plan
        self.plan: LaunchPlan = plan
        self.args, self.arrays, self.views = list(args), arrays, views
        self.out: Any = out
        self.inputs: list[int] = [i for i, a in enumerate(args) if is_array(a)]
        self.device: tuple[str, int] = views[0].device
        self.interop: Interop = frameworks(views[0].framework)
        self.current: Callable[[int], int] = self.interop.current_stream
        self.desks: list[Desk] = [self.desk()]
        self.packed: dict[
            Any, tuple[Any, tuple[Any, ...], ParamBuffer] | None
        ] = {}  # launches; None after the first one
        self.shapes: list[tuple[tuple[int, ...], tuple[int, ...], DType]] = [
            (v.shape, v.strides, v.dtype) for v in views
        ]
        self.maps: dict[int, tuple[int, TensorMapParam, dict[int, bytes]]] = {
            slot: (param.array, param, {})
            for slot, param in enumerate(loaded.layout.params)
            if isinstance(param, TensorMapParam)
        }
        scalars = [a for a in args if not is_array(a)]
        placed = _placed(plan)
        self.placed: list[int] = [scalar for scalar, _ in placed]  # scalars in scratch, by number, in order
        # descriptors: see `encode`
        self.values: list[Any] = loaded.layout.values(
            [*views, *[views[0]] * len(plan.scratch)], scalars, lambda param, array: b""
        )
        self.packers: dict[int, Callable[[Any], bytes] | None] = {
            number: packer(scalars[number], dtype, narrow) for number, dtype, narrow in _scalars(plan)
        }
        self.scalars_shape: tuple[int] = (PLACE * len(placed),)
        room, zeroed, offsets = (0, 0, [PLACE * i for i in range(len(placed))]) if placed else _laid_out(plan)
        self.room: int = room
        self.zeroed: int = zeroed
        self.offsets: list[int] = offsets
        self.sets: list[tuple[int, memory.Memset]] = self._sets()

    def lazy(self, array: int) -> bool:
        """Whether a tensor like this can be lazily negated, as the imaginary part of a lazy conjugate is.

        Such a tensor has gaps, or one element.
        """
        seen = self.views[array]
        return seen.framework == "torch" and seen.dtype.is_float and (seen.size == 1 or not seen.contiguous)

    def overlaps(self) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int]]]:
        """Conditions on addresses: pairs that are equal, and (i, j, low, high): i - j is not between low and high.

        They are the pairs of which one is written; new outputs share no memory.
        """
        views = self.views
        equal: list[tuple[int, int]] = []
        apart: list[tuple[int, int, int, int]] = []
        for i, j in self.plan.pairs:
            if j < len(self.arrays):
                if (i, j) in self.plan.shared and views[i].same_memory(views[j]):
                    equal.append((i, j))
                    continue
                (low_i, high_i), (low_j, high_j) = views[i].span(), views[j].span()
                below = high_i - views[i].address - (low_j - views[j].address)
                above = high_j - views[j].address - (low_i - views[i].address)
                if low_i < high_i and low_j < high_j:
                    apart.append((i, j, -below, above))
        return equal, apart

    def forget(self) -> None:
        """Drop the call's arrays: the function is for other arrays like them."""
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
        """Fill outputs with `init`, and zero workspaces, which lie at the last address."""
        with driver.current(self.loaded.device.context):
            for array, (call, offset, rest) in self.sets:
                driver.check(call(addresses[array] + offset, *rest, stream))

    def _sets(self) -> list[tuple[int, memory.Memset]]:
        found: list[tuple[int, memory.Memset]] = []
        for step in self.plan.first:
            if isinstance(step, FillStep):
                shape, strides, dtype = self.shapes[step.array]
                target = ArrayView(0, shape, strides, dtype, self.device, "")
                found += [(step.array, one) for one in memory.memsets(target, step.value)]
        if self.zeroed:
            space = ArrayView(0, (self.zeroed,), (1,), uint8, self.device, "")
            found += [(-1, one) for one in memory.memsets(space, 0)]
        return found

    def place(self, address: int, values: Sequence[bytes], stream: int) -> None:
        """Put scalars in the device's memory, `PLACE` bytes apart."""
        with driver.current(self.loaded.device.context):
            for value in values:
                memory.put(address, value, stream)
                address += PLACE

    def desk(self) -> Desk:
        """A new desk, for a thread that finds all others in use. An interrupt may lose one without harm."""
        layout = self.loaded.layout
        params = ParamBuffer(layout.offsets, layout.nbytes)
        return params.buffer, params.shift, {}, params

    def keep(self, key: tuple[int, ...], desk: Desk) -> None:
        """Note a launch from a desk by its stream, addresses and scalars; pack the second one into a buffer of its own."""
        if key not in self.packed:
            self.packed[key] = None
            return
        launcher, layout = self.loaded.launcher, self.loaded.layout
        assert launcher is not None  # as above
        buffer, shift, _, _ = desk
        own = ParamBuffer(layout.offsets, layout.nbytes)
        own.buffer[own.shift : own.shift + layout.nbytes] = buffer[shift : shift + layout.nbytes]
        self.packed[key] = (*launcher.call_for(key[0], own.address), own)

    def prepare(self, stream: int, desk: Desk) -> tuple[Any, tuple[Any, ...]]:
        """The driver function and its arguments for a launch on `stream`."""
        launcher = self.loaded.launcher
        assert launcher is not None  # `plan_fast` has tested that there is one
        _, _, calls, params = desk
        made = launcher.call_for(stream, params.address)
        if len(calls) >= 64:
            calls.clear()
        calls[stream] = made
        return made

    def refuse(self, error: Exception, wanted: int, arrays: Sequence[Any]) -> None:
        """Handle an error of the allocation of output `wanted`; numbers after the outputs are scratch."""
        if not is_out_of_memory(error):
            return
        plan, outputs = self.plan, self.plan.outputs
        if wanted < len(outputs):
            label = array_name(plan, plan.inputs + wanted)
            shape, dtype = outputs[wanted].shape, outputs[wanted].dtype
        elif self.room:
            label, shape, dtype = "the kernel's workspaces", (self.room,), uint8
        else:
            label, shape, dtype = "scalars among the inputs", self.scalars_shape, uint8
        inputs = [view(a) for a in arrays]
        raise no_memory(error, label, shape, dtype, plan, inputs) from error

    def failure(self, error: driver.CudaError, arrays: Sequence[Any]) -> Exception:
        """The exception for a driver error while a launch is prepared."""
        return self.loaded.failure(error, [view(a) for a in arrays], "preparing")

    def settle(self, call: Any, arguments: tuple[Any, ...], outcome: tuple[Any, ...], arrays: Sequence[Any]) -> None:
        """Handle a launch that failed at first."""
        try:
            settle(self.loaded.device.context, call, arguments, outcome)
        except driver.CudaError as error:
            raise self.loaded.failure(error, [view(a) for a in arrays]) from error


def plan_fast(loaded: Any, args: Sequence[Any], out: Any) -> FastPlan | None:
    """The plan for calls like this one, or None where there is no fast path.

    There is none for arrays elsewhere than on the kernel's GPU, outputs that start as a copy, and scratch of two kinds:
    scalars beside workspaces.
    """
    if not isinstance(loaded, CudaLoaded) or loaded.launcher is None:
        return None
    plan = loaded.plan
    if len(_placed(plan)) != len(plan.scratch) and not _holds_workspaces(plan):
        return None
    if any(a.dtype == complex64 for a in plan.arrays):  # lazily conjugated tensors
        return None
    given: list[Any] = [] if out is None else list(out) if type(out) in (list, tuple) else [out]
    arrays = [a for a in args if is_array(a)] + given
    if out is not None and len(given) != len(plan.outputs):
        return None
    try:
        views = [view(a) for a in arrays]
    except RunError:
        return None
    if not views or any(v.framework not in FRAMEWORKS for v in views):
        return None
    if any(v.device != ("cuda", loaded.device.index) for v in views):
        return None
    for step in plan.first:  # an output that is the input itself needs no copy
        if isinstance(step, CopyStep) and not (out is not None and views[step.target].same_memory(views[step.source])):
            return None
    scalars = [a for a in args if not is_array(a)]
    if not all(_packs(scalars[number], dtype, narrow) for number, dtype, narrow in _scalars(plan)):
        return None
    if out is None:
        framework, place = views[0].framework, views[0].device
        views += [ArrayView(0, o.shape, row_major(o.shape), o.dtype, place, framework) for o in plan.outputs]
    return FastPlan(loaded, args, out, arrays, views)


def _holds_workspaces(plan: LaunchPlan) -> bool:
    """Whether scratch has only workspaces, some of which may be zeroed first."""
    plain = all(s.dtype == uint8 and s.alignment <= UNIT for s in plan.scratch)
    params = plan.launch.params if plan.launch else ()
    mapped = any(isinstance(p, TensorMapParam) and p.array >= len(plan.arrays) for p in params)
    return plain and not mapped and all(isinstance(step, ZeroStep) for step in plan.then)


UNIT = 256  # bytes: the alignment of workspaces


def _laid_out(plan: LaunchPlan) -> tuple[int, int, list[int]]:
    """One block of memory for all workspaces: its bytes, the number of bytes to zero, and each workspace's offset."""
    zeroed = {step.array - len(plan.arrays) for step in plan.then if isinstance(step, ZeroStep)}
    offsets, used = [0] * len(plan.scratch), 0
    for number in sorted(range(len(plan.scratch)), key=lambda n: n not in zeroed):
        offsets[number] = used
        used += -(-prod(plan.scratch[number].shape) // UNIT) * UNIT
    ends = [offsets[n] + prod(plan.scratch[n].shape) for n in zeroed]
    return used, max(ends, default=0), offsets


def _placed(plan: LaunchPlan) -> list[tuple[int, DType]]:
    """The scalars in scratch, by number, with their dtypes, if scratch holds nothing else."""
    fills = {s.array: s.value for s in plan.then if isinstance(s, FillStep)}
    found = [fills.get(i) for i in range(len(plan.arrays), len(plan.arrays) + len(plan.scratch))]
    return [(value.scalar, value.dtype) for value in found if isinstance(value, ScalarParam)]


def _scalars(plan: LaunchPlan) -> list[tuple[int, DType, bool]]:
    """The scalars that the kernel uses, by number, with their dtypes, and whether they lie in scratch."""
    params = plan.launch.params if plan.launch else ()
    passed = {p.scalar: p.dtype for p in params if isinstance(p, ScalarParam)}
    return [(n, d, True) for n, d in _placed(plan)] + [(n, d, False) for n, d in passed.items()]
