"""Launches that overlap: programmatic dependent launch (PTX ISA 9.7.13.13, griddepcontrol).

A launch with that attribute may start when every block of the launch before has executed `launch_dependents` or ended.
Until a warp has passed `griddepcontrol.wait` (or has synchronised with one that has), its accesses are unordered with all
accesses of the launch before, those ahead of `launch_dependents` included. They are also unordered with the launches before
that one, if it executed `launch_dependents` ahead of its own wait, or never waited. A launch without the attribute follows all
launches before it. A launch that never executes `launch_dependents` has ended when the next one starts.

`Launches` is passed from launch to launch of a stream, or along a path of a graph:

    launches = Launches()
    for entry, params, early in ...:
        run(module, entry, params, ..., launches=launches, overlaps=early)

`Launches` identifies memory by the host's addresses of the arrays, so each launch may have its own `GlobalMemory` over the
same arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .kinds import HazardKind

if TYPE_CHECKING:
    from ..machine.group import Group
    from ..machine.launch import Run
    from .shadow_access import ShadowAccess

Array = npt.NDArray[Any]
WAITED: tuple[str] = ("grid",)  # the queue whose first clock is the end of the earlier launches
_FIX = "put griddepcontrol.wait before the first access to what the launch before writes or reads"


@dataclass(frozen=True)
class _Footprint:
    """The accesses of a launch to one array: `reads` and `writes` are (granules,), the site of an access + 1, or 0."""

    bytes: Array  # keeps the memory, so that no other array gets its addresses
    start: int
    granule: int
    reads: Array
    writes: Array


@dataclass
class _Record:
    """A launch that may still run when another starts."""

    name: str
    places: list[str]
    footprints: list[_Footprint]


@dataclass
class LaunchState:
    """The state of the last launch.

    It has the launches that may still run when it starts and after its wait, and what it executed.
    """

    at_start: list[_Record] = field(default_factory=list[_Record])
    after_wait: list[_Record] = field(default_factory=list[_Record])
    waited: bool = False
    triggered: bool = False
    early: bool = False  # whether some warp executed launch_dependents before it was ordered after a wait
    record: _Record | None = None


class Launches:
    """The launches of a stream, in order."""

    def __init__(self) -> None:
        self.last = LaunchState()

    def begin(self, overlaps: bool) -> LaunchState:
        """Return the state of the next launch. A launch that ends by a hazard leaves no record."""
        before, now = self.last, LaunchState()
        self.last = LaunchState()
        if overlaps:
            done = before.after_wait if before.waited else before.at_start
            now.after_wait = done
            now.at_start = done
            if before.triggered and before.record is not None:
                now.at_start = [before.record, *(before.at_start if before.early else before.after_wait)]
        return now

    def end(self, state: LaunchState, run: Run) -> None:
        """End a launch. Its accesses are kept if the next launch may start before its end."""
        if state.triggered:
            places = [run.reporter.place(ins) for ins in run.sites]
            state.record = _Record(run.reporter.kernel_name, places, _footprints(run))
        self.last = state


def _footprints(run: Run) -> list[_Footprint]:
    found: list[_Footprint] = []
    for buffer in run.memory.buffers.values():
        shadow = buffer.shadow
        if shadow is None or not shadow.granule or buffer.kind == "variable":
            continue
        reads, writes = shadow.places()
        reads = np.maximum(reads, shadow.was_read) if shadow.was_read is not None else reads
        if reads.any() or writes.any():
            found.append(_Footprint(buffer.bytes, _address(buffer.bytes), shadow.granule, reads, writes))
    return found


def _address(data: Array) -> int:
    return int(data.__array_interface__["data"][0])


def passed_wait(c: Group) -> None:
    """Execute griddepcontrol.wait: the earlier launches have ended, and their writes are visible."""
    run, clocks = c.batch.run, c.batch.clocks
    run.overlap.waited = True
    if clocks is None:
        return
    queue = clocks.queue(WAITED)
    rows = c.rows
    clocks.known[c.batch.row_team[rows], c.batch.row_agent[rows], :, queue] = 1


def triggered(c: Group) -> None:
    """Execute griddepcontrol.launch_dependents."""
    run, clocks = c.batch.run, c.batch.clocks
    run.overlap.triggered = True
    if clocks is not None:
        queue = clocks.queue(WAITED)
        known = clocks.known[c.batch.row_team[c.rows], c.batch.row_agent[c.rows], 0, queue]
        run.overlap.early |= bool((known == 0).any())


def check(shadow: Any, a: ShadowAccess, g: Array, rows: Array, writes: bool) -> None:
    """Report accesses to memory that an earlier launch, which may still run, accesses too."""
    state, run = a.c.batch.run.overlap, a.c.batch.run
    late = a.known[:, 0, a.c.batch.clocks.queue(WAITED)] if state.waited else np.zeros(len(a.known), np.uint32)
    known: Array = np.broadcast_to((late > 0)[rows], g.shape)
    for some, records in ((~known, state.at_start), (known, state.after_wait)):
        if not records or not some.any():
            continue
        at, row = g[some], np.broadcast_to(rows, g.shape)[some]
        for record in records:
            for mine in record.footprints:
                _conflicts(run, shadow, a, at, row, writes, record, mine)


def _conflicts(
    run: Any, shadow: Any, a: ShadowAccess, g: Array, row: Array, writes: bool, record: _Record, theirs: _Footprint
) -> None:  # fmt: skip
    offset = _address(shadow.buffer.bytes) - theirs.start
    first = (g * shadow.granule + offset) // theirs.granule
    last = ((g + 1) * shadow.granule - 1 + offset) // theirs.granule
    limit = len(theirs.writes)
    for step in range(int((last - first).max()) + 1):
        at = first + step
        inside = (at >= 0) & (at < limit) & (at <= last)
        at = np.clip(at, 0, limit - 1)
        for sites, before in ((theirs.writes, "written"), (theirs.reads, "read")):
            bad = inside & (sites[at] > 0)
            if not bad.any() or (before == "read" and not writes):
                continue
            hit = int(np.flatnonzero(bad)[0])
            now = "written" if writes else "read"
            what = f"{shadow.name(a, int(row[hit]), int(g[hit]))} is {now} while the launch before may still run"
            place = record.places[int(sites[at[hit]]) - 1]
            details = (f"{now} by {shadow.who(a, int(row[hit]))}", f"{before} by kernel '{record.name}' at {place}")
            run.reporter.hazard(HazardKind.RACE_LAUNCHES, what, a.ins, details, _FIX)
            return
