"""Semaphores: counters in GMEM, zero at each launch, that blocks signal and wait for."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

from .. import dtypes as dt
from ..boundary import Choices, public
from ..errors import BadArgument, BadArgumentType
from ..ir import MemorySpace, Op, RefType, attr
from ..memory import as_shape
from ..refs import Ref
from ..trace import current, emit
from ..values import Array
from .atomic import atomic_add, atomic_cas
from .control import cond, while_loop
from .index import members
from .ref import as_ref
from .sync import WarpgroupBarrier

__all__ = ["SemaphoreType", "get_global", "semaphore_read", "semaphore_signal", "semaphore_wait"]


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
    """int32 counters in hidden GMEM, zeroed before each launch; no instruction. `everywhere`: shared by all blocks."""

    type: RefType = attr()
    everywhere: bool = attr(False)

    def infer(self) -> tuple[Any, ...]:
        return (self.type,)


def allocate_semaphore(spec: SemaphoreSpec, name: str = "") -> Ref:
    """The counters for a specification."""
    type = RefType(MemorySpace.GMEM, spec.shape, dt.int32, True, 4, True, name=name or "semaphore")
    if not spec.everywhere:  # room for each block: the kernel is for this many
        for size in current().grid:
            operator.index(size)
    return Ref(emit(AllocSemaphore(type, spec.everywhere)).result)


def get_global(spec: Any) -> Ref:
    """Semaphores that all blocks of the grid share: `kd.get_global(kd.SemaphoreType.REGULAR((10,)))`.

    An int32 Ref of that shape, zero at each launch; `.at[i]` picks one. Raises `BadArgumentType`.
    """
    if isinstance(spec, SemaphoreType):
        spec = spec()
    if not isinstance(spec, SemaphoreSpec):
        what = f"{spec!r} is no semaphore specification"
        raise BadArgumentType(op="get_global", what=what, hint="use `kd.SemaphoreType.REGULAR` or `.REGULAR(shape)`")
    made = allocate_semaphore(SemaphoreSpec((*current().batches, *spec.shape), True))
    return made.slice(tuple(members()))


_SCOPES = ("cta", "cluster", "gpu", "sys")


def _one(sem: Any, op: str, scope: str) -> Ref:
    ref = as_ref(sem, op)
    if ref.dtype != dt.int32 or prod(ref.shape) != 1 or ref.shape:
        what = f"{ref!r} is not one int32 semaphore"
        raise BadArgumentType(op=op, what=what, hint="pick one with `sem.at[i]`")
    if scope not in _SCOPES:
        raise BadArgument(op=op, what=f"memory_scope={scope!r}", hint=f"one of {', '.join(_SCOPES)}")
    return ref


def semaphore_signal(sem: Any, inc: Any = 1, *, memory_scope: str = "gpu") -> None:
    """Add `inc` (int32) to one semaphore; what this warpgroup wrote before is visible to whoever waits for it.

    `memory_scope`: "cta", "cluster", "gpu" or "sys". Raises `BadArgumentType`, `BadArgument`.
    """
    ref = _one(sem, "semaphore_signal", memory_scope)
    emit(WarpgroupBarrier())
    atomic_add(ref, inc, order="release", scope=memory_scope)


def semaphore_wait(sem: Any, value: Any = 1, *, decrement: bool = True, memory_scope: str = "gpu") -> None:
    """Wait until the count of one semaphore is at least `value`, and take that much from it (unless `decrement` is False).

    Looking and taking are one: of several waiters each takes its own, and a semaphore is a lock.

    `memory_scope` and errors as of `semaphore_signal`.
    """
    ref = _one(sem, "semaphore_wait", memory_scope)

    def peek() -> Any:
        return _peek(ref, memory_scope)

    if not decrement:
        while_loop(lambda seen: seen < value, lambda seen: peek(), peek())
        return

    # between a look and a subtraction another waiter could take the same count: it is exchanged if it is still that
    def take(state: Any) -> Any:
        seen = state[0]
        enough = seen >= value

        def exchange() -> Any:
            return atomic_cas(ref, seen, seen - value, order="acquire", scope=memory_scope)

        found = cond(enough, exchange, peek)
        return found, enough & (found == seen)

    while_loop(lambda state: ~state[1], take, (peek(), False))


def semaphore_read(sem: Any) -> Array:
    """The count of one semaphore, a rank-0 int32. Raises `BadArgumentType`."""
    return _peek(_one(sem, "semaphore_read", "gpu"), "gpu")


def _peek(ref: Ref, scope: str) -> Array:
    return atomic_add(ref, 0, order="acquire", scope=scope)
