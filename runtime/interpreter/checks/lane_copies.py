"""Copies of one lane and accesses of another (PTX ISA 9.7.9.25.3, cp.async.wait_group and cp.async.bulk.wait_group).

A lane's wait orders its copies only before later accesses of the same lane. The agents of vector clocks are warps, so
they order the copies that a warp waited for before all later accesses of the warp. This module keeps the copies that a
warp has waited for since its lanes last synchronised. Only after bar.warp.sync, a barrier or an acquire may other lanes
access the bytes that cp.async wrote, or write the bytes that a bulk copy read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..ptx.module import Instruction
from .kinds import HazardKind

if TYPE_CHECKING:
    from ..machine.batch import Batch
    from ..machine.group import Group

Array = npt.NDArray[Any]
_FIX = "put bar.warp.sync, or a barrier of the block, between the wait and the access"
_OTHERS = ~np.eye(32, dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class LaneCopy:
    """One instruction's copies, by warps `rows` (n,) at `clock` (n,): each active lane copies `size` bytes from `start`
    (n, 32) on.
    """

    rows: Array
    clock: Array
    start: Array
    active: Array
    size: int
    ins: Instruction


@dataclass(frozen=True, slots=True)
class LaneSource:
    """The source of a lane's bulk copy: `size` bytes from `start` on, read as operation `clock` of a queue."""

    lane: int
    queue: int
    clock: int
    start: int
    size: int
    ins: Instruction


class LaneCopies:
    """The copies of a batch's warps. For each warp, it keeps the clock up to which the warp has waited, and that up to
    which its lanes have synchronised.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.copies: dict[Any, LaneCopy] = {}  # by lanes and bytes; a copy to the same bytes replaces the earlier one
        self.waited: Array = np.zeros(len(batch.row_agent), np.int64)
        self.synced: Array = np.zeros(len(batch.row_agent), np.int64)
        self.queue: Array = np.zeros(batch.cluster * batch.per_block, np.int64)  # of the copies of each agent
        self.sources: dict[int, dict[tuple[int, int], LaneSource]] = {}  # by warp: the newest by lane and start
        self.read: set[int] = set()  # warps that have waited for bulk copies since they synchronised
        self.open: bool = False  # whether a warp has waited for copies since it synchronised

    def issue(
        self, c: Group, when: tuple[Array, Array], start: Array, mask: Array | None, size: int, ins: Instruction
    ) -> None:
        """Record a copy by each warp of `c`, as operation `when` (queue, clock) of its queue."""
        queue, clock = when
        self.queue[self.batch.row_agent[c.rows]] = queue
        active = np.ones((c.n, 32), np.bool_) if mask is None else mask.copy()
        key = c.rows.tobytes(), active.tobytes(), start.tobytes(), size
        self.copies[key] = LaneCopy(c.rows.copy(), clock, start, active, size, ins)

    def wait(self, row: int, clock: int) -> None:
        """Record that the warp has waited for its copies up to `clock`."""
        self.waited[row] = max(int(self.waited[row]), clock)
        self.open = True

    def issue_source(self, row: int, source: LaneSource) -> None:
        self.sources.setdefault(row, {})[source.lane, source.start] = source

    def wait_sources(self, rows: Array) -> None:
        """Record that lanes of these warps have waited for their bulk copies."""
        self.read.update(row for row in rows.tolist() if row in self.sources)
        self.open |= bool(self.read)

    def sync(self, rows: Array) -> None:
        """Record that the lanes of these warps have synchronised. Copies may also have been ordered by the mbarrier
        where they arrived.
        """
        if not self.open and not self.copies:
            return
        batch = self.batch
        agent = batch.row_agent[rows]
        self.synced[rows] = batch.clocks.known[batch.row_team[rows], agent, 0, self.queue[agent]]
        self.copies = {k: x for k, x in self.copies.items() if (x.clock > self.synced[x.rows]).any()}
        for row in self.read.intersection(rows.tolist()):
            self.sources[row] = {k: x for k, x in self.sources[row].items() if not self._is_read(row, x)}
            self.read.discard(row)
        self.open = bool(self.read) or bool((self.waited > self.synced).any())

    def _is_read(self, row: int, source: LaneSource) -> bool:
        """Return whether the warp has waited until the copy has read its source."""
        known = self.batch.clocks.known[self.batch.row_team[row], self.batch.row_agent[row], 0]
        return int(known[source.queue]) >= source.clock

    def check(self, c: Group, first: Array, width: int, mask: Array | None, ins: Instruction, writes: bool) -> None:
        """Report a lane that accesses `width` bytes from `first` (rows, 32) on if another lane has copied to them."""
        rows = c.rows.tolist()
        for copy in self.copies.values():
            exposed = (self.synced[copy.rows] < copy.clock) & (copy.clock <= self.waited[copy.rows])
            for k in np.flatnonzero(exposed).tolist():
                if (row := int(copy.rows[k])) not in rows:
                    continue
                n = rows.index(row)
                mine, theirs = first[n][:, None], copy.start[k][None, :]
                bad = (mine < theirs + copy.size) & (theirs < mine + width) & copy.active[k][None, :] & _OTHERS
                if mask is not None:
                    bad &= mask[n][:, None]
                if bad.any():
                    lane, other = (int(i) for i in np.argwhere(bad)[0])
                    at = max(int(first[n, lane]), int(copy.start[k, other]))
                    self._report(row, at, (lane, other), (ins, copy.ins), writes)
                    return
        for row in self.read.intersection(rows) if writes else ():
            n = rows.index(row)
            active = np.ones(32, np.bool_) if mask is None else mask[n]
            for source in [x for x in self.sources[row].values() if self._is_read(row, x)]:
                bad = active & (first[n] < source.start + source.size) & (source.start < first[n] + width)
                bad[source.lane] = False
                if bad.any():
                    lane = int(np.argmax(bad))
                    at = max(int(first[n, lane]), source.start)
                    self._report(row, at, (lane, source.lane), (ins, source.ins), writes, True)
                    return

    def _report(
        self, row: int, at: int, lanes: tuple[int, int], both: tuple[Instruction, Instruction], writes: bool,
        source: bool = False,
    ) -> None:  # fmt: skip
        batch, run = self.batch, self.batch.run
        cta = batch.coordinates[int(batch.row_cta[row])]
        mine, theirs = (run.reporter.who(cta, int(batch.row_warp[row]), lane) for lane in lanes)
        ins, copied = both
        now = "written" if writes else "read"
        what = (
            f"{batch.shared.shadow.name_at(at)} is {now} after another lane of the warp copied {'from' if source else 'to'} it; "
            "a wait orders a lane's copies for that lane"
        )
        details = (f"{now} by {mine}", f"copied by {theirs}", f"copied at {run.reporter.place(copied)}")
        kind = HazardKind.REUSED_BEFORE_READ if source else HazardKind.RACE_SHARED
        run.reporter.hazard(kind, what, ins, details, _FIX, run.reporter.side(details[1], copied))
