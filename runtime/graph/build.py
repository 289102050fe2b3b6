"""Turns recorded calls into a program: slots of memory, nodes, edges, and a plan of the memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernel_dsl.variables import variables

from ..arrays.array_view import ArrayView
from ..devices.device import Device
from ..errors import ArgumentTypeError
from .liveness import without_dead
from .nodes import GraphError, LaunchWork, Made, MemorySlot, Node, NodeOperand, Repeat
from .plan import Dependencies, MemoryBlock, ancestors, needed, place
from .record import Recording, Result
from .steps import VIRTUAL, Event

_VECTOR = 16  # bytes of the widest loads that kernels use for aligned addresses


@dataclass
class Output:
    """An array that replays return: the user's object, its memory, and its slot."""

    array: Any
    view: ArrayView
    slot: MemorySlot
    frozen: bool = False  # each replay makes a new array for it
    made: Made | None = None  # the call that made it, if its results may have other shapes

    @property
    def whole(self) -> bool:
        """Whether it covers its slot, so that another array can replace it."""
        return self.slot.kind == "result" and self.slot.home is not None and (self.slot.home.same_memory(self.view))


@dataclass
class GraphProgram:
    """A graph ready to be made executable."""

    device: Device | None
    slots: list[MemorySlot]
    nodes: list[Node]
    inputs: list[MemorySlot]
    outputs: list[Output]
    repeats: list[Repeat]
    variables: dict[str, Any]
    memory_bytes: int = 0  # planned bytes of intermediates and staging
    written: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    optional: frozenset[str] = frozenset()  # variables of calls that were left out

    def check_names(self, values: Mapping[str, Any]) -> None:
        """Raise ArgumentTypeError for values of other variables than the graph's, and for missing ones."""
        unknown = values.keys() - self.variables.keys()
        missing = self.variables.keys() - self.optional - values.keys()
        if unknown or missing:
            raise ArgumentTypeError(
                f"this graph has the variables {sorted(self.variables)}"
                + (f", and no {sorted(unknown)}" if unknown else "")
                + (f"; give {sorted(missing)} too" if missing else "")
            )


def build(
    owner: Callable[[], Any], made: Recording, chosen: Sequence[ArrayView] | None, arrays: Sequence[Any] = ()
) -> GraphProgram:
    """Work out slots, edges and memory.

    `chosen`: views of the outputs that the user named (`arrays`: the objects). Steps that they do not need are left
    out. By default the outputs are the results that no later node reads.
    """
    recorded, made = made, made if chosen is None else without_dead(made, chosen)
    slots = _Slots(made)
    nodes: list[Node] = []
    tracker = Dependencies()
    waits: list[set[int]] = []
    for event in made.events:
        nodes.append(_node(owner, len(nodes), event, slots))
        waits.append(_enter(tracker, nodes[-1]))
    frozen = {id(result.array) for result in made.results if result.frozen}
    outputs = (
        _default_outputs(made, slots, nodes)
        if chosen is None
        else [slots.output(v, a, id(a) in frozen) for v, a in zip(chosen, arrays, strict=True)]
    )
    _find_makers(outputs, made)
    wanted = {o.slot for o in outputs}
    for slot in slots.listed:
        if slot.kind == "result" and not slot.given and slot not in wanted:
            slot.kind, slot.home, slot.array = "scratch", None, None
    early = [isinstance(n.work, LaunchWork) and n.work.attributes.programmatic_dependent_launch for n in nodes]
    above = ancestors(waits, early)
    for node, deps in zip(nodes, needed(waits, above), strict=True):
        node.dependencies = deps
    used = [slot for slot in slots.listed if slot.users or slot in wanted]
    inputs = [slot for slot in used if slot.kind == "input"]
    program = GraphProgram(made.device, used, nodes, inputs, outputs, made.repeats, dict(made.variables))
    program.optional = _names(recorded) - _names(made)
    _plan_memory(program, above)
    return program


def _find_makers(outputs: Sequence[Output], made: Recording) -> None:
    """Give each output that is a whole result of a call with variables a reference to that call."""
    makers = {m.view.address + m.shift: m for repeat in made.repeats for results in repeat.outputs for m in results}
    for output in outputs:
        maker = makers.get(output.view.address)
        if maker is not None and maker.view.shape == output.view.shape:
            output.made = maker


def _names(made: Recording) -> frozenset[str]:
    """The names of the variables that calls depend on."""
    return frozenset(name for repeat in made.repeats for name in variables(repeat.bindings))


def _node(owner: Callable[[], Any], index: int, event: Event, slots: _Slots) -> Node:
    operands: list[NodeOperand] = []
    shifts = event.shifts or [0] * len(event.views)
    for there, read, written, shift in zip(event.views, event.read, event.written, shifts, strict=True):
        slot = slots.of(there)
        slot.users.add(index)
        operands.append(NodeOperand(slot, there, read, written, shift))
    for operand, alignment in zip(operands, event.alignments, strict=False):
        operand.slot.alignment = max(operand.slot.alignment, alignment)
    node = Node(owner, index, event.work, operands, effects=event.effects)
    if event.repeat is not None:
        event.repeat.nodes.append(node)
    return node


def _enter(tracker: Dependencies, node: Node) -> set[int]:
    reads = [o.view.span() for o in node.operands if o.read]
    writes = [o.view.span() for o in node.operands if o.written]
    return tracker.access(node.index, reads, writes)


def _default_outputs(made: Recording, slots: _Slots, nodes: Sequence[Node]) -> list[Output]:
    """The results that no node reads after they are written, each once, in order."""
    last_write: dict[MemorySlot, int] = {}
    last_read: dict[MemorySlot, int] = {}
    for node in nodes:
        for operand in node.operands:
            if operand.written:
                last_write[operand.slot] = node.index
            if operand.read:
                last_read[operand.slot] = node.index
    found: list[Output] = []
    for result in made.results:
        output = slots.output(result.view, result.array, result.frozen)
        if last_read.get(output.slot, -1) > last_write.get(output.slot, -1):
            continue
        if not any(o.slot is output.slot and o.view.same_memory(output.view) for o in found):
            found.append(output)
    return found


def _plan_memory(program: GraphProgram, above: Sequence[int]) -> None:
    """Place scratch, and copies of arrays that the device can't access, in one allocation."""
    reach = "cuda" if program.device is not None and program.device.kind == "cuda" else "cpu"
    blocks: list[MemoryBlock] = []
    for slot in program.slots:
        staged = slot.home is not None and slot.home.device[0] != reach
        if slot.nbytes and (slot.kind == "scratch" or staged):
            # Kernels were compiled for the alignment during recording.
            slot.shift = slot.low % max(slot.alignment, _VECTOR)
            size = slot.nbytes + slot.shift
            slot.block = MemoryBlock(size, frozenset(slot.users), alone=staged)
            blocks.append(slot.block)
        elif slot.home is not None:
            slot.base, slot.current = slot.low, slot.home
    program.memory_bytes = place(blocks, above)
    spans = [(s.low, s.low + s.nbytes) for s in program.slots if s.kind in ("result", "fixed") and s.home]
    program.written = sorted(span for span in spans if span[0] < span[1])


# --- slots ----------------------------------------------------------------------------------------


class _Slots:
    """The slots of a recording. They are found by the arrays in them."""

    def __init__(self, made: Recording) -> None:
        self.listed: list[MemorySlot] = []
        self._inputs: dict[Any, MemorySlot] = {}
        self._empty: dict[Any, MemorySlot] = {}
        self._results = {id(result.view.owner): result for result in made.results}
        own = [self._own(result) for result in made.results if not result.given and result.view.size]
        own += [self._add(MemorySlot("scratch", low, size)) for low, size in made.reserved if size]
        self._own_ranges = _Ranges(own)
        self._written = _Ranges(self._group(made))

    def _add(self, slot: MemorySlot) -> MemorySlot:
        self.listed.append(slot)
        return slot

    def _own(self, result: Result) -> MemorySlot:
        low, high = result.view.span()
        return self._add(MemorySlot("result", low, high - low, result.view, result.array))

    def _group(self, made: Recording) -> list[MemorySlot]:
        """Give each group of overlapping arrays of the user, of which nodes write one, a slot."""
        touched = [
            (*there.span(), there, written)
            for event in made.events
            for there, written in zip(event.views, event.written, strict=True)
            if there.size and self._own_ranges.find(there) is None
        ]
        touched.sort(key=lambda t: (t[0], t[1]))
        groups: list[list[tuple[int, int, ArrayView, bool]]] = []
        end = -1
        for entry in touched:
            if entry[0] >= end:
                groups.append([])
            groups[-1].append(entry)
            end = max(end, entry[1]) if len(groups[-1]) > 1 else entry[1]
        given = {id(r.view.owner): r for r in made.results if r.given}
        return [_written_slot(self, g, given) for g in groups if any(w for *_, w in g)]

    def of(self, there: ArrayView) -> MemorySlot:
        """The slot of a node's array. An input has its own slot if no node writes to it."""
        if not there.size:
            # Arrays without elements may have equal addresses, so their objects distinguish them.
            key = (id(there.owner), there.shape, there.strides, there.dtype)
            if key not in self._empty:
                self._empty[key] = self._add(self._without_bytes(there))
            return self._empty[key]
        found = self._own_ranges.find(there) or self._written.find(there)
        if found is not None:
            return found
        key = (there.address, there.shape, there.strides, there.dtype)
        if key not in self._inputs:
            low, high = there.span()
            self._inputs[key] = self._add(MemorySlot("input", low, high - low, there, there.owner))
        return self._inputs[key]

    def _without_bytes(self, there: ArrayView) -> MemorySlot:
        result = self._results.get(id(there.owner))
        if result is not None:
            return MemorySlot("result", there.address, 0, there, result.array, given=result.given)
        if there.address >= VIRTUAL:  # an array between two nodes of a nested graph
            return MemorySlot("scratch", there.address, 0)
        return MemorySlot("input", there.address, 0, there, there.owner)

    def output(self, there: ArrayView, array: Any, frozen: bool = False) -> Output:
        """An output of the graph. Raises GraphError for an array that no node writes."""
        slot = self.of(there)
        if slot.kind == "input":
            raise GraphError("an output must be an array that a recorded call wrote; one of g.outputs is only read")
        if slot.kind == "scratch":
            raise GraphError("an output is in memory that exists only during replays")
        return Output(array, there, slot, frozen)

    def add(self, slot: MemorySlot) -> MemorySlot:
        """Add a slot that another object made."""
        return self._add(slot)


def _written_slot(
    slots: _Slots, group: Sequence[tuple[int, int, ArrayView, bool]], given: dict[int, Result]
) -> MemorySlot:
    low, high = min(g[0] for g in group), max(g[1] for g in group)
    written = [g[2] for g in group if g[3]]
    first = written[0]
    alone = all(v.same_memory(first) for v in written) and first.span() == (low, high)
    result = given.get(id(first.owner))
    if alone and result is not None:
        return slots.add(MemorySlot("result", low, high - low, first, result.array, given=True))
    return slots.add(MemorySlot("fixed", low, high - low, _bytes_of(first, low, high), first.owner))


def _bytes_of(first: ArrayView, low: int, high: int) -> ArrayView:
    """The user's array, or the bytes that several arrays span together."""
    if first.span() == (low, high):
        return first
    from kernel_dsl.dtypes import uint8

    return ArrayView(low, (high - low,), (1,), uint8, first.device, first.framework, False, first.owner)


class _Ranges:
    """Slots that do not overlap, found by address."""

    def __init__(self, slots: Sequence[MemorySlot]) -> None:
        self._slots = sorted(slots, key=lambda s: s.low)
        self._lows = [s.low for s in self._slots]

    def find(self, there: ArrayView) -> MemorySlot | None:
        """The slot that holds all of `there`."""
        low, high = there.span()
        index = bisect_right(self._lows, low) - 1
        if index < 0:
            return None
        slot = self._slots[index]
        return slot if high <= slot.low + slot.nbytes else None
