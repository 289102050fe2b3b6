"""The arrays of a replay: it checks them, uses them in place of the recorded ones, and restores these."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from operator import add, contains
from typing import Any

import numpy as np

from kernel_dsl.tree import flatten, unflatten

from ..arrays.array_view import CPU, ArrayView, beside, frameworks, narrowed, view
from ..devices import driver, memory
from ..devices.devices import cuda_device
from ..devices.failures import describe_array
from ..errors import ArgumentTypeError, ArgumentValueError
from ..plan.signature import SlowPathError, likeness, scan
from .build import GraphProgram, Output
from .nodes import GraphError, MemorySlot
from .plan import ALIGNMENT

_CLEAR = 1024  # the most addresses to keep for one input


class Places:
    """The places of a program's slots, which may differ between replays.

    `moved`: slots whose array may not be the recorded one. `frozen`: whether each replay needs new memory for outputs.
    `compares`: whether `place_alike` may take inputs.
    """

    def __init__(self, program: GraphProgram) -> None:
        self._program = program
        self.moved: Mapping[MemorySlot, Any] = {}
        self.frozen: bool = any(output.frozen for output in program.outputs)
        self._starts = [low for low, _ in program.written]
        self._ends = [high for _, high in program.written]
        self._key = self._signature()
        self.compares: bool = self._key is not None
        self._like = None if self._key is None else likeness([slot.array for slot in program.inputs])
        self._odd = [slot.home.address & 15 for slot in program.inputs if slot.home]
        # The distance from an array's first element to its lowest address.
        self._sizes = [slot.nbytes for slot in program.inputs]
        # For each input, the allowed addresses found so far: aligned as recorded, in memory that the replay does not
        # write.
        self._clear: list[set[int]] = [set() for _ in program.inputs]
        self._inputs_moved: Mapping[MemorySlot, Any] = dict.fromkeys(program.inputs)
        self._alive: Sequence[Any] = ()  # arrays that the GPU may still read
        self._deltas = [slot.low - slot.home.address if slot.home else 0 for slot in program.inputs]
        self._outs_moved = False
        self._result: Any = None  # the result, if it is the same each time, for outputs of these shapes:
        self._made = [output.made for output in program.outputs if output.made is not None]
        self._shapes: list[tuple[int, ...]] = []

    def place(self, inputs: Sequence[Any], out: Any, stream: int) -> list[MemorySlot]:
        """Replace recorded arrays by a replay's; the others get their recorded ones again. Returns the moved slots."""
        moved = self.place_alike(inputs, stream) if inputs and out is None else None
        return self._place_all(inputs, out, stream) if moved is None else moved

    def place_alike(self, inputs: Sequence[Any], stream: int) -> list[MemorySlot] | None:
        """The fast path of `place`, for a replay's inputs alone. None if they need the full check: nothing has changed."""
        if self._outs_moved or self._key is None:
            return None
        found = self._addresses(inputs)
        return None if found is None else self._place_inputs(inputs, *found, stream)

    def _addresses(self, inputs: Sequence[Any]) -> tuple[list[int], bool] | None:
        """Addresses of inputs like the recorded ones, and whether all are `_clear`; None if the full check is needed."""
        if self._like is not None and len(inputs) == len(self._sizes) and self._like(*inputs):
            addresses = [tensor.data_ptr() for tensor in inputs]
            if self._are_clear(addresses):
                return addresses, True
            if [address & 15 for address in addresses] == self._odd:
                return addresses, False
        addresses = []
        try:
            return (addresses, self._are_clear(addresses)) if scan(inputs, addresses) == self._key else None
        except SlowPathError:
            return None

    def _are_clear(self, addresses: Sequence[int]) -> bool:
        return all(map(contains, self._clear, addresses))

    def _signature(self) -> list[Any] | None:
        """The signature of the recorded inputs (with alignment up to 16 bytes).

        None if the full check is always needed.
        """
        homes = [slot.home for slot in self._program.inputs]
        if self.frozen or any(s.block is not None or s.alignment > 16 for s in self._program.inputs):
            return None
        # The imaginary part of a lazy conjugate is lazily negated: it has gaps, or one element.
        if any(h is None or (h.framework == "torch" and (h.size == 1 or not h.contiguous)) for h in homes):
            return None
        try:
            return scan([slot.array for slot in self._program.inputs], [])
        except SlowPathError:
            return None

    def _place_inputs(self, inputs: Sequence[Any], addresses: list[int], clear: bool, stream: int) -> list[MemorySlot]:
        """The fast path for inputs that are like the recorded ones and that nodes can read directly."""
        self.moved, self._alive = self._inputs_moved, inputs
        if not clear:
            addresses = [
                address if address in known else self._cleared(i, address, inputs[i], stream)
                for i, (address, known) in enumerate(zip(addresses, self._clear, strict=True))
            ]
        changed: list[MemorySlot] = []
        for slot, low in zip(self._program.inputs, map(add, addresses, self._deltas), strict=True):
            if slot.base != low:
                slot.base = low
                changed.append(slot)
        return changed

    def _cleared(self, i: int, address: int, array: Any, stream: int) -> int:
        """The address of input `i`, or of its copy if it shares memory with arrays that the replay writes."""
        low = address + self._deltas[i]
        index = bisect_left(self._starts, low + self._sizes[i]) - 1
        if index >= 0 and self._ends[index] > low:
            twin = _twin(view(array, stream), stream)
            self._alive = (*self._alive, twin)
            return twin.address
        known = self._clear[i]
        if len(known) >= _CLEAR:
            known.clear()
        known.add(address)
        return address

    def _place_all(self, inputs: Sequence[Any], out: Any, stream: int) -> list[MemorySlot]:
        wanted = dict(zip(self._program.inputs, self.look_all(inputs, stream), strict=bool(inputs)))
        outs: dict[MemorySlot, ArrayView] = {}
        if out is not None:
            outs = self.outs(out, stream)
        elif self.frozen:
            outs = self._fresh(stream)
        wanted.update(outs)
        self._outs_moved = bool(outs)
        if outs:
            self._check_apart(wanted, outs)
        for slot, there in wanted.items():
            if slot.kind == "input" and slot.block is None and self._is_written(there, outs):
                wanted[slot] = _twin(there, stream)
        changed: list[MemorySlot] = []
        before = self.moved
        self.moved = {**before, **wanted}  # right also after an interrupt
        for slot in before.keys() - wanted.keys():
            if slot.home is not None and self._move(slot, slot.home):
                changed.append(slot)
        for slot, there in wanted.items():
            if self._move(slot, there):
                changed.append(slot)
        self.moved = wanted
        return changed

    def look_all(self, inputs: Sequence[Any], stream: int) -> list[ArrayView]:
        """Views of a replay's inputs, checked against the recorded ones; an empty list without inputs."""
        slots = self._program.inputs
        if inputs and len(inputs) != len(slots):
            raise ArgumentTypeError(f"this graph has {len(slots)} inputs, and got {len(inputs)} arrays")
        return [self._look(slot, array, stream) for slot, array in zip(slots, inputs, strict=False)]

    def _look(self, slot: MemorySlot, array: Any, stream: int) -> ArrayView:
        there = view(array, stream)
        home = slot.home
        assert home is not None  # every input is a user's array
        check_like(there, home, "an input of the graph", False)
        if slot.block is None:
            _check_aligned(there, slot, "an input of the graph")
        return there

    def outs(self, out: Any, stream: int) -> dict[MemorySlot, ArrayView]:
        """Views of the arrays of out=, by the slot that each replaces."""
        given, _ = flatten(out)
        outputs = self._program.outputs
        if len(given) != len(outputs):
            raise ArgumentTypeError(f"out= holds {len(given)} arrays, and the graph has {len(outputs)} outputs")
        found: dict[MemorySlot, ArrayView] = {}
        for output, array in zip(outputs, given, strict=True):
            if not output.whole:
                raise GraphError("out= cannot replace an output that shares its memory with other arrays of the graph")
            there = view(array, stream)
            check_like(there, output.view, "an array of out=", True)
            if output.slot.block is None:
                _check_aligned(there, output.slot, "an array of out=")
            found[output.slot] = there
        return found

    def _fresh(self, stream: int) -> dict[MemorySlot, ArrayView]:
        """New memory for outputs of a framework whose arrays never change (JAX)."""
        found: dict[MemorySlot, ArrayView] = {}
        for output in self._program.outputs:
            home = output.slot.home
            if output.frozen and home is not None:
                interop = frameworks("jax")
                made = view(interop.empty(home.shape, home.dtype, home.device, stream), stream)
                made.readonly = False
                found[output.slot] = made
        return found

    def _check_apart(self, wanted: Mapping[MemorySlot, ArrayView], outs: Mapping[MemorySlot, ArrayView]) -> None:
        """Check that arrays of `out=` overlap no other array of the replay, except inputs, which are copied first."""
        spans = [(*there.span(), slot) for slot, there in wanted.items() if slot.kind != "input"]
        spans += [(*s.home.span(), s) for s in self._program.slots if s.home is not None and s not in wanted]
        end, last = -1, None
        for low, high, slot in sorted(spans, key=lambda entry: entry[:2]):
            if low < min(end, high) and (slot in outs or last in outs):
                raise ArgumentValueError(
                    "an array of out= shares memory with another array of the replay; pass one in other memory"
                )
            if high > end:
                end, last = high, slot

    def _is_written(self, there: ArrayView, outs: Mapping[MemorySlot, ArrayView]) -> bool:
        """Whether an input lies in memory that this replay writes, such as an earlier output."""
        low, high = there.span()
        index = bisect_left(self._starts, high) - 1
        if index >= 0 and self._ends[index] > low:
            return True
        return any(_meet(given, low, high) for given in outs.values())

    def _move(self, slot: MemorySlot, there: ArrayView) -> bool:
        """Move `slot` to `there`. Returns whether nodes need new addresses; staged arrays are copied instead."""
        slot.current = there
        if slot.block is not None:
            return False
        base = there.span()[0]
        changed = base != slot.base
        slot.base = base
        return changed

    # --- results ----------------------------------------------------------------------------------

    def results(self, chosen: Any, out: Any, stream: int) -> Any:
        """The return value of a replay."""
        if out is not None:
            return out
        shapes = [made.shape for made in self._made]
        if self._result is not None and shapes == self._shapes:
            return self._result
        arrays = [self._array(output, stream) for output in self._program.outputs]
        arrays = [
            a if o.made is None else narrowed(a, o.made.shape)
            for o, a in zip(self._program.outputs, arrays, strict=True)
        ]
        if chosen is not None:
            return unflatten(flatten(chosen)[1], arrays)
        result = arrays[0] if len(arrays) == 1 else tuple(arrays)
        self._result, self._shapes = None if self.frozen else result, shapes
        return result

    def _array(self, output: Output, stream: int) -> Any:
        slot = output.slot
        there = slot.current
        if not output.frozen or there is None:
            return output.array
        home = beside(frameworks("jax"), [view(output.array)] if there.device == CPU else [], "graph")
        return home.finish(there.owner, there, stream)


def _twin(there: ArrayView, stream: int) -> ArrayView:
    """A copy with the same strides, made in the order of `stream`."""
    low, high = there.span()
    nbytes = high - low + ALIGNMENT
    if there.device == CPU:
        owner: Any = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = owner.ctypes.data
        start += -start % ALIGNMENT
    else:
        owner = cuda_device(there.device[1]).allocate(nbytes, stream)
        start = owner.address
    address = start + low % ALIGNMENT + there.address - low
    twin = dataclasses.replace(there, address=address, owner=owner, readonly=False)
    with nullcontext() if there.device == CPU else driver.current(cuda_device(there.device[1]).context):
        memory.copy(twin, there, stream)
    return twin


def _meet(there: ArrayView, low: int, high: int) -> bool:
    start, end = there.span()
    return start < high and low < end


def _check_aligned(there: ArrayView, slot: MemorySlot, what: str) -> None:
    if slot.nbytes and (there.span()[0] - slot.low) % slot.alignment:
        raise ArgumentValueError(
            f"{what} lies at {there.address:#x}, which is not {slot.alignment}-byte aligned as the recorded one was"
        )


def check_like(there: ArrayView, home: ArrayView, what: str, written: bool) -> None:
    """Raise an error if an array can't replace a recorded one."""
    same = there.shape == home.shape and there.dtype == home.dtype
    if not same or there.device != home.device:
        raise ArgumentValueError(
            f"{what} must be {describe_array(home)} as recorded, and is {describe_array(there)}; record a graph for it"
        )
    if there.strides != home.strides and not (there.contiguous and home.contiguous):
        raise ArgumentValueError(f"{what} must have strides {home.strides} as recorded, and has {there.strides}")
    if written and there.readonly:
        raise ArgumentValueError(f"{what} is read-only, and a call writes it; pass a writable array")
