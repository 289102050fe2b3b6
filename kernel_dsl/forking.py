"""Locks that work in a child of `os.fork()` while threads of its parent compile: the child renews them.

A child has one thread. If another thread of the parent held a lock at the fork, the lock would stay held in the child
for ever. So every lock of this project comes from `lock`, and children renew it. State that is incomplete while it is
locked, such as that of LLVM, must not be copied: `fork_waits_for` delays a fork until no thread holds its lock.
"""

from __future__ import annotations

import _imp
import contextlib
import importlib
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")
Lock: TypeAlias = "threading.RLock"
_OURS = frozenset(("kernel_dsl", "llvmlite", "cuda"))


class Living(Generic[T]):
    """Objects, as long as others keep them. Safe to use from several threads.

    A `weakref.WeakSet` would run Python code where an object goes, such as in the middle of a garbage collection. Python
    drops what is raised there, and an interrupt that arrived meanwhile would be lost.
    """

    def __init__(self) -> None:
        self._all: deque[weakref.ref[T]] = deque()

    def add(self, made: T) -> None:
        """Add an object, and drop up to two that have gone, so that those never become many."""
        self._all.append(weakref.ref(made))
        for _ in range(2):
            first = self._all[0]
            if first() is not None:
                self._all.rotate(-1)
                continue
            with contextlib.suppress(ValueError):  # another thread has dropped it
                self._all.remove(first)

    def __iter__(self) -> Iterator[T]:
        while True:
            try:
                found = list(self._all)
                break
            except RuntimeError:  # another thread added one meanwhile
                continue
        for each in found:
            if (made := each()) is not None:
                yield made


_locks: Living[Any] = Living()
_guards: list[Any] = []
_in_child: list[Callable[[], object]] = []
_forking = threading.local()  # the locks that a forking thread releases after the fork
_PATIENCE = 60.0  # seconds that a fork waits at most
_PAUSE = 0.005


def lock() -> Lock:
    """A re-entrant lock that is free in a child process, unless the thread that forked holds it."""
    made = threading.RLock()
    _locks.add(made)
    return made


def gate() -> Any:
    """A closed lock that another thread opens, once. No child waits at it, because the waiting thread does not fork."""
    made = threading.Lock()
    made.acquire()
    return made


def locks() -> list[Any]:
    """All locks of `lock` that are in use."""
    return list(_locks)


def fork_waits_for(guard: Any) -> None:
    """Let every fork from now on wait until `guard`, a re-entrant lock, is free.

    Then its data is complete in the child.
    """
    _guards.append(guard)


def in_child(function: Callable[[], object]) -> None:
    """Call `function` in every child process, before anything else runs there."""
    _in_child.append(function)


# --- at a fork ------------------------------------------------------------------------------------


def _before() -> None:
    """Wait until no other thread compiles, or imports a module of this project.

    In a child such a module would stay incomplete and locked. Other hooks may hold locks that those threads need, so
    each wait has a time limit, and no lock of this project is held meanwhile.
    """
    deadline = time.monotonic() + _PATIENCE
    # If logging was imported after this module, its hook ran before this one and took a lock that our imports need.
    taken: Any = getattr(sys.modules.get("logging"), "_lock", None)
    if taken is not None and not taken._is_owned():
        taken = None
    while time.monotonic() < deadline:
        _imp.acquire_lock()  # no import begins from here on
        _forking.held = held = [_imp.release_lock]
        if not _half_made():
            for guard in list(_guards):
                if not guard.acquire(timeout=_PAUSE):
                    break
                held.append(guard.release)
            else:
                return
        _after()
        _pause(taken)
    import logging  # not needed to import the package

    logging.getLogger("kernel_dsl").warning(
        "forked while another thread compiles, which it did for %.0f seconds: the child may not compile", _PATIENCE
    )


def _pause(taken: Any) -> None:
    """Release the lock `taken`, which this thread holds, for a while, so that other threads continue."""
    if taken is not None:
        taken.release()
    time.sleep(_PAUSE)
    if taken is not None:
        taken.acquire()  # this thread holds no lock of the project, so the other thread can release this one


def _after() -> None:
    held: list[Callable[[], object]] = getattr(_forking, "held", [])
    while held:
        held.pop()()


def _after_in_child() -> None:
    _after()
    for each in (*_locks, *_guards):
        if not each._is_owned():  # the thread that forked continues, and releases its own locks
            each._at_fork_reinit()
    # for imports that had just begun and are not in `sys.modules` yet
    importing: dict[str, Any] = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", {})
    for name in filter(_is_ours, list(importing)):
        del importing[name]
    for function in _in_child:
        function()


def _half_made() -> bool:
    """Whether another thread imports a module of this project."""
    half = {
        name
        for name, module in list(sys.modules.items())
        if _is_ours(name) and getattr(getattr(module, "__spec__", None), "_initializing", False)
    }
    frame = sys._getframe() if half else None  # pyright: ignore[reportPrivateUsage]
    while frame is not None:  # this thread can't wait for its own import
        half.discard(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    return bool(half)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
