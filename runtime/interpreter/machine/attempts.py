"""A launch that runs again, from the same memory, while it has races in doubt (`checks/doubts.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..checks.doubts import Doubts
from ..checks.explore import EXPLORED
from ..checks.hazards import HazardError, RunReport
from ..checks.launches import Launches
from .memory import GlobalMemory
from .recorder import RECORDER

if TYPE_CHECKING:
    from .launch import Run

Bytes = npt.NDArray[np.uint8]

# bytes of writable memory that are copied; a launch with more has no doubts, as shadow memory takes enough
_MOST = 1 << 23


def is_small(memory: GlobalMemory) -> bool:
    """Return whether writable memory is small enough to be copied before each launch."""
    return sum(b.bytes.nbytes for b in memory.buffers.values() if b.writable) <= _MOST


class Before:
    """The state before a launch: what memory holds, and what a stream, an order and a recorder keep from launch to launch."""

    def __init__(self, memory: GlobalMemory, launches: Launches) -> None:
        self.memory = memory
        self.launches = launches
        self.kept: list[tuple[Bytes, Bytes]] = [
            (b.bytes, b.bytes.copy()) for b in memory.buffers.values() if b.writable
        ]
        self.next = memory.next
        self.last: Any = launches.last
        order, recorder = EXPLORED.get(), RECORDER.get()
        self.order: dict[str, Any] = {} if order is None else order.state()
        self.spans: int = 0 if recorder is None else recorder.count

    def restore(self) -> None:
        """Go back to this state."""
        for now, then in self.kept:
            now[...] = then
        for buffer in self.memory.buffers.values():
            if buffer.shadow is not None:
                vars(buffer.shadow).clear()  # otherwise it would stay in memory beside the next one
                buffer.shadow = None
        self.memory.next = self.next
        self.launches.last = self.last
        order, recorder = EXPLORED.get(), RECORDER.get()
        if order is not None:
            order.restore(self.order)
        if recorder is not None:
            recorder.forget(self.spans)


def in_attempts(
    make: Callable[[RunReport, Doubts], Run], doubts: Doubts, before: Before | None, report: RunReport
) -> RunReport:  # fmt: skip
    """Run what `make` gives until a run finds no new race in doubt, and fill `report` as that run does. Raises its error."""
    while True:
        doubts.begin()
        run = make(RunReport(quiet=report.quiet), doubts)
        error: BaseException | None = None
        try:
            run.run()
        except BaseException as found:
            error = found
        certain = bool(doubts.decided) and not run.reporter.warn  # a hazard that is an error needs no further run
        if (
            before is None
            or not (doubts.new or doubts.given_up)
            or certain
            or not isinstance(error, HazardError | None)
        ):
            return _settled(run, report, error)
        vars(run).clear()  # in cycles, what it holds would stay in memory beside the next run
        del run, error
        before.restore()


def _settled(run: Run, report: RunReport, error: BaseException | None) -> RunReport:
    """End with what a run has found."""
    try:
        if run.doubts.decided and isinstance(error, HazardError | None):
            run.doubts.report(run)  # raises where hazards are errors
        if error is not None:
            raise error
    finally:
        for field in fields(report):
            setattr(report, field.name, getattr(run.report, field.name))
        run.reporter.give_warnings()
    return report
