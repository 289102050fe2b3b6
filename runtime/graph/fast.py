"""Fast paths of a replay: functions without arguments that launch an executable in the current stream, one thread at a time.

The driver forbids two threads to launch or change an executable at once. Host code (`lowering/host_replay.py`) marks its state
while it launches. Where there is none, a generator launches, which costs less than a lock: a running generator refuses a second
thread, and an interrupt ends it, so it can't stay locked.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from types import GeneratorType
from typing import Any, Protocol, TypeAlias

from ..devices import driver

STREAMS = 64  # programs make and destroy streams, so a path can't keep all handles
_METH_NOARGS = 4  # CPython's flag of a builtin function without arguments
_log = logging.getLogger("kernel_dsl")

Arguments: TypeAlias = "tuple[Any, Any]"
Launch: TypeAlias = "Callable[[], bool]"

# What makes host code, and gives its address; it asks for the address of each C function that host code calls.
# `kernel_dsl/graphs.py` sets it, as the runtime does not know lowering. Without it generators launch.
host_code: Callable[[Callable[[str], int]], int] | None = None


@dataclass(frozen=True)
class ReplayPlace:
    """Where replays launch. `current`: the framework's function that gives the current stream of a GPU by its index."""

    current: Callable[[int], int]
    index: int
    context: Any  # the one in which the default stream is launched; None if there is no other GPU


class ReplayPath(Protocol):
    """A fast path. `launch` returns whether it launched. It raises ValueError, or returns False, if another thread launches."""

    launch: Launch

    def close(self) -> None:
        """Launch no more after a launch that is under way."""
        ...

    def running(self) -> bool:
        """Whether a launch is under way."""
        ...


def never() -> bool:
    """The fast path of what has none."""
    return False


def paths(place: ReplayPlace, known: Mapping[int, Arguments]) -> Callable[[], ReplayPath]:
    """What makes fast paths for streams whose arguments of `cuGraphLaunch` are known."""
    method = _method(host_code) if host_code else None
    if method is None:
        return partial(GeneratedReplay, *_fixed(place, known))
    return partial(NativeReplay, _state(place, known), (place.current, place.index, method))


# --- host code ------------------------------------------------------------------------------------


class ReplayState(ctypes.Structure):
    """What host code reads: `%State` of `lowering/host_replay.py`."""

    _fields_ = (
        ("open", ctypes.c_uint8),
        ("busy", ctypes.c_uint8),
        ("executable", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("current", ctypes.c_void_p),  # objects of Python, which `ReplayMemory` keeps
        ("index", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("streams", ctypes.c_uint64 * STREAMS),
    )


_OPEN, _BUSY = 0, 1  # places of its first bytes


class _BuiltinMethod(ctypes.Structure):
    """CPython's `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class ReplayMemory(bytearray):
    """A state, and the objects whose addresses it or the builtin function holds, which owns it."""

    kept: tuple[Callable[[int], int], int, _BuiltinMethod]


@cache
def _method(make: Callable[[Callable[[str], int]], int]) -> _BuiltinMethod | None:
    """The description of host code as a method; None where it can't be made or used."""
    if sys.platform != "linux" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        code = make(driver.address)
    except Exception as error:  # no memory may be executable, or the driver is another one
        _log.info("replays are launched without host code: %s", error)
        return None
    return _BuiltinMethod(b"replay", code, _METH_NOARGS, None)


@cache
def _new() -> Callable[[_BuiltinMethod, ReplayMemory], Launch]:
    """CPython's function that makes a builtin function of a method and its `self`. It keeps `self` alive, and no method."""
    types = ctypes.POINTER(_BuiltinMethod), ctypes.py_object
    return ctypes.PYFUNCTYPE(ctypes.py_object, *types)(driver.address("PyCFunction_New"))


def _state(place: ReplayPlace, known: Mapping[int, Arguments]) -> bytes:
    """The state of a fast path that is open."""
    executable = next((int(executable) for executable, _ in known.values()), None)
    context = None if place.context is None else int(place.context)
    streams = (ctypes.c_uint64 * STREAMS)(*known)
    return bytes(ReplayState(1, 0, executable, context, id(place.current), id(place.index), len(known), streams))


class NativeReplay:
    """A fast path of host code."""

    def __init__(self, state: bytes, kept: tuple[Callable[[int], int], int, _BuiltinMethod]) -> None:
        self._memory: ReplayMemory = ReplayMemory(state)
        self._memory.kept = kept
        self.launch: Launch = _new()(kept[2], self._memory)

    def close(self) -> None:
        self._memory[_OPEN] = 0

    def running(self) -> bool:
        return self._memory[_BUSY] != 0


# --- a generator ----------------------------------------------------------------------------------


class GeneratedReplay:
    """A fast path of a generator."""

    def __init__(self, *fixed: Any) -> None:
        self.open = True
        self._launches: GeneratorType[bool, None, None] = _launches(self, *fixed)
        self.launch: Launch = partial(next, self._launches, False)  # False after its end

    def close(self) -> None:
        # The generator itself can't be closed: Python crashes if another thread is running it.
        self.open = False

    def running(self) -> bool:
        return self._launches.gi_running


def _fixed(place: ReplayPlace, known: Mapping[int, Arguments]) -> tuple[Any, ...]:
    """The arguments of `_launches` after its first."""
    cu = driver.api()
    context_now = None if place.context is None else cu.cuCtxGetCurrent
    free = cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    launch = driver.success(), cu.cuGraphLaunch
    return (dict(known), place.current, place.index, place.context, context_now, free, cu.cuStreamIsCapturing, *launch)


def _launches(
    gate: GeneratedReplay,
    known: Mapping[int, Arguments],
    current: Callable[[int], int],
    index: int,
    context: Any,
    context_now: Callable[[], Any] | None,
    free: Any,
    is_capturing: Callable[..., Any],
    success: Any,
    launch: Callable[..., Any],
) -> Any:
    """Launches one at a time. It ends if it can't launch, and when the gate is closed.

    All values of a launch are local variables; those of a stream are looked up when the stream changes.
    """
    stream = executable = handle = capturing = other_context = None
    while gate.open:
        now = current(index)
        if now != stream:
            if now not in known:
                return
            stream, (executable, handle) = now, known[now]
            # The default stream belongs to the current context and can't be captured; other streams can.
            capturing, other_context = (is_capturing, None) if stream else (None, context_now)
        if capturing is not None and capturing(handle)[1] is not free:
            return
        if other_context is not None and other_context()[1] != context:
            return
        if launch(executable, handle)[0] is not success:
            return
        yield True
