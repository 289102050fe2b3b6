"""What keeps a child of `os.fork()` working while threads of its parent compile: locks that are free again there.

A child has one thread. A lock that another thread of the parent held stays held in it for ever, so every lock of this
project comes from `lock`, and is renewed in children. What is in the middle of a change while it is locked, such as the
state of LLVM, must not be copied as it is: `fork_waits_for` has a fork wait until nobody is at it.
"""

from __future__ import annotations

import _imp
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

_OURS = frozenset(("kernel_dsl", "lowering", "runtime", "llvmlite", "cuda"))
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_guards: list[AbstractContextManager[Any, Any]] = []
_in_child: list[Callable[[], object]] = []
_forking = threading.local()  # the guards that a thread holds while it forks


def lock() -> threading.RLock:
    """A re-entrant lock that is free in a child process, unless the thread that forked holds it."""
    made = threading.RLock()
    _locks.add(made)
    return made


def locks() -> list[Any]:
    """All locks of `lock` that are in use."""
    return list(_locks)


def fork_waits_for(guard: AbstractContextManager[Any, Any]) -> None:
    """Let every fork from now on wait until `guard` is free, so that what it guards is whole in the child."""
    _guards.append(guard)


def in_child(function: Callable[[], object]) -> None:
    """Call `function` in every child process, before anything else runs there."""
    _in_child.append(function)


# --- at a fork ------------------------------------------------------------------------------------


def _before() -> None:
    # All in one hook: other threads import modules that add to the lists while this one waits.
    while True:
        own, known = _finish_imports(), len(_guards)
        _forking.held = held = list[AbstractContextManager[Any, Any]]()
        for guard in (*_guards[:known], _ImportLock()):  # with the last, no import begins
            guard.__enter__()
            held.append(guard)
        if _half_made() == own and len(_guards) == known:
            return
        _after()


class _ImportLock:
    def __enter__(self) -> None:
        _imp.acquire_lock()

    def __exit__(self, *error: object) -> None:
        _imp.release_lock()


def _after() -> None:
    held: list[AbstractContextManager[Any, Any]] = getattr(_forking, "held", [])
    while held:
        held.pop().__exit__(None, None, None)


def _after_in_child() -> None:
    _after()
    for each in list(_locks):
        if not each._is_owned():  # the thread that forked goes on, and releases what it holds
            each._at_fork_reinit()
    # Of imports that had only just begun, and are in `sys.modules` not yet.
    importing: dict[str, Any] = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", {})
    for name in filter(_is_ours, list(importing)):
        del importing[name]
    for function in _in_child:
        function()


def _finish_imports() -> list[str]:
    """Wait until other threads have imported what they are at: a half-made module stays so in a child, and locked.

    Returns what this thread is importing itself.
    """
    while names := _half_made():
        for name in names:
            with suppress(Exception):  # the other thread is told what is wrong with the module
                importlib.import_module(name)
        if names == _half_made():
            return names
    return []


def _half_made() -> list[str]:
    return [
        name
        for name, module in list(sys.modules.items())
        if _is_ours(name) and getattr(getattr(module, "__spec__", None), "_initializing", False)
    ]


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
