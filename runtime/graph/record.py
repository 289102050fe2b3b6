"""Recording: calls are checked, given outputs and kept as events; nothing runs."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from kernel_dsl.packed import packed_dtype
from kernel_dsl.variables import Symbol, Variable, Within, bound, evaluate, substituted, variables

from ..arrays.array_view import ArrayView, Interop, frameworks, is_array, overlap, view
from ..devices.device import Device
from ..devices.devices import cuda_device, device_index
from ..errors import ArgumentTypeError, ArgumentValueError
from ..plan.calls import allocate
from ..plan.pending import PendingCall
from .nodes import GraphError, Held, Made, Repeat
from .steps import STEP, VIRTUAL, Event, copy_event, steps


@dataclass(eq=False)
class Result:
    """An output of a call: the user's object, and the memory under it."""

    array: Any
    view: ArrayView
    given: bool
    frozen: bool = False  # of a framework whose arrays never change


@dataclass
class Recording:
    """The contents of a recording."""

    events: list[Event] = field(default_factory=list[Event])
    results: list[Result] = field(default_factory=list[Result])
    repeats: list[Repeat] = field(default_factory=list[Repeat])
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    device: Device | None = None
    keep: list[Any] = field(default_factory=list[Any])
    reserved: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


class GraphRecorder:
    """Takes the calls of a `with Graph()` block."""

    def __init__(self, nibbles: Any) -> None:
        self.made: Recording = Recording()
        self.nibbles = nibbles
        self._known: dict[int, ArrayView] = {}
        self._next = VIRTUAL
        self._repeat: Repeat | None = None
        self._made: dict[int, Made] = {}  # by address: outputs of repeated calls

    # --- calls ------------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Make a call with every variable at its largest, and note the variables that it asked for."""
        found = variables((tuple(args), kwargs))
        self._know(found)
        everything = _Largest(self)
        repeat = Repeat(function, tuple(args), kwargs, nibbles=self.nibbles)
        outer, self._repeat = self._repeat, repeat
        try:
            with bound(everything, self._know) as used:
                plain_args = evaluate(tuple(args), everything)
                plain_kwargs = evaluate(kwargs, everything)
                result = function(*plain_args, **plain_kwargs)
        finally:
            self._repeat = outer
        if self._made:
            repeat.args, repeat.kwargs = self._held((repeat.args, repeat.kwargs), repeat.reads)
        names = used | found.keys()
        if names or repeat.reads:
            repeat.bindings = {name: self.made.variables[name] for name in names}
            repeat.last = repeat.now(everything)
            self._enter(repeat)
        return result

    def _enter(self, repeat: Repeat) -> None:
        """Note a call to repeat, and its outputs."""
        self.made.repeats.append(repeat)
        for made in (each for outputs in repeat.outputs for each in outputs):
            if made.view.size:
                self._made[made.view.address + made.shift] = made
            if len(repeat.outputs) == 1:  # its memory can be freed, because the graph has its own
                made.array = None

    def _held(self, tree: Any, found: list[Held]) -> Any:
        """Arguments with a `Held` in place of each array that a repeated call made.

        These calls' outputs are added to `found`.
        """
        if type(tree) in (tuple, list):
            return type(tree)(self._held(item, found) for item in tree)
        if type(tree) is dict:
            return {key: self._held(item, found) for key, item in cast("dict[Any, Any]", tree).items()}
        if isinstance(tree, (Symbol, type)) or not is_array(tree):
            return tree
        try:
            there = view(self.known(tree))
        except (ArgumentTypeError, ArgumentValueError):  # for example a dtype, which looks like an array
            return tree
        made = self._made.get(there.address)
        if made is None or there.shape != made.view.shape or there.dtype != made.view.dtype:
            return tree
        found.append(Held(tree, made))
        return found[-1]

    def _know(self, found: Mapping[str, Any]) -> None:
        for name, variable in found.items():
            known = self.made.variables.setdefault(name, variable)
            if (known.lo, known.hi) != (variable.lo, variable.hi):
                raise ArgumentValueError(f"a graph has one Variable for each name: {known!r} and {variable!r} differ")

    # --- launches ---------------------------------------------------------------------------------

    def launch(self, pending: PendingCall) -> list[Any]:
        """Check the call, allocate its outputs, and keep its steps."""
        self._settle_device(pending.loaded.device, pending.plan.name)
        count = len(pending.views)
        pending.views[:] = [self._known.get(id(v.owner), v) for v in pending.views]
        allocate(pending)
        results = self._note_results(pending, count)
        self.made.keep += [v.owner for v in pending.views] + [pending.results]
        if self._repeat is not None:
            made = [Made(v, tuple(v.shape), array=v.owner) for v in pending.views[count:]]
            self._repeat.outputs.append(made)
        self.made.events += steps(pending, self._reserve, self._repeat)
        return results

    def _settle_device(self, device: Device, name: str) -> None:
        known = self.made.device
        if known is None:
            self.made.device = device
        elif (known.kind, known.index) != (device.kind, device.index):
            raise GraphError(
                f"{name!r} runs on {device.kind}:{device.index}, and this graph on "
                f"{known.kind}:{known.index}: a graph has one device"
            )

    def _note_results(self, pending: PendingCall, count: int) -> list[Any]:
        interop, finished = pending.interop, list[Any]()
        for array, there in zip(pending.results, pending.views[count:], strict=True):
            given = bool(pending.given)
            done = array if given else interop.finish(array, there, pending.handle)
            if done is not array:
                self._known[id(done)] = there
            self.made.results.append(Result(done, there, given, not given and interop.name == "jax"))
            finished.append(done)
        return finished

    def _reserve(self, nbytes: int) -> int:
        address = self._next
        self._next += -(-max(nbytes, 1) // STEP) * STEP + STEP
        self.made.reserved.append((address, nbytes))
        return address

    def copy(self, target: Any, source: Any) -> None:
        """Keep a copy of one array into another of the same shape and dtype."""
        kinds = [packed_dtype(a) for a in (target, source)]
        if all(kinds) and kinds[0] == kinds[1]:
            target, source = (self.nibbles.stored(a, kinds[0], a is target) for a in (target, source))
        to, of = (view(self.known(a)) for a in (target, source))
        if to.shape != of.shape or to.dtype != of.dtype:
            raise ArgumentValueError(
                f"a copy needs arrays of one dtype and shape, but got {of.dtype}{list(of.shape)} for {to.dtype}{list(to.shape)}"
            )
        if to.readonly:
            raise ArgumentValueError("the target of a copy is read-only; copy into a writable array")
        if to.overlaps_itself:
            raise ArgumentValueError(
                "several elements of the target of a copy share memory; copy into an array whose elements are apart"
            )
        if overlap(to, of) and not to.same_memory(of):  # a GPU copies in no fixed order
            raise ArgumentValueError("the two arrays of a copy share some of their memory; copy through a third array")
        index = device_index([to, of])
        if index is not None and self.made.device is None:
            self.made.device = cuda_device(index)
        self.made.keep += [target, source]
        self.made.results.append(Result(target, to, True))
        self.made.events.append(copy_event(to, of))

    def known(self, array: Any) -> Any:
        """The memory of a call's result if its object can't tell, else the array itself."""
        return self._known.get(id(array)) or self.nibbles.peek(array)

    def release(self) -> None:
        """Drop the recording and the arrays that it kept alive."""
        self.made = Recording(variables=self.made.variables, device=self.made.device)
        self._known.clear()

    # --- graphs in graphs -------------------------------------------------------------------------

    def nest(
        self,
        program: Any,
        inputs: Sequence[ArrayView],
        outs: Mapping[Any, ArrayView],
        values: Mapping[str, Any],
    ) -> dict[Any, Any]:
        """Add the nodes of another graph. Returns an array for each of its result slots.

        `inputs`: one view an input slot. `outs`: views for the result slots that have one.
        """
        if program.device is not None:
            self._settle_device(program.device, "a nested graph")
        self._know(variables(dict(values)))
        moved, owners, arrays = self._place_slots(program, inputs, outs)
        repeats: dict[int, Repeat] = {}
        twins: dict[int, Made] = {}  # the calls' outputs in this graph
        for old in program.repeats:
            bindings = {n: substituted(b, _given(values)) for n, b in old.bindings.items()}
            outputs = [[_moved(made, program, moved) for made in before] for before in old.outputs]
            for before, after in zip(old.outputs, outputs, strict=True):
                twins.update(zip(map(id, before), after, strict=True))
            reads = {id(held): Held(held.array, twins[id(held.made)]) for held in old.reads}
            args, kwargs = _replaced((old.args, old.kwargs), reads)
            new = Repeat(old.function, args, kwargs, [], outputs, list(reads.values()), bindings, nibbles=old.nibbles)
            self._enter(new)
            repeats.update((node.index, new) for node in old.nodes)
        for node in program.nodes:
            views, shifts = list[ArrayView](), list[int]()
            for operand in node.operands:
                # A slot that `set_params` gave is the user's own array.
                shift = moved.get(operand.slot, operand.slot.low) - operand.slot.low
                self.made.keep.append(operand.slot.array)
                owner = owners.get(operand.slot, operand.view.owner)
                views.append(dataclasses.replace(operand.view, address=operand.view.address + shift, owner=owner))
                shifts.append(operand.shift + shift)
            self.made.events.append(
                Event(
                    copy.copy(node.work),
                    views,
                    [o.read for o in node.operands],
                    [o.written for o in node.operands],
                    [o.slot.alignment for o in node.operands],
                    repeats.get(node.index),
                    shifts,
                    node.effects,
                )
            )
        return arrays

    def _place_slots(
        self, program: Any, inputs: Sequence[ArrayView], outs: Mapping[Any, ArrayView]
    ) -> tuple[dict[Any, int], dict[Any, Any], dict[Any, Any]]:
        """Each slot's place in this recording, the owners of moved slots' memory, and the results' arrays."""
        moved: dict[Any, int] = {}
        owners: dict[Any, Any] = {}
        arrays: dict[Any, Any] = {}
        given = dict(zip(program.inputs, inputs, strict=True))
        frozen = {output.slot for output in program.outputs if output.frozen}
        for slot in program.slots:
            home = given.get(slot) or outs.get(slot)
            if slot.kind == "scratch":
                moved[slot] = self._reserve(slot.nbytes)
                continue
            fresh = home is None and slot.kind == "result" and not slot.given
            if fresh:
                home, array = self._empty_like(slot.home, slot in frozen)
            else:
                home = home or slot.home
                array = home.owner
            self.made.keep.append((home.owner, array))
            moved[slot] = home.span()[0]
            if home is not slot.home:
                owners[slot] = home.owner
            if slot.kind == "result":
                arrays[slot] = array
                self.made.results.append(Result(array, home, not fresh, fresh and slot in frozen))
        return moved, owners, arrays

    def _empty_like(self, home: ArrayView, frozen: bool) -> tuple[ArrayView, Any]:
        """New memory like a recorded result's, and the user's array in it."""
        interop: Interop = frameworks("jax" if frozen else home.framework)
        index = home.device[1]
        handle = 0 if home.device[0] == "cpu" else interop.current_stream(index)
        array = interop.empty(home.shape, home.dtype, home.device, handle)
        made = view(array, handle)
        made.readonly = False
        done = interop.finish(array, made, handle)
        if done is not array:
            self._known[id(done)] = made
        return made, done


def _moved(made: Made, program: Any, moved: Mapping[Any, int]) -> Made:
    """An output of a nested graph's call, in the outer graph."""
    low = made.view.address + made.shift
    slot = next((s for s in program.slots if s.nbytes and s.low <= low < s.low + s.nbytes), None)
    shift = 0 if slot is None else moved.get(slot, slot.low) - slot.low
    return dataclasses.replace(made, shape=tuple(made.view.shape), shift=made.shift + shift)


def _replaced(tree: Any, twins: Mapping[int, Held]) -> Any:
    """Arguments with other stand-ins."""
    if isinstance(tree, Held):
        return twins[id(tree)]
    if type(tree) in (tuple, list):
        return type(tree)(_replaced(item, twins) for item in tree)
    if type(tree) is dict:
        return {key: _replaced(item, twins) for key, item in cast("dict[Any, Any]", tree).items()}
    return tree


def _given(values: Mapping[str, Any]) -> Callable[[Variable], Any]:
    """The values that the outer graph gives to an inner graph's variables: ints or symbols."""

    def outer(variable: Variable) -> Any:
        if variable.name not in values:
            raise ArgumentTypeError(f"the nested graph needs a value for its variable {variable.name!r}")
        value = values[variable.name]
        return Within(variable, value) if isinstance(value, Symbol) else variable.check(value)

    return outer


class _Largest(Mapping[str, int]):
    """Gives every variable its largest value, for which arrays must have room."""

    def __init__(self, recorder: GraphRecorder) -> None:
        self._variables = recorder.made.variables

    def __getitem__(self, name: str) -> int:
        return self._variables[name].hi

    def __iter__(self) -> Any:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)
