"""Semaphores: counters in GMEM, zero at each launch, that blocks signal and wait for.

Those of a kernel on a mesh of devices lie where the peers reach them. Nobody can zero them before a launch without waiting
for all peers, so such a kernel leaves them at zero itself: each signal is waited for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from enum import Enum
from itertools import product
from math import prod
from typing import Any

import numpy as np

from .. import dtypes as dt
from ..arguments import strings
from ..boundary import Choices, public
from ..dataclass import dataclass
from ..diagnostics import shown
from ..errors import BadArgument, BadArgumentType, UnknownAxis
from ..ir import MemorySpace, Op, RefType, attr, option
from ..memory import MemorySpec, as_shape
from ..mesh import VALUE, meshed
from ..packed import seen_as, stored_spec
from ..refs import Ref
from ..trace import current, emit
from ..values import Array
from . import nvshmem
from .atomic import atomic_add, atomic_cas
from .branches import cond
from .control import while_loop
from .debug import debug_check
from .index import axis_size, members
from .inline import inline_ptx
from .ref import as_ref
from .remote import remote_ref
from .sync import GmemProxyFence, WarpgroupBarrier

__all__ = [
    "SemaphoreType",
    "get_global",
    "semaphore_read",
    "semaphore_signal",
    "semaphore_signal_multicast",
    "semaphore_wait",
]


@dataclass(frozen=True)
class SemaphoreSpec:
    """Semaphores to allocate: one set for each block, or one for the whole grid (`get_global`)."""

    shape: tuple[int, ...] = ()
    everywhere: bool = False


@public
class SemaphoreType(Enum, metaclass=Choices):
    """The kinds of semaphore, as scratch: `kd.SemaphoreType.REGULAR`, or with a shape, `.REGULAR((4,))`."""

    REGULAR = "regular"
    BARRIER = "barrier"

    def __call__(self, shape: Any = ()) -> SemaphoreSpec:
        return SemaphoreSpec(as_shape(shape, "SemaphoreType"))


class AllocSemaphore(Op, name="alloc_semaphore"):
    """Hidden GMEM, as int32 counters zeroed before each launch; no instruction. `everywhere`: shared by all blocks.

    `zeroed`: False for scratch, which is uninitialised.
    """

    type: RefType = attr()
    everywhere: bool = attr(False)
    zeroed: bool = option(True)

    def infer(self) -> tuple[Any, ...]:
        return (self.type,)


def allocate_semaphore(spec: SemaphoreSpec, name: str = "") -> Ref:
    """The counters for a specification."""
    mesh = current().mesh
    if mesh is not None:
        return mesh.semaphore(spec.shape, spec.everywhere, name)
    return zeroed_counters(spec, name)


def zeroed_counters(spec: SemaphoreSpec, name: str = "") -> Ref:
    """Counters that each launch zeroes, which peers can't reach."""
    type = RefType(MemorySpace.GMEM, spec.shape, dt.int32, True, 4, True, name=name or "semaphore")
    if not spec.everywhere:  # room for each block: the code depends on their number
        for size in current().grid:
            operator.index(size)
    return Ref(emit(AllocSemaphore(type, spec.everywhere, True)).result)


def allocate_gmem(spec: MemorySpec, name: str) -> Ref:
    """The Ref of scratch in GMEM. Each member of a batch has its own."""
    trace = current()
    stored = stored_spec(spec)
    batches = () if spec.per_block else trace.batches
    type = RefType(MemorySpace.GMEM, (*batches, *stored.shape), stored.dtype, True, 16, True, name=name or "scratch")
    if spec.per_block:  # room for each block: the code depends on their number
        for size in trace.grid:
            operator.index(size)
    made = Ref(emit(AllocSemaphore(type, not spec.per_block, False)).result)
    return seen_as(made.slice(tuple(members())) if batches else made, spec.dtype)


def get_global(spec: Any) -> Ref:
    """Semaphores that all blocks of the grid share: `kd.get_global(kd.SemaphoreType.REGULAR((10,)))`.

    An int32 Ref of that shape, zero at each launch; `.at[i]` picks one. Raises `BadArgumentType`.
    """
    if isinstance(spec, SemaphoreType):
        spec = spec()
    if not isinstance(spec, SemaphoreSpec):
        what = f"{shown(spec)} is not a semaphore specification"
        raise BadArgumentType(op="get_global", what=what, hint="use `kd.SemaphoreType.REGULAR` or `.REGULAR(shape)`")
    made = allocate_semaphore(SemaphoreSpec((*current().batches, *spec.shape), True))
    return made.slice(tuple(members()))


_SCOPES = ("cta", "cluster", "gpu", "sys")


def _one(sem: Any, op: str, scope: str | None) -> tuple[Ref, str]:
    """The semaphore, and the scope: by default the GPU's, or the system's where there are several."""
    ref = as_ref(sem, op)
    if scope is None:
        scope = "gpu" if current().mesh is None else "sys"
    if ref.dtype != dt.int32 or prod(ref.shape) != 1 or ref.shape:
        what = f"{ref!r} is not one int32 semaphore"
        raise BadArgumentType(op=op, what=what, hint="pick one with `sem.at[i]`")
    if scope not in _SCOPES:
        raise BadArgument(op=op, what=f"memory_scope={shown(scope)}", hint=f"one of {', '.join(_SCOPES)}")
    return ref, scope


def semaphore_signal(sem: Any, inc: Any = 1, *, device_id: Any = None, memory_scope: str | None = None) -> None:
    """Add `inc` (int32) to one semaphore. This warpgroup's earlier writes are then visible to all that wait for it.

    `device_id`: on a mesh, the device of the semaphore, as for `kd.remote_ref`; by default this device. `memory_scope`:
    "cta", "cluster", "gpu" or "sys"; by default "gpu", and "sys" on a mesh. There a signal waits until the writes have
    reached the peers, which can take microseconds, so signal once for many stores. Raises `BadArgumentType`,
    `BadArgument`, and the errors of `kd.remote_ref`.
    """
    op = "semaphore_signal"
    ref, scope = _one(sem, op, memory_scope)
    if device_id is None:
        emit(WarpgroupBarrier())
        atomic_add(ref, inc, order="release", scope=scope)
    else:
        _signal(ref, inc, device_id, scope, op, meets=True)


def semaphore_signal_multicast(
    sem: Any, inc: Any = 1, *, collective_axes: Any, memory_scope: str | None = None
) -> None:
    """`semaphore_signal` on every device along `collective_axes` of the mesh, this one included: a name, or several.
    Raises `UnknownAxis` for an axis that the mesh does not have, `BadArgument` for none or one twice, and the errors of
    `semaphore_signal`.
    """
    op = "semaphore_signal_multicast"
    mesh = meshed(op)
    ref, scope = _one(sem, op, memory_scope)
    names = strings(collective_axes, op, "collective_axes")
    unknown = [name for name in names if name not in mesh.mesh.names]
    if unknown:
        raise UnknownAxis(name=unknown[0], of="the mesh", names=", ".join(map(repr, mesh.mesh.names)))
    if not names or len(set(names)) < len(names):
        hint = f"name axes of the mesh, each once: {', '.join(map(repr, mesh.mesh.names))}"
        raise BadArgument(op=op, what=f"collective_axes={shown(collective_axes)}", hint=hint)
    emit(WarpgroupBarrier())
    for at in product(*(range(axis_size(name)) for name in names)):
        _signal(ref, inc, dict(zip(names, at, strict=True)), scope, op, meets=False)


def _signal(ref: Ref, inc: Any, device_id: Any, scope: str, op: str, meets: bool) -> None:
    """Add to another device's semaphore. `meets`: the warpgroup synchronises first."""
    target = remote_ref(ref, device_id)

    def near() -> None:
        if meets:
            emit(WarpgroupBarrier())
        atomic_add(target, inc, order="release", scope=scope)

    mesh = nvshmem.hosts_of(op)
    if mesh is None:
        near()
        return
    number = mesh.number(device_id, op)
    cond(nvshmem.far(mesh, ref, number, op), lambda: nvshmem.signal(mesh, ref, inc, number, op), near)


def semaphore_wait(
    sem: Any,
    value: Any = 1,
    *,
    decrement: bool = True,
    memory_scope: str | None = None,
    timeout: float | None = None,
) -> None:
    """Wait until the count of one semaphore is at least `value`, and take that much from it (unless `decrement` is False).

    The test and the decrement are one atomic step, so a semaphore can be a lock among several waiters.

    `timeout`: seconds after which the kernel ends with an error; by default it waits for ever. On a mesh the error names the
    device, the block, the semaphore with its index, the value and the count.
    `memory_scope` and errors as of `semaphore_signal`; `BadArgument` for a value below 0.
    """
    ref, scope = _one(sem, "semaphore_wait", memory_scope)
    if isinstance(value, (int, np.integer)) and value < 0:
        raise BadArgument(op="semaphore_wait", what=f"value={value}", hint="a count that signals reach: 0 or more")
    late = None if timeout is None else Deadline(_text(ref, value, timeout), timeout, value, ref)

    def peek() -> Any:
        seen = _peek(ref, scope)
        if late is not None:
            late.check(seen, lambda: seen < value)
        return seen

    if not decrement:
        while_loop(lambda seen: seen < value, lambda seen: peek(), peek())
        _seen_by_copies(ref)
        return

    # another waiter could take the same count between the test and the subtraction, so a compare-and-swap does both
    def take(state: Any) -> Any:
        seen = state[0]
        enough = seen >= value

        def exchange() -> Any:
            return atomic_cas(ref, seen, seen - value, order="acquire", scope=scope)

        found = cond(enough, exchange, peek)
        return found, enough & (found == seen)

    while_loop(lambda state: ~state[1], take, (peek(), False))
    _seen_by_copies(ref)


def _seen_by_copies(ref: Ref) -> None:
    """Make data that another device stored before its signal visible to asynchronous copies, too."""
    if current().mesh is not None:
        emit(GmemProxyFence())
    mesh = nvshmem.hosts_of("semaphore_wait")
    if mesh is not None:
        nvshmem.arrived(mesh, ref, "semaphore_wait")


def _text(ref: Ref, value: Any, seconds: float) -> str:
    """What a kernel says that waited too long for a semaphore."""
    mesh = current().mesh
    if mesh is not None:
        return f"waited for {seconds} s for {mesh.name_of(ref, place=True)} to reach {VALUE}"
    wanted = value if isinstance(value, int) else "the value"
    return f"waited for {seconds} s for {ref.type.name or 'semaphore'!r} to reach {wanted}"


class Deadline:
    """A time by which a wait must have ended, and what the kernel says otherwise. PTX `%globaltimer`.

    `value` and `semaphore`: the count that the wait is for, and where, if `text` names them.
    """

    def __init__(self, text: str, seconds: float, value: Any = 0, semaphore: Ref | None = None) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 1e9:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadArgument(
                op="semaphore_wait", what=f"timeout={shown(seconds)}", hint="seconds, more than 0 and less than 1e9"
            )
        self._end = _now() + int(seconds * 1e9)
        self._mesh = current().mesh
        self._text = text
        self._value = value
        self._semaphore = semaphore

    def check(self, seen: Any, waits: Callable[[], Any]) -> None:
        """End the kernel if the time is over and it still `waits()`; the report has the count `seen`."""
        mesh = self._mesh

        def end() -> None:
            if mesh is not None:
                mesh.end(self._text, seen, self._value, self._semaphore)
            else:
                debug_check(False, self._text)

        cond((_now() > self._end) & waits(), end, lambda: None)


def _now() -> Any:
    return inline_ptx("mov.u64 $0, %globaltimer;", out_type=dt.int64)


def semaphore_read(sem: Any) -> Array:
    """The count of one semaphore, a rank-0 int32. Raises `BadArgumentType`."""
    return _peek(*_one(sem, "semaphore_read", None))


def _peek(ref: Ref, scope: str) -> Array:
    return atomic_add(ref, 0, order="acquire", scope=scope)
