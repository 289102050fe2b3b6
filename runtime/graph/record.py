"""Recording: calls are checked, given outputs and kept as events; nothing runs."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernel_dsl.compiled import OutputSpec
from kernel_dsl.variables import bound, evaluate, variables

from ..arrays import ArrayView, Interop, frameworks, overlap, view
from ..calls import Launch, PendingCall, allocate
from ..device import Device, cuda_device, device_index
from ..errors import ArgumentTypeError, ArgumentValueError
from .nodes import GraphError, Repeat
from .steps import STEP, VIRTUAL, Event, copy_event, steps


@dataclass(eq=False)
class Result:
    """An output of a call: the user's object, and the memory under it."""

    array: Any
    view: ArrayView
    given: bool
    frozen: bool = False  # of a framework whose arrays never change once made


@dataclass
class Recording:
    """All that was recorded."""

    events: list[Event] = field(default_factory=list[Event])
    results: list[Result] = field(default_factory=list[Result])
    repeats: list[Repeat] = field(default_factory=list[Repeat])
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    device: Device | None = None
    keep: list[Any] = field(default_factory=list[Any])
    reserved: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


class GraphRecorder:
    """Takes the calls of a `with Graph()` block."""

    def __init__(self) -> None:
        self.made = Recording()
        self._known: dict[int, ArrayView] = {}
        self._next = VIRTUAL
        self._repeat: Repeat | None = None

    # --- calls ------------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Make a call with every variable at its largest, and note which ones it asked for."""
        found = variables((tuple(args), kwargs))
        self._know(found)
        everything = _Largest(self)
        repeat = Repeat(function, tuple(args), kwargs, frozenset())
        outer, self._repeat = self._repeat, repeat
        try:
            with bound(everything, self._know) as used:
                plain_args = evaluate(tuple(args), everything)
                plain_kwargs = evaluate(kwargs, everything)
                result = function(*plain_args, **plain_kwargs)
        finally:
            self._repeat = outer
        names = used | found.keys()
        if names:
            repeat.names = frozenset(names)
            repeat.bindings = {name: self.made.variables[name] for name in names}
            repeat.last = {name: everything[name] for name in names}
            self.made.repeats.append(repeat)
        return result

    def _know(self, found: Mapping[str, Any]) -> None:
        for name, variable in found.items():
            known = self.made.variables.setdefault(name, variable)
            if (known.lo, known.hi) != (variable.lo, variable.hi):
                raise ArgumentValueError(f"two variables of one graph: {known!r} and {variable!r}")

    # --- launches ---------------------------------------------------------------------------------

    def launch(
        self,
        pending: PendingCall,
        outputs: Sequence[OutputSpec],
        launch: Launch,
        out: Sequence[Any] | None,
    ) -> list[Any]:
        """Check the call, allocate its outputs, and keep its steps."""
        self._settle_device(pending.job.device, pending.job.name)
        count = len(pending.views)
        pending.views[:] = [self._known.get(id(v.owner), v) for v in pending.views]
        allocate(pending, outputs, out)
        results = self._note_results(pending, count)
        self.made.keep += [v.owner for v in pending.views] + [pending.results]
        if self._repeat is not None:
            self._repeat.outputs.append(pending.views[count:])
        self.made.events += steps(pending, outputs, launch, count, self._reserve, self._repeat)
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
        to, of = (view(self.known(a)) for a in (target, source))
        if to.shape != of.shape or to.dtype != of.dtype:
            raise ArgumentValueError(
                f"a copy needs two arrays alike, and got {of.dtype}{list(of.shape)} for {to.dtype}{list(to.shape)}"
            )
        if to.readonly:
            raise ArgumentValueError("the target of a copy is read-only")
        if to.broadcast:
            raise ArgumentValueError("the target of a copy is broadcast: several of its elements share memory")
        if overlap(to, of) and not to.same_memory(of):  # a GPU copies in no fixed order
            raise ArgumentValueError("the two arrays of a copy share some of their memory; copy by way of a third")
        index = device_index([to, of])
        if index is not None and self.made.device is None:
            self.made.device = cuda_device(index)
        self.made.keep += [target, source]
        self.made.results.append(Result(target, to, True))
        self.made.events.append(copy_event(to, of))

    def known(self, array: Any) -> Any:
        """The memory of a call's result where its object does not tell; else the array itself."""
        return self._known.get(id(array), array)

    def release(self) -> None:
        """Forget what was recorded, and let go of the arrays it kept alive."""
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

        `inputs`: one view an input slot. `outs`: views for the result slots that were given one.
        """
        if program.device is not None:
            self._settle_device(program.device, "a nested graph")
        self._know(variables(dict(values)))
        moved, owners, arrays = self._place_slots(program, inputs, outs)
        repeats: dict[int, Repeat] = {}
        for old in program.repeats:
            bindings = {n: evaluate_symbol(b, values) for n, b in old.bindings.items()}
            new = dataclasses.replace(old, nodes=[], bindings=bindings, last=None)
            self.made.repeats.append(new)
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
        """Where each slot of a nested graph lies in this recording, whose memory the moved ones lie in, and its
        results' arrays.
        """
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
        """New memory like a recorded result's, and the user's array of it."""
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


def evaluate_symbol(binding: Any, values: Mapping[str, Any]) -> Any:
    """What an inner graph's variable is to the outer one: an int, or a symbol."""
    name = getattr(binding, "name", None)
    if name is None:
        return binding
    if name not in values:
        raise ArgumentTypeError(f"the nested graph needs a value for its variable {name!r}")
    value = values[name]
    return binding.check(value) if isinstance(value, int) else value


class _Largest(Mapping[str, int]):
    """Every variable at its largest: what arrays must have room for."""

    def __init__(self, recorder: GraphRecorder) -> None:
        self._variables = recorder.made.variables

    def __getitem__(self, name: str) -> int:
        return self._variables[name].hi

    def __iter__(self) -> Any:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)
