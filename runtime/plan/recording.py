"""The hook between launches and a recording graph. It does not import graphs."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from kernel_dsl import forking
from kernel_dsl.unseen import unwatched

from .pending import PendingCall

R = TypeVar("R")


class Recorder(Protocol):
    """Takes calls in place of the device. `nibbles`: see `runtime/graph/nibbles.py`."""

    nibbles: Any

    def call(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Make a user's call, whose arguments or grid may hold `Variable`s."""
        ...

    def launch(self, pending: PendingCall) -> list[Any]:
        """Keep one launch. Returns its outputs, which are uninitialised."""
        ...


# The number of graphs that all threads are recording. The fast paths to a launch test it first.
active: int = 0
seen_by_host_code: ctypes.c_int = ctypes.c_int(0)  # the same
_lock = forking.lock()
_own: ContextVar[int] = ContextVar("own", default=0)  # the number of this thread's recordings
_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)
_inside: ContextVar[bool] = ContextVar("inside", default=False)


def current() -> Recorder | None:
    """The graph that records this thread's calls; None if they are to run."""
    return _recorder.get() if active else None


@contextmanager
def recording(recorder: Recorder) -> Generator[None]:
    """A context manager: passes this thread's calls to `recorder`."""
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
    """In a child process only its one thread can be recording."""
    global active
    active = seen_by_host_code.value = _own.get()


forking.in_child(_in_child)


def made(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Call `function(*args, **kwargs)` for a user.

    If a graph records, the graph makes the call, so that it can repeat it with other values of its variables. A call
    inside a call belongs to the outer one.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        function = unwatched(dynamo, function)
    recorder = _recorder.get() if active else None
    if recorder is None or _inside.get():
        return function(*args, **kwargs)
    token = _inside.set(True)
    try:
        return recorder.call(function, args, kwargs)
    finally:
        _inside.reset(token)
