"""The steps of one launch: kept as events when it is recorded, taken again when it is repeated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from kernel_dsl.compiled import LaunchAttributes, OutputSpec
from kernel_dsl.variables import bound, evaluate, variables

from ..arrays.array_view import ArrayView, narrowed, row_major
from ..devices.device import Loaded, LoadedImage
from ..plan import recording
from ..plan.calls import Launch, PendingCall, prepare
from .nodes import CopyWork, FillWork, GraphError, Held, HostWork, ImageWork, KernelWork, Made, Repeat, Work

# Memory that only replays have is given addresses here while recording: no device uses them.
VIRTUAL = 1 << 62
STEP = 1 << 8


@dataclass(eq=False)
class Event:
    """A node to be: its arrays as they were recorded. `shifts`: see `Operand`, for nested graphs."""

    work: Work
    views: list[ArrayView]
    read: list[bool]
    written: list[bool]
    alignments: list[int]
    repeat: Repeat | None = None
    shifts: list[int] | None = None
    effects: bool = False  # it does more than write its arrays


def steps(
    pending: PendingCall,
    outputs: Sequence[OutputSpec],
    launch: Launch,
    count: int,
    reserve: Callable[[int], int],
    repeat: Repeat | None,
) -> list[Event]:
    """The events of one launch, fills and copies first. `count`: how many views are inputs."""
    job = pending.job
    taker = _Steps(pending.views, job.written, count, reserve)
    with recording.sinking(taker):
        fresh = prepare(pending, outputs, count)
        if job.device.kind == "cuda":
            launch(pending.views, 0, fresh)
    if job.device.kind != "cuda":
        taker.events.append(_host_event(pending, launch, fresh, count))
    if job.kernel is not None and job.kernel.launch.empty:
        taker.events = [e for e in taker.events if not isinstance(e.work, HostWork)]
    for event in taker.events:
        event.repeat = repeat
        event.effects = job.effects and not isinstance(event.work, (CopyWork, FillWork))
    return taker.events


def copy_event(target: ArrayView, source: ArrayView) -> Event:
    item = target.dtype.itemsize
    return Event(CopyWork(), [target, source], [False, True], [True, False], [item, item])


class _Steps:
    """Takes the steps of a launch for `steps`."""

    def __init__(
        self,
        views: Sequence[ArrayView],
        written: Sequence[bool],
        count: int,
        reserve: Callable[[int], int],
    ) -> None:
        self.events: list[Event] = []
        self._reserve = reserve
        self._written = {id(v): w for v, w in zip(views, written, strict=True)}
        self._inputs = {id(v) for v in views[:count]}

    def reserve(self, nbytes: int) -> int:
        return self._reserve(nbytes)

    def copy(self, target: ArrayView, source: ArrayView) -> None:
        self.events.append(copy_event(target, source))

    def fill(self, target: ArrayView, value: Any) -> None:
        self.events.append(Event(FillWork(value), [target], [False], [True], [target.dtype.itemsize]))

    def kernel(self, loaded: Loaded, arrays: Sequence[ArrayView], scalars: Sequence[Any]) -> None:
        kernel = loaded.kernel
        hidden = len(arrays) - len(kernel.arrays)
        self.events.append(
            Event(
                KernelWork(loaded, list(scalars), kernel.launch),
                list(arrays),
                [i < kernel.inputs for i in range(len(arrays))],
                [a.written for a in kernel.arrays] + [True] * hidden,
                [a.alignment for a in kernel.arrays] + [w.alignment for w in kernel.workspaces],
            )
        )

    def image(
        self,
        image: LoadedImage,
        params: Sequence[ArrayView | bytes],
        attributes: LaunchAttributes,
    ) -> None:
        views = [p for p in params if isinstance(p, ArrayView)]
        numbers = iter(range(len(views)))
        template = [p if isinstance(p, bytes) else next(numbers) for p in params]
        # An array that the call did not name is one it made for itself, such as a scalar's.
        written = [self._written.get(id(v), False) for v in views]
        self.events.append(
            Event(
                ImageWork(image, list(template), attributes),
                views,
                [id(v) in self._inputs or id(v) not in self._written for v in views],
                written,
                [v.dtype.itemsize for v in views],
            )
        )


def _host_event(pending: PendingCall, launch: Launch, fresh: list[int], count: int) -> Event:
    job, views = pending.job, pending.views
    work = HostWork(job.name, launch, fresh, None)
    if job.kernel is not None:
        work.attributes = job.kernel.launch
        work.loaded, work.scalars = job.loaded, list(job.scalars)
    else:
        _look_into(work, launch, views, fresh)
    alignments = [v.dtype.itemsize for v in views]
    if job.kernel is not None:
        alignments = [a.alignment for a in job.kernel.arrays]
    return Event(work, list(views), [i < count for i in range(len(views))], list(job.written), alignments)


def _look_into(work: HostWork, launch: Launch, views: list[ArrayView], fresh: list[int]) -> None:
    """Let an image's launch say its dims and parameters, without running it."""
    looker = _Look()
    with recording.sinking(looker):
        launch(list(views), 0, fresh)
    if looker.image_seen is not None:
        params, work.attributes = looker.image_seen
        work.params = [p if isinstance(p, bytes) else i for i, p in enumerate(params)]


class _Look:
    """Takes an image's launch, and forgets copies and fills."""

    def __init__(self) -> None:
        self.image_seen: tuple[list[ArrayView | bytes], LaunchAttributes] | None = None

    def image(self, image: LoadedImage, params: Sequence[ArrayView | bytes], attributes: LaunchAttributes) -> None:
        self.image_seen = (list(params), attributes)

    def reserve(self, nbytes: int) -> int:
        return VIRTUAL

    def copy(self, target: ArrayView, source: ArrayView) -> None:
        return None  # the closure makes its own copies and fills again at each replay

    def fill(self, target: ArrayView, value: Any) -> None:
        return None

    def kernel(self, loaded: Loaded, arrays: Sequence[ArrayView], scalars: Sequence[Any]) -> None:
        return None


class Repeater:
    """Takes the launches of a call that is made again with other values of its variables."""

    def __init__(self, repeat: Repeat) -> None:
        self._repeat = repeat
        self._launches = 0
        self._reserved = 0
        self.events: list[Event] = []

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """A call inside the call."""
        return function(*args, **kwargs)

    def launch(
        self,
        pending: PendingCall,
        outputs: Sequence[OutputSpec],
        launch: Launch,
        out: Sequence[Any] | None,
    ) -> list[Any]:
        """Take the launch's steps, its outputs where they were when it was recorded."""
        repeat, count = self._repeat, len(pending.views)
        if self._launches >= len(repeat.outputs):
            raise _other_steps(repeat)
        recorded = repeat.outputs[self._launches]
        self._launches += 1
        if len(recorded) != len(outputs):
            raise _other_steps(repeat)
        places = pending.given or [made.view for made in recorded]
        pending.views += [_shrink(there, spec) for there, spec in zip(places, outputs, strict=True)]
        pending.job.check(pending.views)
        self.events += steps(pending, outputs, launch, count, self._reserve, None)
        for made, spec in zip(recorded, outputs, strict=True):
            made.shape = tuple(spec.shape)
        return [made.array if made.array is None else narrow(made.array, made) for made in recorded]

    def _reserve(self, nbytes: int) -> int:
        # The sizes of hidden memory were planned: the recorded operand's place is kept.
        self._reserved += 1
        return VIRTUAL + self._reserved * STEP


def _other_steps(repeat: Repeat) -> GraphError:
    name = getattr(repeat.function, "__name__", repr(repeat.function))
    return GraphError(
        f"{name} does other launches for these values of {sorted(variables(repeat.bindings))} than for those "
        "it was recorded with. Record a graph of its own for them"
    )


def _shrink(recorded: ArrayView, spec: OutputSpec) -> ArrayView:
    """Where an output lies: at the beginning of the array that has room for the largest."""
    if recorded.shape == spec.shape or not recorded.contiguous:  # then the call's own checks say what is wrong
        return recorded
    nbytes = math.prod(spec.shape) * spec.dtype.itemsize
    if spec.dtype != recorded.dtype or nbytes > recorded.nbytes:
        raise GraphError(
            f"an output of {spec.dtype}{list(spec.shape)} does not fit the "
            f"{recorded.dtype}{list(recorded.shape)} that was recorded, at the variables' largest"
        )
    return dataclasses.replace(recorded, shape=spec.shape, strides=row_major(spec.shape))


def narrow(array: Any, made: Made) -> Any:
    """An array as it is now: of the shape that its call gave it last. Raises where it cannot be made so."""
    if tuple(array.shape) == made.shape:
        return array
    if made.view.framework == "jax":
        raise GraphError("a JAX array whose shape depends on a variable is read by no other call of its graph")
    return narrowed(array, made.shape)


def _as_they_are(tree: Any) -> Any:
    """Arguments with the arrays that stand for others, in nested tuples, lists and dicts."""
    if isinstance(tree, Held):
        return narrow(tree.array, tree.made)
    if type(tree) in (tuple, list):
        return type(tree)(map(_as_they_are, tree))
    if type(tree) is dict:
        return {key: _as_they_are(item) for key, item in cast("dict[Any, Any]", tree).items()}
    return tree


def repeat_call(repeat: Repeat, now: tuple[dict[str, int], list[tuple[int, ...]]]) -> None:
    """Make a recorded call again, where it depends on other values now, and give its nodes what it now launches."""
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
