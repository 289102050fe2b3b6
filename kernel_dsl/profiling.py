"""`Kernel.profile`: puts marks where scopes and waits begin and end, and reads the rings of events that the marks write.

The rings are one more output of the kernel, so a launch treats them like any other. Each warp has a ring; a warpgroup uses that
of its first warp.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from . import dtypes as dt
from .definition import Definition, ScalarInput, is_leaf
from .diagnostics import shown
from .errors import BadArgument, BadArgumentType, BadCallArgument
from .ir import Op, Value
from .kernel import Kernel, remade
from .memory import ShapeDtypeStruct
from .mesh_kernel import MeshKernel, is_row
from .ops.barrier import BarrierWait
from .ops.copy_waits import WaitGmemToSmem, WaitSmemToGmem
from .ops.debug import ProfileMark
from .ops.inline import address_of
from .ops.matrix import WgmmaWait
from .ops.threads import GridDependencyWait
from .options import CompilerParams
from .profile import Profile, ProfileEvent
from .scalar_struct import ScalarStruct
from .sizes import geometry
from .source import Loc, here, of_function
from .symmetric import Symmetric
from .trace import current, emit
from .tree import flatten, unflatten

_WAITS: dict[type[Op], str] = {  # their names in profiles
    BarrierWait: "barrier",
    WgmmaWait: "wgmma_wait",
    WaitSmemToGmem: "wait_smem_to_gmem",
    WaitGmemToSmem: "wait_gmem_to_smem",
    GridDependencyWait: "griddepcontrol_wait",
}
_WORDS = 2  # int64s of a ring's head, and of an event: its time and its word
MAX_SPACE = 1 << 24


@dataclass(frozen=True)
class MarkLabel:
    """The description of a mark. `alone`: it is in one warp, inside `warp_map`."""

    kind: str
    name: str
    loc: Loc
    alone: bool
    indexed: bool = False  # one of several barriers


class Marks:
    """The marks of one trace, each with a label.

    A ring holds the label's number, and whether it is a begin or an end.
    """

    def __init__(self, rings: Value, space: int) -> None:
        self.labels: list[MarkLabel] = []
        self._rings = rings
        self._space = space

    def begin(self, kind: str, name: str, loc: Loc, index: Value | None = None) -> int:
        """Mark a begin. Returns the number that `end` takes."""
        indexed = index is not None
        self.labels.append(MarkLabel(kind, name, loc, current().in_warps, indexed))
        number = len(self.labels) - 1
        self._mark(number << 1, loc, index)
        return number

    def end(self, number: int) -> None:
        self._mark(number << 1 | 1, self.labels[number].loc, None)

    def _mark(self, code: int, loc: Loc, index: Value | None) -> None:
        emit(ProfileMark(self._rings, index, code, self._space, code == 0), loc)

    def waits(self, op: Op) -> bool:
        """Whether an op is a wait, whose time is kept."""
        return type(op) in _WAITS

    def around(self, op: Any, loc: Loc | None) -> Any:
        """Append a wait between marks."""
        trace = current()
        at = loc or trace.at or here()
        name, index = _WAITS[type(op)], None
        if isinstance(op, BarrierWait):
            name = op.barrier.type.name or name
            index = op.index if prod(op.barrier.type.shape) > 1 else None
        number = self.begin("wait", name, at, index)
        trace.profile = None
        try:
            made = emit(op, at)
        finally:
            trace.profile = self
        self.end(number)
        return made


class ProfiledBody:
    """A body between marks, with the rings as its last output."""

    def __init__(self, definition: Definition, inputs: int, outputs: int, space: int) -> None:
        functools.update_wrapper(self, definition.body)
        self._body = definition.body
        self._at = inputs + outputs
        self._space = space
        self.labels: list[MarkLabel] = []  # of the last trace
        try:
            own = inspect.signature(definition.body)
        except (TypeError, ValueError):
            return
        given = list(own.parameters.values())
        if len(given) >= self._at and all(
            p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in given[: self._at]
        ):
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            if self._at < len(given) and given[self._at].kind == inspect.Parameter.POSITIONAL_ONLY:
                kind = inspect.Parameter.POSITIONAL_ONLY
            rings = inspect.Parameter("profile_rings", kind)
            given = [p.replace(default=p.empty) for p in given[: self._at]] + [rings] + given[self._at :]
            self.__signature__: inspect.Signature = own.replace(parameters=given)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        trace = current()
        rest, rings = (*args[: self._at], *args[self._at + 1 :]), args[self._at]
        marks = trace.profile = Marks(address_of(rings, "profile"), self._space)
        self.labels = marks.labels
        try:
            whole = marks.begin("kernel", getattr(self, "__name__", "kernel"), of_function(self._body))
            returned = self._body(*rest, **keywords)
            marks.end(whole)
        finally:
            trace.profile = None
        return returned


def profile(kernel: Kernel, args: tuple[Any, ...], space: int | None, out: Any, stream: Any, interpret: Any) -> Profile:
    """See `Kernel.profile`. Without `space`, the kernel's `CompilerParams` decide, and the trace goes to a file."""
    from kernel_dsl.runtime.interpreter import recorded

    if space is not None and not (type(space) is int and 0 < space <= MAX_SPACE):
        raise BadArgument(op="profile", what=f"space={space!r}", hint=f"events of a warp, from 1 to {MAX_SPACE}")
    marked, body, structure = with_marks(kernel, args, space)
    definition = kernel._definition  # pyright: ignore[reportPrivateUsage]
    several = isinstance(structure, (tuple, list))
    given = None if out is None else _with_rings(marked, out, structure)
    with recorded() as recorder:
        results: Any = marked(*args, out=given, stream=stream, interpret=interpret)
    kept = type(structure)(results[:-1]) if several else results[0]
    rings: list[Any] = list(results[-1]) if isinstance(results[-1], Symmetric) else [results[-1]]
    events: list[ProfileEvent] = []
    dropped = 0
    for device, words in enumerate(map(_on_host, rings)):
        blocks = len(words) // (4 * (definition.num_threads or 1))
        found, lost = _events(words, body.labels, len(words) // max(blocks, 1), recorder, device)
        events += found
        dropped += lost
    events += [ProfileEvent(*span) for span in recorder.spans()]
    made = Profile(kernel.name, "steps" if recorder.ran else "ns", _from_zero(events, recorder.ran), dropped, kept)
    if space is None:
        _keep(made, definition.params)
    return made


def with_marks(kernel: Kernel, args: tuple[Any, ...], space: int | None) -> tuple[Kernel, ProfiledBody, Any]:
    """The kernel with marks and rings for such arguments, its body, and the structure of the outputs without the rings."""
    found: list[tuple[ProfiledBody, Any]] = []

    def change(definition: Definition) -> Definition:
        made, *rest = _profiled(kernel, definition, args, definition.params.profile_space if space is None else space)
        found.append((rest[0], rest[1]))
        return made

    if isinstance(kernel, MeshKernel):
        definition, how = change(kernel._definition), (kernel._interpret, kernel._debug)  # pyright: ignore[reportPrivateUsage]
        marked = MeshKernel(definition, *how, kernel.mesh)
        marked.meets = kernel.meets
        return marked, *found[0]
    return remade(kernel, change), *found[0]


def _profiled(
    kernel: Kernel, definition: Definition, args: tuple[Any, ...], space: int
) -> tuple[Definition, ProfiledBody, Any]:
    """The definition with rings and marks, its body, and the structure of the outputs without the rings."""
    on_mesh = isinstance(kernel, MeshKernel)
    leaves, structure = flatten(args, (lambda x: x is not args and is_row(x)) if on_mesh else None)
    inputs = [kernel._lower_input(x) for x in leaves]  # pyright: ignore[reportPrivateUsage]
    described = zip(inputs, leaves, strict=True)
    structs = [ScalarStruct(i.dtype, x) if isinstance(i, ScalarInput) else i.struct() for i, x in described]
    sizes = geometry(definition, unflatten(structure, structs))
    rings = prod(a.size for a in (*sizes.grid, *sizes.cluster)) * (definition.num_threads or 1) * 4
    struct = ShapeDtypeStruct((rings, _WORDS * (1 + space)), dt.int64, 0)
    outs: Any = unflatten(sizes.out_structure, list(sizes.outs))
    several = isinstance(sizes.out_structure, (tuple, list))
    tops = tuple(outs) if several else (outs,)
    body = ProfiledBody(definition, len(args), len(tops), space)
    params = replace(definition.params, profile_space=0, profile_dir="")
    batches = tuple(_RingsWhole(b) for b in definition.batches)
    made = replace(definition, body=body, out_type=(*tops, struct), params=params, identity="", batches=batches)
    return made, body, sizes.out_structure


class _RingsWhole:
    """A batch of `vmap` whose last output, the rings, is shared by all members: each block finds its own by its number."""

    def __init__(self, batch: Any) -> None:
        self.in_axes = batch.in_axes
        self.inputs: Callable[[Sequence[Any], Any], list[Any]] = batch.inputs
        self._batch = batch

    def outputs(self, outs: Sequence[Any], index: Any) -> tuple[Any, ...]:
        return (*self._batch.outputs(tuple(outs[:-1]), index), outs[-1])


def _with_rings(marked: Kernel, out: Any, structure: Any) -> Any:
    """`out=` with rings after it, as arrays of the same framework in the same places."""
    tops: tuple[Any, ...] = tuple(out) if isinstance(structure, (tuple, list)) else (out,)
    definition: Any = marked._definition  # pyright: ignore[reportPrivateUsage]
    struct = definition.out_type[-1]
    if not isinstance(marked, MeshKernel):
        like = next(filter(is_leaf, flatten(out)[0]), None)
        if like is None:
            raise BadCallArgument(
                kernel=marked.name, what=f"out={shown(out)} holds no array", hint="pass preallocated arrays"
            )
        return (*tops, _rings_like(like, struct))
    if not is_row(tops[0]):
        what, hint = "out= in a profile of a kernel on a mesh of processes", "let the call make its outputs"
        raise BadCallArgument(kernel=marked.name, what=what, hint=hint)
    return (*tops, [_rings_like(x, struct) for x in tops[0]])


def _rings_like(x: Any, struct: Any) -> Any:
    from kernel_dsl.runtime.arrays.array_view import frameworks, view

    like = view(x)
    interop = frameworks(like.framework)
    stream = 0 if like.device[0] == "cpu" else interop.current_stream(like.device[1])
    return interop.empty(struct.shape, struct.dtype, like.device, stream)


def _on_host(rings: Any) -> Any:
    if hasattr(rings, "detach"):  # PyTorch
        rings = rings.detach().cpu().numpy()
    elif hasattr(rings, "get") and hasattr(rings, "__cuda_array_interface__"):
        rings = rings.get()
    return np.asarray(rings).view(np.uint64)


def _from_zero(events: list[ProfileEvent], one_clock: bool) -> list[ProfileEvent]:
    """The events with times from the earliest on: for each device by its own clock, unless they share one."""
    first: dict[int, int] = {}
    for e in events:
        device = 0 if one_clock else e.device
        first[device] = min(first.get(device, e.begin), e.begin)
    begins = [first[0 if one_clock else e.device] for e in events]
    return [replace(e, begin=e.begin - b, end=e.end - b) for e, b in zip(events, begins, strict=True)]


def _events(
    words: Any, labels: Sequence[MarkLabel], warps: int, recorder: Any, device: int
) -> tuple[list[ProfileEvent], int]:
    """The events of all rings of a device, and the number of ends without room."""
    found: list[ProfileEvent] = []
    dropped = 0
    clock = recorder.step if recorder.ran else int
    places: dict[int, int] = {}  # the multiprocessor of each block
    for number, ring in enumerate(words):
        block, warp = divmod(number, warps)
        count, room = int(ring[0]) & 0xFFFFFFFF, len(ring) // _WORDS - 1
        dropped += max(count - room, 0)
        ordered = [_WORDS * (1 + i % room) for i in range(max(count - room, 0), count)]
        stack: list[tuple[int, int, int]] = []  # label, time, index
        for place in ordered:
            time, word = int(ring[place]), int(ring[place + 1])
            code, index = word & 0xFFFFFFFF, word >> 32
            label = labels[code >> 1]
            if not code & 1:
                stack.append((code >> 1, time, index))
                if not code >> 1:
                    places[block] = index
                continue
            while stack and stack[-1][0] != code >> 1:
                stack.pop()
            if not stack:
                continue  # the ring had no room for its begin
            _, begin, index = stack.pop()
            name = f"{label.name}[{index}]" if label.indexed else label.name
            own = warp if label.alone else None
            times, at = (clock(begin), clock(time)), (label.loc.file, label.loc.line)
            found.append(ProfileEvent(label.kind, name, *times, block, warp // 4, own, *at))
    found = [replace(e, sm=places.get(e.block, 0), device=device) for e in found]
    found.reverse()  # outer scopes end last, and come first if times are equal
    return found, dropped


def _keep(made: Profile, params: CompilerParams) -> None:
    """Write the trace to a file of its own in the folder that `profile_dir` names."""
    folder = Path(params.profile_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("*.pftrace")))
        while True:
            path = folder / f"{made.kernel}-{number}.pftrace"
            try:
                path.touch(exist_ok=False)
                break
            except FileExistsError:
                number += 1
    except (OSError, ValueError) as error:
        hint = "a folder that can be written"
        raise BadArgumentType(
            op="CompilerParams", what=f"profile_dir={params.profile_dir!r}: {error}", hint=hint
        ) from None
    made.save(path)
