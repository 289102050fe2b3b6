"""The fast path from a plain call to a launch, for tensors on the kernel's own GPU.

A kernel object owns a `FastCalls`, which a call asks first. If it has seen similar arguments before, it reads the
addresses, packs them, and makes one driver call. In all other cases, including all possible errors, it returns MISS.
Then the slow path (`runtime.call`) handles the call, and `learn` makes its fast path.

    result = fast(args, out, stream)
    if result is MISS:
        ...            # look at the arguments, compile, load, runtime.call
        fast.learn(args, out, loaded, structure)

`args` are the call's leaves: arrays and scalars, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from kernel_dsl import forking

from ..devices.streams import stream_handle
from ..errors import ArgumentTypeError
from . import recording
from .fast_plan import plan_fast
from .signature import SlowPathError, scan, signature_of
from .unroll import MISS, Run, first, unroll

__all__ = ["MISS", "FastCalls", "first", "signature_of"]

_RECENT = 4  # signatures that are tried one after another, before a table is used
_ALIKE = 4  # calls of one signature with different overlaps


class Forgets(Protocol):
    """An object that remembers calls."""

    def forget(self) -> None:
        """Send the next calls to the slow path."""
        ...


_every: forking.Living[Forgets] = forking.Living()


def forgets_in_child(calls: Forgets) -> None:
    """Let `calls` forget in children of this process."""
    _every.add(calls)


def _in_child() -> None:
    """Forget fast calls after a fork: the slow path then reports that CUDA can't be used, before a framework fails."""
    for calls in _every:
        calls.forget()


forking.in_child(_in_child)


class FastCalls:
    """The fast calls of one kernel object. Safe to use from several threads."""

    CAPACITY = 1024
    miss = MISS
    recording = recording  # for a caller that uses `latest` itself: it must not while a graph is recorded

    def __init__(self) -> None:
        self.forget()
        forgets_in_child(self)

    def forget(self) -> None:
        """Send the next calls to the slow path."""
        self._known: dict[Hashable, tuple[Run, ...]] = {}
        self._recent: tuple[Run, ...] = ()
        self._learned = 0
        self.latest: Run = _miss  # the function that did the last call

    def __call__(self, args: Sequence[Any], out: Any = None, stream: Any = None) -> Any:
        """The call's result if it has a fast path. Else MISS, and nothing was done."""
        if recording.active and recording.current() is not None:
            return MISS  # a graph takes this call
        if stream is not None:
            try:
                stream = stream_handle(stream)
            except ArgumentTypeError:
                return MISS  # the slow path raises the error at the user's line
        for run in self._recent:
            result = run(args, out, stream)
            if result is not MISS:
                self.latest = run
                return result
        return self._look_up(args, out, stream) if self._learned > _RECENT else MISS

    def _look_up(self, args: Sequence[Any], out: Any, stream: int | None) -> Any:
        key = _key(args, out)
        for run in self._known.get(key, ()) if key is not None else ():
            result = run(args, out, stream)
            if result is not MISS:
                self.latest = run
                self._recent = (run, *(r for r in self._recent if r is not run))[:_RECENT]
                return result
        return MISS

    def learn(
        self,
        args: Sequence[Any],
        out: Any,
        loaded: Any,
        structure: Callable[[list[Any]], Any] | None = None,
        fixed: Sequence[tuple[int, Any]] = (),
    ) -> None:
        """Remember that calls like this one run `loaded`.

        Does nothing if they have no fast path. `out`: the call's own, None, one array, or a list or tuple with an array
        for each output. `structure` makes the call's result from the list of outputs; `first` is the fastest. `fixed`: the
        position and value of each argument whose value decides the launch.
        """
        key = _key(args, out)
        plan = None if key is None else plan_fast(loaded, args, out)
        if plan is None:
            return
        run = _with_values(unroll(plan, structure), fixed)
        if len(self._known) >= self.CAPACITY:
            self._known.clear()
        self._known[key] = (run, *self._known.get(key, ()))[:_ALIKE]
        self._recent = (run, *self._recent)[:_RECENT]
        self.latest = run
        self._learned += 1


def _miss(args: Sequence[Any], out: Any, stream: int | None) -> Any:
    return MISS


def _with_values(run: Run, fixed: Sequence[tuple[int, Any]]) -> Run:
    """`run` for calls that have these values at these positions."""
    if not fixed:
        return run

    def checked(args: Sequence[Any], out: Any, stream: int | None) -> Any:
        for i, value in fixed:
            if i >= len(args) or type(args[i]) is not type(value) or args[i] != value:
                return MISS
        return run(args, out, stream)

    return checked


def _key(args: Sequence[Any], out: Any) -> Hashable:
    """The signature of arguments and given outputs, and the form of `out=`; None if there is no fast path."""
    form = type(out).__name__ if type(out) in (list, tuple) else "none" if out is None else "single"
    outs: Sequence[Any] = () if out is None else (out,) if form == "single" else out
    try:
        return (*scan((*args, *outs), []), form)
    except (SlowPathError, RuntimeError):  # RuntimeError: a tensor without memory
        return None
