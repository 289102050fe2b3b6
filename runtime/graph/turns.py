"""Launches of one executable by one thread at a time, because the driver forbids two threads to launch or change it.

The fast path is a generator, which costs less than a lock: a running generator refuses a second thread, and an interrupt ends it,
so it can't stay locked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from types import GeneratorType
from typing import Any, TypeAlias, cast

from kernel_dsl import forking

from ..devices import driver

_STREAMS = 64  # programs make and destroy streams, so this can't keep all handles

Arguments: TypeAlias = "tuple[Any, Any]"
Short: TypeAlias = "GeneratorType[bool, None, None]"


class _Gate:
    """Whether a fast path may still be used."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = True


class Turns:
    """Gives one thread at a time the use of an executable.

        with turns.lock:
            turns.hold()    # from here on, no launch is under way
            ...             # change it, or launch it
            turns.allow()   # there is a fast path again

    `short` is the fast path: each `next` of it launches in the current stream. It ends if it can't launch, and after
    `hold`. It raises ValueError if another thread is launching.
    """

    def __init__(self, context: Any, current: Callable[[int], int], index: int) -> None:
        self.lock: forking.Lock = forking.lock()
        self._arguments: dict[int, Arguments] = {}  # by stream: the arguments of its launch
        self._current, self._index = current, index
        cu = driver.api()
        self._fixed = (
            *(current, index, context, driver.success(), cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE),
            *(cu.cuGraphLaunch, cu.cuStreamIsCapturing, cu.cuCtxGetCurrent if driver.device_count() > 1 else None),
        )
        self.allow()

    def stream(self) -> int:
        """The framework's current stream."""
        return self._current(self._index)

    def arguments(self, executable: Any, stream: int) -> Arguments:
        """The arguments of `cuGraphLaunch`. Needs `hold`."""
        made = self._arguments.get(stream)
        if made is None:
            if len(self._arguments) >= _STREAMS:
                self._arguments.clear()
            made = self._arguments[stream] = executable, driver.api().CUstream(stream)
        return made

    def forget(self) -> None:
        """Forget arguments of an old executable. Needs `hold`, or that nothing was launched yet."""
        self._arguments.clear()

    def hold(self) -> None:
        """End the fast path after a launch in progress. Needs `lock`."""
        self._gate.open = False
        # The generator can't be closed: Python crashes if another thread is running it.
        while self.short.gi_running and not driver.forked():  # after a fork the other thread is not in this process
            time.sleep(0)

    def allow(self) -> None:
        """Make a fast path for the streams of earlier launches. Needs `hold`."""
        self._gate = _Gate()
        self.short: Short = cast("Short", _launches(self._gate, self._arguments, *self._fixed))


def _launches(
    gate: _Gate,
    known: dict[int, Arguments],
    current: Callable[[int], int],
    index: int,
    context: Any,
    success: Any,
    free: Any,
    launch: Callable[..., Any],
    is_capturing: Callable[..., Any],
    context_now: Callable[[], Any] | None,
) -> Generator[bool, None, None]:
    """The fast path.

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
