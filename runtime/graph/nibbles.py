"""The user's arrays of 4-bit elements in a graph, and the bytes that its nodes use in their place."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernel_dsl.dtypes import DType
from kernel_dsl.errors import PackedAccess
from kernel_dsl.packed import elements_shape, pack, packed_dtype, refuse_packed, unpack
from kernel_dsl.tree import flatten

from ..arrays.array_view import CPU, ArrayView, narrowed, overlap, view
from ..devices.failures import describe_array
from ..errors import ArgumentValueError
from .build import GraphProgram
from .nodes import MemorySlot, Node
from .placing import check_like


@dataclass(eq=False)
class Stored:
    """A user's array with one element in a byte, and the bytes with two.

    `written`: a call writes it. `current`: the array that replaces it in a replay.
    """

    elements: Any
    data: Any
    dtype: DType
    seen: ArrayView  # the view of the elements
    written: bool
    current: Any


@dataclass(eq=False)
class _Entry:
    """An array of bytes that calls received, its elements, and the array that it is a part of."""

    data: Any
    elements: Any
    whole: Stored


class NibbleArrays:
    """All arrays of 4-bit elements of one graph. Replays pack and unpack the user's arrays; others stay bytes."""

    def __init__(self) -> None:
        self._by_elements: dict[Any, _Entry] = {}
        self._by_data: dict[int, _Entry] = {}
        self._starts: dict[int, _Entry] = {}  # by address: bytes that calls made
        self._spans: list[tuple[int, int]] = []  # for all elements: their address, and a number in `_all`
        self._all: list[Stored] = []
        self._widest = 0
        self._before: list[Stored] = []
        self._after: list[Stored] = []
        self._kinds: dict[MemorySlot, DType] = {}

    # --- while recording --------------------------------------------------------------------------

    def stored(self, array: Any, dtype: DType, written: bool) -> Any:
        """The bytes of an array, or of a part of one. Raises `PackedAccess`, ArgumentValueError."""
        seen = view(array)
        if written and seen.readonly:
            raise ArgumentValueError(
                "an array of 4-bit elements is read-only, and a call writes it; pass a writable array"
            )
        entry = self._by_elements.get(_key(seen))
        if entry is None:
            entry = self._part(array, seen, written) or self._add(array, pack(array, dtype), dtype, seen)
        self._mark(entry.whole, seen, written)
        return entry.data

    def made(self, data: Any, dtype: DType, kernel: str) -> Any:
        """The elements of bytes that a call made, or made again with fewer bytes.

        They are uninitialised before a replay. Raises `BadCallArgument` if a replay's bytes lie elsewhere.
        """
        if data is None:
            return None
        if (seen := view(data)).device != CPU or seen.framework not in ("numpy", "torch"):
            refuse_packed(kernel, "a graph of JAX's arrays, or a GPU's")
        if id(data) not in self._by_data and view(data).address not in self._starts:
            elements = np.empty(elements_shape(tuple(data.shape)), dtype.numpy)
            entry = self._add(elements, np.asarray(data), dtype, view(elements))
            entry.whole.written = True
            self._by_data[id(data)] = dataclasses.replace(entry, data=data)
            if elements.size:
                self._starts[view(data).address] = entry
        return self.elements(data)

    def peek(self, array: Any) -> Any:
        """The bytes of an array that calls used; the array itself if it has none."""
        if packed_dtype(array) is None:
            return array
        entry = self._by_elements.get(_key(view(array)))
        return array if entry is None else entry.data

    def _add(self, elements: Any, data: Any, dtype: DType, seen: ArrayView) -> _Entry:
        whole = Stored(elements, data, dtype, seen, False, elements)
        low, high = seen.span()
        insort(self._spans, (low, len(self._all)))
        self._all.append(whole)
        self._widest = max(self._widest, high - low)
        return self._enter(_Entry(data, elements, whole), seen)

    def _enter(self, entry: _Entry, seen: ArrayView) -> _Entry:
        self._by_elements[_key(seen)] = self._by_data[id(entry.data)] = entry
        return entry

    def _near(self, seen: ArrayView) -> list[Stored]:
        """Known arrays that share memory with these elements."""
        low, high = seen.span()
        first, last = bisect_left(self._spans, (low - self._widest, 0)), bisect_left(self._spans, (high, 0))
        found = [self._all[number] for _, number in self._spans[first:last]]
        return [other for other in found if overlap(other.seen, seen)]

    def _part(self, array: Any, seen: ArrayView, written: bool) -> _Entry | None:
        """An array as a part of another one that calls write."""
        for whole in self._near(seen):
            data = _bytes_in(whole, seen) if written or whole.written else None
            if data is not None:
                return self._enter(_Entry(data, array, whole), seen)
        return None

    def _mark(self, whole: Stored, seen: ArrayView, written: bool) -> None:
        """Raise an error for an array that shares memory with a separate, written one."""
        if whole.written:
            return
        others = [other for other in self._near(whole.seen if written else seen) if other is not whole]
        if others and (written or any(other.written for other in others)):
            raise PackedAccess(
                what="two arrays of 4-bit elements that share memory, one of which a graph writes",
                hint="pass the larger one first, and parts that start at even elements and have even rows without steps; or "
                "pass bytes, uint8, and read them in the body by `ref.bitcast(kd.int4)`",
            )
        whole.written = whole.written or written

    # --- what the user sees -----------------------------------------------------------------------

    def elements(self, array: Any) -> Any:
        """The user's array for bytes, or for their first ones; any other array unchanged."""
        entry = self._by_data.get(id(array))
        if entry is not None:
            return entry.elements
        entry = self._starts.get(view(array).address) if self._starts and hasattr(array, "shape") else None
        return array if entry is None else narrowed(entry.elements, elements_shape(tuple(array.shape)))

    # --- replays ----------------------------------------------------------------------------------

    def settle(self, program: GraphProgram) -> None:
        """Find the arrays that replays pack and unpack, and forget those that only nodes use."""
        written = {o.slot for n in program.nodes for o in n.operands if o.written}
        users = {slot: entry for slot in program.slots if (entry := self._entry(slot.array)) is not None}
        before = [entry.whole for slot, entry in users.items() if slot.kind != "result" or slot.given]
        self._before = list(dict.fromkeys(before))
        self._after = list(dict.fromkeys(entry.whole for slot, entry in users.items() if slot in written))
        operands = [o for n in program.nodes for o in n.operands]
        self._kinds = {o.slot: entry.whole.dtype for o in operands if (entry := self._entry(o.view.owner)) is not None}
        if not program.repeats:
            arrays = [slot.array for slot in users] + [output.array for output in program.outputs]
            self._by_data = {id(a): entry for a in arrays if (entry := self._entry(a)) is not None}
            self._by_elements, self._starts, self._spans, self._all = {}, {}, [], []

    def _entry(self, array: Any) -> _Entry | None:
        return None if array is None else self._by_data.get(id(array))

    def __bool__(self) -> bool:
        return bool(self._by_data)

    def set_in(self, node: Node, position: int, array: Any) -> Stored | None:
        """The bytes for a node to which a user gives an array of 4-bit elements. Raises ArgumentValueError."""
        kind = packed_dtype(array)
        if position >= len(node.operands) or not (self or kind):
            return None
        operand = node.operands[position]
        entry = self._entry(operand.slot.array)
        recorded = self._kinds.get(operand.slot) if entry is None else entry.whole.dtype
        if kind != recorded:
            got = describe_array(view(array))
            raise ArgumentValueError(
                f"operand {position} of {node!r} is of {recorded or operand.view.dtype}, and got {got}"
            )
        if kind is None:
            return None
        seen = view(array)
        if operand.written and seen.readonly:
            raise ArgumentValueError(
                f"operand {position} of {node!r} is read-only, and a call writes it; pass a writable array"
            )
        return Stored(array, pack(array, kind), kind, seen, operand.written, array)

    def adopt(self, given: Iterable[Stored]) -> None:
        """Pack and unpack the arrays given to nodes from now on."""
        for each in given:
            self._before.append(each)
            if each.written:
                self._after.append(each)
            self._by_data[id(each.data)] = _Entry(each.data, each.elements, each)

    def replaced(self, program: GraphProgram, inputs: Sequence[Any], out: Any) -> tuple[dict[Stored, Any], Any, Any]:
        """The recorded arrays that a replay's arrays replace, and the replay's arguments for its nodes.

        Raises ArgumentValueError for an array unlike the recorded one.
        """
        changes: dict[Stored, Any] = {}
        if not self:
            return changes, inputs, out
        if len(inputs) == len(program.inputs):
            pairs = zip(program.inputs, inputs, strict=True)
            inputs = [self._stand_in(slot.array, x, changes, "an input of the graph", False) for slot, x in pairs]
        if out is not None and len(given := flatten(out)[0]) == len(program.outputs):
            pairs = zip(program.outputs, given, strict=True)
            out = [self._stand_in(output.array, x, changes, "an array of out=", True) for output, x in pairs]
            self._check_apart(changes)
        return changes, inputs, out

    def _stand_in(self, recorded: Any, array: Any, changes: dict[Stored, Any], what: str, written: bool) -> Any:
        entry = self._by_data.get(id(recorded))
        if entry is None:
            return array
        home, there = view(entry.elements), view(array)
        strides = home.strides if there.shape == home.shape else there.strides  # packed in any order
        check_like(dataclasses.replace(there, strides=strides), home, what, written)
        changes[entry.whole] = array
        return recorded

    def _check_apart(self, changes: Mapping[Stored, Any]) -> None:
        places = [view(changes.get(each, each.elements)) for each in self._after]
        if any(overlap(a, b) for i, a in enumerate(places) for b in places[:i]):
            raise ArgumentValueError(
                "an array of out= shares memory with another array of the replay; pass one in other memory"
            )

    def take(self, changes: Mapping[Stored, Any]) -> None:
        """Replace recorded arrays in the next replays. Arrays without a change get their recorded ones again."""
        for each in (*self._before, *self._after):
            each.current = changes.get(each, each.elements)

    def pack(self) -> None:
        """Pack the user's elements into the bytes that nodes read, or write in part."""
        for each in self._before:
            each.data[...] = pack(each.current, each.dtype)
        for each in self._after:
            if each.current is not each.elements:
                each.data[...] = pack(each.current, each.dtype)

    def unpack(self) -> None:
        """Unpack the bytes that nodes wrote into the user's arrays."""
        for each in self._after:
            each.current[...] = unpack(each.data, each.dtype)

    # --- graphs in graphs -------------------------------------------------------------------------

    def within(
        self, program: GraphProgram, outer: NibbleArrays, changes: Mapping[Stored, Any]
    ) -> dict[MemorySlot, ArrayView]:
        """The bytes of the user's arrays in another graph that contains this one. Raises `PackedAccess`."""
        written = {o.slot for n in program.nodes for o in n.operands if o.written}
        places: dict[MemorySlot, ArrayView] = {}
        own = set(program.slots)
        for slot in {o.slot for n in program.nodes for o in n.operands} - own:  # slots that `set_params` gave
            if (entry := self._entry(slot.array)) is not None:
                outer._by_data[id(entry.data)] = dataclasses.replace(entry, whole=dataclasses.replace(entry.whole))
        for slot in program.slots:
            entry = self._entry(slot.array)
            if (
                entry is None
                or slot.home is None
                or (slot.kind == "result" and not slot.given and entry.whole not in changes)
            ):
                continue
            whole = entry.whole
            there = view(outer.stored(changes.get(whole, whole.elements), whole.dtype, slot in written))
            if not there.contiguous:
                raise PackedAccess(
                    what="an array of 4-bit elements of a nested graph that is a part with gaps of an array of this graph",
                    hint="pass whole rows of it, or a copy",
                )
            address = there.address + slot.home.address - view(whole.data).address
            places[slot] = dataclasses.replace(slot.home, address=address, owner=there.owner)
        return places

    def made_within(self, outer: NibbleArrays, array: Any, recorded: Any) -> Any:
        """The user's array for a result of this graph in another graph that contains it."""
        entry = self._entry(recorded)
        if entry is None:
            return array
        return (
            entry.elements
            if array is recorded
            else outer.elements(array)
            if outer.knows(array)
            else outer.made(array, entry.whole.dtype, "a nested graph")
        )

    def knows(self, array: Any) -> bool:
        """Whether an array holds bytes that calls of this graph used."""
        return id(array) in self._by_data


def _key(seen: ArrayView) -> Any:
    # Arrays without elements may all lie at one address: it is the object that tells them apart.
    return seen.address, seen.shape, seen.strides, seen.dtype.name, None if seen.size else id(seen.owner)


def _bytes_in(whole: Stored, part: ArrayView) -> Any:
    """The bytes of a part of an array; None if they form no array of bytes."""
    there, (low, high) = whole.seen, part.span()
    first, last = there.span()
    strides = [s if n > 1 else 0 for s, n in zip(part.strides, part.shape, strict=True)]
    start = part.address - there.address
    inside = there.contiguous and first <= low and high <= last
    if (
        not inside
        or start % 2
        or not strides
        or strides[-1] != 1
        or part.shape[-1] % 2
        or any(s % 2 for s in strides[:-1])
    ):
        return None
    shape = (*part.shape[:-1], part.shape[-1] // 2)
    return np.ndarray(shape, np.uint8, whole.data, start // 2, (*(s // 2 for s in strides[:-1]), 1))
