"""Launches of one executable by one thread at a time, because the driver forbids two threads to launch or change it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kernel_dsl import forking

from ..devices import driver
from .fast import STREAMS, Arguments, Launch, ReplayPath, ReplayPlace, paths


class Turns:
    """Gives one thread at a time the use of an executable.

        with turns.lock:
            turns.hold()    # from here on, no launch is under way
            ...             # change it, or launch it
            turns.allow()   # there is a fast path again

    `launch` is the fast path: it launches in the current stream, and returns whether it did. It can't after `hold`.
    It raises ValueError, or returns False, if another thread is launching.
    """

    def __init__(self, context: Any, current: Callable[[int], int], index: int) -> None:
        self.lock: forking.Lock = forking.lock()
        self._arguments: dict[int, Arguments] = {}  # by stream: the arguments of its launch
        self._place = ReplayPlace(current, index, context if driver.device_count() > 1 else None)
        self._paths: Callable[[], ReplayPath] | None = None  # makes fast paths for these streams
        self.allow()

    def stream(self) -> int:
        """The framework's current stream."""
        return self._place.current(self._place.index)

    @property
    def launch(self) -> Launch:
        """The fast path until the next `hold`."""
        return self._path.launch

    def arguments(self, executable: Any, stream: int) -> Arguments:
        """The arguments of `cuGraphLaunch`. Needs `hold`."""
        made = self._arguments.get(stream)
        if made is None:
            if len(self._arguments) >= STREAMS:
                self._arguments.clear()
            made = self._arguments[stream] = executable, driver.api().CUstream(stream)
            self._paths = None
        return made

    def forget(self) -> None:
        """Forget arguments of an old executable. Needs `hold`, or that nothing was launched yet."""
        self._arguments.clear()
        self._paths = None

    def hold(self) -> None:
        """End the fast path after a launch in progress. Needs `lock`."""
        self._path.close()
        while self._path.running() and not driver.forked():  # after a fork the other thread is not in this process
            time.sleep(0)

    def allow(self) -> None:
        """Make a fast path for the streams of earlier launches. Needs `hold`."""
        if self._paths is None:
            self._paths = paths(self._place, self._arguments)
        self._path: ReplayPath = self._paths()
