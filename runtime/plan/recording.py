"""The hook between launches and a recording graph. It does not import graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from kernel_dsl import forking

from .pending import PendingCall

R = TypeVar("R")


class Recorder(Protocol):
    """What takes calls in place of the device. `nibbles`: see `runtime/graph/nibbles.py`."""

    nibbles: Any

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Make a user's call, whose arguments or grid may hold `Variable`s."""
        ...

    def launch(self, pending: PendingCall) -> list[Any]:
        """Keep one launch. Returns its outputs, which hold nothing yet."""
        ...


# How many graphs are being recorded, by all threads: the fast paths to a launch look here first.
active: int = 0
seen_by_host_code = ctypes.c_int(0)  # the same
_lock = forking.lock()
_own: ContextVar[int] = ContextVar("own", default=0)  # how many of them this thread's
_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)
_inside: ContextVar[bool] = ContextVar("inside", default=False)


def current() -> Recorder | None:
    """The graph that records this thread's calls; None if they are to run."""
    return _recorder.get() if active else None


@contextmanager
def recording(recorder: Recorder) -> Generator[None]:
    """Hand this thread's calls to `recorder` for a while."""
    token, own = _recorder.set(recorder), _own.set(_own.get() + 1)
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        _own.reset(own)
        _recorder.reset(token)


def _count(more: int) -> None:
    global active
    with _lock:
        active += more
        seen_by_host_code.value = active


def _in_child() -> None:
    """In a child process, nothing is recorded but by the one thread that it has."""
    global active
    active = seen_by_host_code.value = _own.get()


forking.in_child(_in_child)


def made(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """`function(*args, **kwargs)`, which is what a user called.

    Where a graph records, it makes the call, so that it can make it again with other values of its
    variables. A call inside a call is part of it.
    """
    recorder = _recorder.get() if active else None
    if recorder is None or _inside.get():
        return function(*args, **kwargs)
    token = _inside.set(True)
    try:
        return recorder.call(function, args, kwargs)
    finally:
        _inside.reset(token)
