"""Launches of one executable, by one thread at a time: the driver lets two threads at it neither launch nor change it.

The short way is a generator, which costs less than a lock: one that runs refuses a second thread, and an interrupt ends
it, so that it can never be left taken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from types import GeneratorType
from typing import Any, TypeAlias, cast

from .. import driver

_STREAMS = 64  # streams come and go; their handles are not ours to track

Call = partial[tuple[Any, ...]]
Short: TypeAlias = "GeneratorType[bool, None, None]"


class Turns:
    """Who may use an executable.

        with turns.lock:
            turns.hold()    # from here on, no launch is under way
            ...             # change it, or launch it
            turns.allow()   # the short way is open again

    `short` is the short way: each `next` of it launches in the current stream, and tells whether it did. ValueError
    where another thread is launching.
    """

    def __init__(self, context: Any, current: Callable[[int], int], index: int) -> None:
        self.lock = threading.Lock()
        self.calls: dict[int, Call] = {}  # the launch in each stream, as a function without arguments
        self._ready: dict[int, Call] = {}  # those that the short way may use now
        self._context, self._current, self._index = context, current, index
        self.short = self._launches()

    def call(self, executable: Any, stream: int) -> Call:
        """The launch in a stream. Needs `hold`."""
        made = self.calls.get(stream)
        if made is None:
            if len(self.calls) >= _STREAMS:
                self.calls.clear()
            cu = driver.api()
            made = self.calls[stream] = partial(cu.cuGraphLaunch, executable, cu.CUstream(stream))
        return made

    def hold(self) -> None:
        """Keep others from launching, once a launch under way is done. Needs `lock`."""
        self._ready.clear()
        while self.short.gi_running:
            time.sleep(0)

    def allow(self) -> None:
        """Open the short way to the streams that were launched in. An interrupt had ended it, perhaps."""
        if self.short.gi_frame is None:
            self.short = self._launches()
        self._ready.update(self.calls)

    def _launches(self) -> Short:
        cu = driver.api()
        success, free = driver.success(), cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
        capturing, context_now, context = cu.cuStreamIsCapturing, cu.cuCtxGetCurrent, self._context
        find, current, index, alone = self._ready.get, self._current, self._index, driver.device_count() == 1

        def launches() -> Generator[bool, None, None]:
            while True:
                stream = current(index)
                # The default stream is whose context is current, and cannot be captured; others can.
                usable = capturing(stream)[1] is free if stream else alone or context_now()[1] == context
                call = find(stream)
                yield usable and call is not None and call()[0] is success

        return cast("Short", launches())
