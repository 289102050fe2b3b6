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
from ..checks.parted_shadow import memory_left
from .memory import GlobalMemory
from .recorder import RECORDER

if TYPE_CHECKING:
    from .launch import Run

Bytes = npt.NDArray[np.uint8]

_SMALL = 1 << 23  # bytes of a copy that shadow memory always has room beside
_MOST = 1 << 30  # the most bytes that are copied before a launch


def prepared(memory: GlobalMemory, launches: Launches, doubts: bool) -> tuple[Doubts, Before | None]:
    """Return the doubts of a launch, and the state before it unless no race may be in doubt."""
    size = memory.writable_bytes if doubts else 0
    if not doubts or size > _MOST:
        return Doubts(False), None
    left = memory_left() if size > _SMALL else None
    if left is not None and 8 * size > left:  # shadow memory takes up to 6 bytes a byte
        return Doubts(False), None
    before = Before(memory, launches)
    return Doubts(True, before.kept.clear if size > _SMALL else None), before


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
        if before is None or not doubts.again or certain or not isinstance(error, HazardError | None):
            return _settled(run, report, error)
        vars(run).clear()  # in cycles, what it holds would stay in memory beside the next run
        del run, error
        before.restore()
        if doubts.given_up:  # the next run is the last
            before.kept.clear()
            before = None


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
