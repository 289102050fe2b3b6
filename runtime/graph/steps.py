"""The steps of one launch: recording keeps them as events, and repetition runs them again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from kernel_dsl.compiled import OutputSpec
from kernel_dsl.launch_plan import CopyStep, FillStep, ScratchSpec, Step, ZeroStep
from kernel_dsl.packed import elements_shape, packed_dtype
from kernel_dsl.variables import bound, evaluate, variables

from ..arrays.array_view import ArrayView, narrowed, row_major
from ..devices import memory
from ..plan import recording
from ..plan.calls import check
from ..plan.pending import PendingCall
from .nodes import CopyWork, FillWork, GraphError, Held, LaunchWork, Made, Repeat, Work

# While recording, memory that only replays have gets addresses from here on, which no device uses.
VIRTUAL = 1 << 62
STEP = 1 << 8


@dataclass(eq=False)
class Event:
    """A future node, with its arrays as recorded. `shifts`: see `NodeOperand`, for nested graphs."""

    work: Work
    views: list[ArrayView]
    read: list[bool]
    written: list[bool]
    alignments: list[int]
    repeat: Repeat | None = None
    shifts: list[int] | None = None
    effects: bool = False  # it does more than write its arrays


def steps(pending: PendingCall, reserve: Callable[[int], int], repeat: Repeat | None) -> list[Event]:
    """The events of one launch. In the interpreter, a launch itself makes and fills its scratch."""
    loaded, plan, scalars = pending.loaded, pending.plan, list(pending.scalars)
    views = list(pending.views)
    before: list[Step] = list(plan.first)
    if loaded.device.kind == "cuda":
        before += plan.then
        views += [_scratch(spec, loaded.device.index, reserve) for spec in plan.scratch]
    events: list[Event] = []
    for step in before:
        if isinstance(step, CopyStep):
            if views[step.target].size and not views[step.target].same_memory(views[step.source]):
                events.append(copy_event(views[step.target], views[step.source]))
        elif isinstance(step, (FillStep, ZeroStep)) and views[step.array].size:
            target = views[step.array]
            value = memory.fill_value(step, scalars)
            events.append(Event(FillWork(value), [target], [False], [True], [target.dtype.itemsize]))
    if plan.launch is not None:
        events.append(_launch_event(LaunchWork(loaded, scalars, pending.fresh), views))
    for event in events:
        event.repeat = repeat
        event.effects = plan.effects and isinstance(event.work, LaunchWork)
    return events


def _scratch(spec: ScratchSpec, index: int, reserve: Callable[[int], int]) -> ArrayView:
    """Scratch of each replay: a view without memory."""
    address = reserve(math.prod(spec.shape) * spec.dtype.itemsize)
    return ArrayView(address, spec.shape, row_major(spec.shape), spec.dtype, ("cuda", index), "generic", owner=object())


def _launch_event(work: LaunchWork, views: list[ArrayView]) -> Event:
    plan = work.loaded.plan
    hidden = len(views) > len(plan.arrays)
    scratch = plan.scratch if hidden else ()
    return Event(
        work,
        views,
        [i < plan.inputs for i in range(len(plan.arrays))] + [not s.written for s in scratch],
        list(plan.written[: len(views)]),
        [each.alignment for each in (*plan.arrays, *scratch)],
    )


def copy_event(target: ArrayView, source: ArrayView) -> Event:
    item = target.dtype.itemsize
    return Event(CopyWork(), [target, source], [False, True], [True, False], [item, item])


class Repeater:
    """Takes the launches of a call that is made again with other values of its variables."""

    def __init__(self, repeat: Repeat) -> None:
        self._repeat = repeat
        self.nibbles: Any = repeat.nibbles
        self._launches = 0
        self._reserved = 0
        self.events: list[Event] = []

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """A call inside the call."""
        return function(*args, **kwargs)

    def launch(self, pending: PendingCall) -> list[Any]:
        """Take the launch's steps, with its outputs at their recorded addresses."""
        repeat, outputs = self._repeat, pending.plan.outputs
        if self._launches >= len(repeat.outputs):
            raise _other_steps(repeat)
        recorded = repeat.outputs[self._launches]
        self._launches += 1
        if len(recorded) != len(outputs):
            raise _other_steps(repeat)
        places = pending.given or [made.view for made in recorded]
        pending.views += [_shrink(there, spec) for there, spec in zip(places, outputs, strict=True)]
        check(pending)
        self.events += steps(pending, self._reserve, None)
        for made, spec in zip(recorded, outputs, strict=True):
            made.shape = tuple(spec.shape)
        return [made.array if made.array is None else narrow(made.array, made) for made in recorded]

    def _reserve(self, nbytes: int) -> int:
        # The size of hidden memory is planned, so the recorded operand keeps its place.
        self._reserved += 1
        return VIRTUAL + self._reserved * STEP


def _other_steps(repeat: Repeat) -> GraphError:
    function = repeat.function  # a kernel's method, or a function of the library
    own = getattr(getattr(function, "__self__", None), "name", None)
    name = own or getattr(function, "__name__", repr(function))
    return GraphError(
        f"{name} does other launches for these values of {sorted(variables(repeat.bindings))} than for those "
        "it was recorded with. Record a graph of its own for them"
    )


def _shrink(recorded: ArrayView, spec: OutputSpec) -> ArrayView:
    """The view of an output: the beginning of the recorded array, which has room for the largest."""
    if recorded.shape == spec.shape or not recorded.contiguous:  # otherwise the call's own checks raise errors
        return recorded
    nbytes = math.prod(spec.shape) * spec.dtype.itemsize
    if spec.dtype != recorded.dtype or nbytes > recorded.nbytes:
        raise GraphError(
            f"an output of {spec.dtype}{list(spec.shape)} does not fit the "
            f"{recorded.dtype}{list(recorded.shape)} that was recorded, at the variables' largest"
        )
    return dataclasses.replace(recorded, shape=spec.shape, strides=row_major(spec.shape))


def narrow(array: Any, made: Made) -> Any:
    """An array in the shape that its call gave it last. Raises an error if that is impossible."""
    shape = made.shape if packed_dtype(array) is None else elements_shape(made.shape)
    if tuple(array.shape) == shape:
        return array
    if made.view.framework == "jax":
        raise GraphError("a JAX array whose shape depends on a variable is read by no other call of its graph")
    return narrowed(array, shape)


def _as_they_are(tree: Any) -> Any:
    """Arguments with arrays in place of their stand-ins, in nested tuples, lists and dicts."""
    if isinstance(tree, Held):
        return narrow(tree.array, tree.made)
    if type(tree) in (tuple, list):
        return type(tree)(map(_as_they_are, tree))
    if type(tree) is dict:
        return {key: _as_they_are(item) for key, item in cast("dict[Any, Any]", tree).items()}
    return tree


def repeat_call(repeat: Repeat, now: tuple[dict[str, int], list[tuple[int, ...]]]) -> None:
    """Make a recorded call again if it now depends on other values, and give its nodes the new launches."""
    taker, values = Repeater(repeat), now[0]
    with recording.recording(taker), bound(values):
        args, kwargs = _as_they_are((evaluate(repeat.args, values), evaluate(repeat.kwargs, values)))
        repeat.function(*args, **kwargs)
    if len(taker.events) != len(repeat.nodes):
        raise _other_steps(repeat)
    for node, event in zip(repeat.nodes, taker.events, strict=True):
        same = type(node.work) is type(event.work) and len(node.operands) == len(event.views)
        if not same:
            raise _other_steps(repeat)
        node.work = event.work
        for operand, there in zip(node.operands, event.views, strict=True):
            if operand.slot.low >= VIRTUAL and there.address >= VIRTUAL:
                continue
            operand.view = dataclasses.replace(there, address=there.address + operand.shift)
    repeat.last = now
