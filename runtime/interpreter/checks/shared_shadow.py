"""The shadow of shared memory: it keeps the read clocks of every agent, so that no reader is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import overtaken
from .clocks import GENERIC, PERFORMED, earlier
from .columns import over_runs, rows_at, run_heads, runs
from .read_sets import ReadSets
from .shadow import AGENT, ATOMIC, CLOCK, SHARED_READ, Shadow, agent_of, row_of
from .shadow_access import ShadowAccess
from .wording import AccessSide, conflict

if TYPE_CHECKING:
    from ..machine.batch import Batch
    from ..machine.group import Group
    from ..ptx.module import Instruction

Array = npt.NDArray[Any]
_ONE_ROW = np.zeros((1, 1), np.int64)


class SharedShadow(Shadow):
    """The shadow of a batch's shared memory, with the read clocks of every agent."""

    def __init__(self, batch: Batch, size: int = 0, granule: int = 0) -> None:
        super().__init__(size or len(batch.shared.data), batch.run)
        self.batch = batch
        self.place: tuple[Any, ...] = "shared", batch.first
        self.generic: Array = np.zeros(0, np.bool_)
        self.hollow: Array | None = None  # the granules that a store of unwritten registers has left without data
        self.origin: str = ""  # the register of the last one
        self.reads: ReadSets = ReadSets(0, self.site_type, 0, self.check_room)
        # As fine as the program's narrowest access from the start: making granules finer later is costly.
        self.fit(granule or batch.run.program.shared_granule)

    def _made(self, n: int) -> ReadSets:
        reserved = self.batch.shared.reserved // self.granule
        if reserved and self.size == len(self.batch.shared.data):  # cleared before any warp runs
            cleared = np.arange(n).reshape(self.batch.blocks, -1)[:, :reserved]
            self.writes.put(cleared, self.writes.add(np.full(1, ATOMIC), 0, 0))
        return ReadSets(n, self.site_type, self.batch.cluster * self.batch.per_block, self.check_room)

    def read(
        self, c: Group, index: Array, size: int, count: int, mask: Array | None, ins: Instruction, form: Any
    ) -> None:  # fmt: skip
        self._check_lanes(c, index, size, count, mask, ins, False)
        super().read(c, index, size, count, mask, ins, form)

    def write(
        self, c: Group, index: Array, size: int, count: int, mask: Array | None, ins: Instruction,
        form: Any, same: Any = None,
    ) -> ShadowAccess | None:  # fmt: skip
        self._check_lanes(c, index, size, count, mask, ins, True)
        access = super().write(c, index, size, count, mask, ins, form, same)
        if c.frame.hollow is not None:
            self._empty(self.granules(index, size, count), mask, *c.frame.hollow)
        return access

    def _empty(self, g: Array, mask: Array | None, lanes: Array, origin: str) -> None:
        """Note that a store of registers that nobody has written leaves granules unwritten.

        `g`: (rows, 32) or (rows, 32, k). `lanes`: (rows, 32, elements) of the store. A granule of several elements counts as
        written if one of them is.
        """
        if mask is not None:
            lanes = lanes & mask[..., None]
        g = g if g.ndim == 3 else g[..., None]
        k, count = g.shape[2], lanes.shape[2]
        some = np.repeat(lanes, k // count, axis=2) if k > count else lanes.reshape(*lanes.shape[:2], k, -1).all(axis=3)
        if not some.any():
            return
        if self.hollow is None:
            self.hollow = np.zeros(self.count, np.bool_)
        self.hollow[g[some]] = True
        self.origin = origin

    def _filled(self, g: Array) -> None:
        if self.hollow is not None:
            self.hollow[g] = False

    def _refined(self, times: int) -> None:
        if self.hollow is not None:
            self.hollow = np.repeat(self.hollow, times)

    def unwritten(self, g: Array) -> Array:
        never = super().unwritten(g)
        return never if self.hollow is None else never | self.hollow[g]

    def check_initialised(self, a: ShadowAccess, g: Array, rows: Array, w: Array | None = None) -> None:
        if self.hollow is not None and (empty := self.hollow[g]).any():
            w = np.where(empty, 0, self.writes.get(g) if w is None else w)
        super().check_initialised(a, g, rows, w)

    def origin_of(self, what: str, granule: int) -> str:
        return self.origin if self.hollow is not None and self.hollow[granule] else what

    def atomic(self, c: Group, index: Array, size: int, mask: Array | None, ins: Instruction, form: Any) -> None:
        self._check_lanes(c, index, size, 1, mask, ins, True)
        super().atomic(c, index, size, mask, ins, form)

    def _check_lanes(
        self, c: Group, index: Array, size: int, count: int, mask: Array | None, ins: Instruction, writes: bool
    ) -> None:  # fmt: skip
        copies = self.batch.clocks.lane_copies
        if copies.open:
            copies.check(c, np.broadcast_to(index * size, (c.n, 32)), size * count, mask, ins, writes)

    def note_read(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        if a.c.n > 1 and not a.queue and self._note_alike(a, g, rows):
            return
        reads, mine = self.reads, self.epoch(a)
        while True:
            numbers = reads.get(g)
            at = run_heads(numbers, rows)
            had, row = (
                runs(numbers, rows) if at is None else (numbers.reshape(-1)[at], rows_at(rows, numbers.shape, at))
            )
            before, now = reads.r[had], mine[row]
            if a.queue:
                now = now | SHARED_READ
            else:
                other = (before != 0) & ((agent_of(before) != a.agent[row]) | (before >= SHARED_READ))
                now = np.where(other, now | SHARED_READ, now)
                if np.array_equal(now, before) and (reads.site[had] == a.site).all():
                    return  # a loop reads the same granules again
            made = over_runs(
                reads.with_reader(had, now, a.agent[row], a.clock[row], a.site, a.reach), at, numbers.shape
            )
            reads.put(g, made)
            if a.c.n == 1:
                return
            lost = reads.get(g) != made
            if not lost.any():
                return
            g, rows = g[lost], np.broadcast_to(rows, g.shape)[lost]
            missing = self._missing(a, reads.get(g), rows)  # a warp's lanes may name a granule twice
            if not missing.any():
                return
            g, rows = g[missing], rows[missing]

    def _note_alike(self, a: ShadowAccess, g: Array, rows: Array) -> bool:
        """Record warps that read the same granules together; False if they overlap in another way, or not at all."""
        if g.ndim == 1:
            count = int(rows[-1]) + 1
            if len(g) % count or (rows.reshape(count, -1) != np.arange(count)[:, None]).any():
                return False  # the warps read different numbers of granules
            g = g.reshape(count, -1)
        found = alike(g) if len(g) > 1 else None
        if found is None:
            return False
        reads, (lead, members) = self.reads, found
        g, rows = g[lead], np.arange(len(lead))[:, None]
        numbers = reads.get(g)
        at = run_heads(numbers, rows)
        had, row = runs(numbers, rows) if at is None else (numbers.reshape(-1)[at], rows_at(rows, numbers.shape, at))
        agent, clock = a.agent[members][:, row], a.clock[members][:, row]
        now = self.epoch(a)[lead][row] | SHARED_READ
        known = (reads.r[had] == now).all() and (reads.site[had] == a.site).all()
        if known and (reads.clocks[had, agent] == clock).all():
            return True  # a loop reads the same granules again
        made = over_runs(reads.with_reader(had, now, agent, clock, a.site, a.reach), at, numbers.shape)
        reads.put(g, made)
        numbers = reads.get(g)
        if (numbers == made).all():
            return True
        row = np.repeat(rows, g.shape[1])  # a warp's lanes may name a granule twice
        there = reads.clocks[numbers.reshape(-1), a.agent[members][:, row]] == a.clock[members][:, row]
        return bool(there.all())

    def _missing(self, a: ShadowAccess, numbers: Array, rows: Array) -> Array:
        """Return which sets (n,) lack the reader of their row in `rows`."""
        if a.queue:
            return self.reads.queues[numbers, a.agent[rows] - self.reads.agents] != a.clock[rows]
        return self.reads.clocks[numbers, a.agent[rows]] != a.clock[rows]

    def check_readers(self, a: ShadowAccess, g: Array, rows: Array, r: Array) -> None:
        if self._judge(r, rows, lambda n, of: self._unseen(a, n, of)) is None:
            return
        reads = self.reads
        epochs, row = reads.r[r], np.broadcast_to(rows, g.shape)
        me, known = a.agent[row], a.known[row, 0]
        for agent in range(reads.agents):
            clock = reads.clocks[r, agent]
            bad = (clock > known[..., agent]) & (me != agent)
            if a.strong:
                bad &= (epochs & ATOMIC) == 0
            if bad.any() and self._report_reader(a, g, row, bad, agent, clock, reads.site[r]):
                return
        for queue in range(reads.agents, reads.agents + reads.queues.shape[1]):
            clock = reads.queues[r, queue - reads.agents]
            if not clock.any():
                continue
            bad = (clock > known[..., queue]) & ((me != queue) | (clock != a.clock[row]))
            if bad.any():
                self._report_reader(a, g, row, bad, queue, clock, reads.queue_sites[r, queue - reads.agents])
                return

    def _unseen(self, a: ShadowAccess, numbers: Array, rows: Array) -> Array | None:
        """Return which elements have readers that the access is not ordered after; None if there are none."""
        reads = self.reads
        epochs = reads.r[numbers]
        row: Array = np.broadcast_to(rows, numbers.shape)
        need = (epochs != 0) & ((agent_of(epochs) != a.agent[row]) | (epochs >= SHARED_READ))
        if a.strong:
            need &= (epochs & ATOMIC == 0) | (epochs >= SHARED_READ)
        if not need.any():
            return None
        row, numbers = row[need], numbers[need]
        me, n = a.agent[row], np.arange(len(row))
        warps, queues = reads.late(numbers, a.known[row, 0])
        if not a.queue:
            warps[n, me] = False
        elif int(me.max()) - reads.agents < queues.shape[1]:
            queues[n, me - reads.agents] &= reads.queues[numbers, me - reads.agents] != a.clock[row]
        if a.strong:
            warps &= (reads.r[numbers] & ATOMIC == 0)[:, None]
        need[need] = warps.any(axis=1) | queues.any(axis=1)
        return need if need.any() else None

    def _report_reader(
        self, a: ShadowAccess, g: Array, row: Array, bad: Array, agent: int, clock: Array, sites: Array
    ) -> bool:
        """Report a reader that a write is not ordered after. Return False if all such reads are in doubt."""
        epochs = (np.int64(agent) << np.int64(32)) | clock.astype(np.int64)
        bad = self.run.doubts.put_off(self, a, g, row, bad, epochs, sites, True)
        if bad.any():
            where = tuple(int(i[0]) for i in np.nonzero(bad))
            conflict(self, a, int(row[where]), int(g[where]), int(epochs[where]), int(sites[where]), True, True)
        return bool(bad.any())

    def on_read(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        if (
            a.proxy
            and self.hollow is None
            and self.strong.before is None
            and not a.strong
            and self._all_follow(a, *runs(self.writes.get(g), rows), written=True)
        ):
            self.note_read(a, g, rows)
            return
        super().on_read(a, g, rows)
        if a.proxy:
            self._check_proxy(a, g, rows)

    def on_write(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        if a.proxy:
            self._check_proxy(a, g, rows, True)
            self._check_performed(a, g, rows)
        super().on_write(a, g, rows)
        self._filled(g)

    def write_spans(self, a: ShadowAccess, starts: Array, count: int) -> bool:
        """Do `on_write` for an access whose row i writes `count` granules from `starts[i]` on; the rows do not overlap.

        Copies of whole tiles use this. Return False, and record nothing, if there may be something to report.
        """
        g, rows = starts[:, None] + np.arange(count), np.arange(len(starts))[:, None]
        if self.strong.before is not None or not self._all_follow(a, *runs(self.writes.get(g), rows)):
            return False
        if not self.reads.blank:
            numbers, row = runs(self.reads.get(g), rows)
            read = numbers != 0
            if read.any():
                if any(late.any() for late in self.reads.late(numbers[read], self._seen(a, row[read]))):
                    return False
                self.reads.clear(g)
        self.writes.put(g, self.writes.of(self.epoch(a), a.site, a.reach)[:, None])
        self._filled(g)
        return True

    def write_span(self, a: ShadowAccess, span: slice) -> None:
        """Do `on_write` for an access of one row to adjacent granules."""
        if not self.write_spans(a, np.array([span.start]), span.stop - span.start):
            self.on_write(a, row_of(span), _ONE_ROW)

    def _all_follow(self, a: ShadowAccess, numbers: Array, rows: Array, written: bool = False) -> bool:
        """Return whether the access is ordered after the writes `numbers` (n,) and sees them.

        `written`: return False, too, if a granule has no write.
        """
        if not numbers.all():
            if written:
                return False
            rows, numbers = rows[numbers != 0], numbers[numbers != 0]
            if not len(numbers):
                return True
        epoch = self.writes.epoch[numbers]
        theirs, then, mine = agent_of(epoch), epoch & CLOCK, a.agent[rows]
        other = theirs != mine
        late = a.known[rows, 0, theirs] < then
        race = other | (then != a.clock[rows]) if a.queue else other
        if a.strong:
            race &= (epoch & ATOMIC) == 0
        if (race & late).any():
            return False
        if not a.proxy:
            return True
        return not (other & self._generic()[theirs] & (a.known[rows, 1, theirs] < then)).any()

    def _check_proxy(self, a: ShadowAccess, g: Array, rows: Array, writes: bool = False) -> None:
        """Report generic writes before an asynchronous access if no proxy fence is between them."""
        numbers = self.writes.get(g)
        bad = self._judge(numbers, rows, lambda n, of: self._missed(a, self.writes.epoch[n], of))
        if bad is None:
            return
        epochs, sites = self.writes.epoch[numbers], self.writes.site[numbers]
        if writes:
            self.report_writes(a, g, rows, bad, epochs, sites, True)
        else:
            self.report(a, g, rows, bad, epochs, sites, False, fence=True)

    def _seen(self, a: ShadowAccess, rows: Array) -> Array:
        """Return the clocks (n, columns) of the reads that a write by the async proxy, in `rows` (n,), comes after."""
        known = a.known[rows, GENERIC]
        if self.batch.clocks.planes > PERFORMED:
            warps = self.batch.clocks.agents
            known = np.concatenate([a.known[rows, PERFORMED, :warps], known[:, warps:]], axis=1)
        return known

    def _check_performed(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        """Report lanes' reads that may not have taken place before an asynchronous write, though a barrier is between them."""
        clocks, reads = self.batch.clocks, self.reads
        if clocks.planes <= PERFORMED or reads.blank:
            return
        bad = self._judge(reads.get(g), rows, lambda n, of: self._lingering(a, n, of))
        if bad is None:
            return
        numbers = reads.get(g)
        if not overtaken.without_used(self.batch.run, bad, reads.site[numbers]).any():
            return
        row: Array = np.broadcast_to(rows, g.shape)
        where = tuple(int(i[0]) for i in np.nonzero(bad))
        number, known = numbers[where], a.known[row[where]]
        late = self._late(reads.clocks[number], known)
        agent = int(np.flatnonzero(late)[0])
        epoch = (agent << 32) | int(reads.clocks[number, agent])
        conflict(self, a, int(row[where]), int(g[where]), epoch, int(reads.site[number]), True, True, fence=True)

    def _lingering(self, a: ShadowAccess, numbers: Array, rows: Array) -> Array | None:
        """Return which sets of readers have some that are ordered before the access and may still read; None if none."""
        row: Array = np.broadcast_to(rows, numbers.shape)
        late: Array = np.any(self._late(self.reads.clocks[numbers], a.known[row]), axis=-1)
        return late if late.any() else None

    def _late(self, clocks: Array, known: Array) -> Array:
        """Return which warps' reads (..., agents) are known to what knows `known` (..., planes, columns), but not performed."""
        warps = clocks.shape[-1]
        return (clocks > known[..., PERFORMED, :warps]) & (clocks <= known[..., GENERIC, :warps])

    def _missed(self, a: ShadowAccess, epochs: Array, rows: Array) -> Array | None:
        """Return which `epochs` belong to generic writes that no proxy fence has made visible to the access; None if none."""
        agent = agent_of(epochs)
        generic = (epochs != 0) & (agent != a.agent[rows]) & self._generic()[agent]
        if not generic.any():
            return None
        row: Array = np.broadcast_to(rows, epochs.shape)
        generic &= a.known[row, 1, np.where(generic, agent, 0)] < (epochs & CLOCK)
        return generic if generic.any() else None

    def _generic(self) -> Array:
        """Return for each agent whether its writes go through the generic proxy: those of a warp, or of its cp.async."""
        clocks = self.batch.clocks
        count = clocks.agents + len(clocks.queues)
        if len(self.generic) != count:
            self.generic = np.array([True] * clocks.agents + [key[0] == "cp.async" for key in clocks.queues])
        return self.generic

    def far(self, a: ShadowAccess, epochs: Array, rows: Array, reach: Array) -> Array:
        block = self.batch.per_block
        return (reach >= 2) & (agent_of(epochs) // block != a.agent[rows] // block)

    def is_queue(self, agent: Array) -> Array:
        return agent >= self.batch.clocks.agents

    def never_fenced(self, a: ShadowAccess, row: int, epoch: int) -> bool:
        """Return whether the warp has executed no proxy fence since its write."""
        agent = (epoch >> 32) & int(AGENT)
        fenced = self.batch.clocks.known[int(a.team[row]), agent, 1, agent]
        return int(fenced) < epoch & int(CLOCK)

    def who(self, a: ShadowAccess, row: int) -> str:
        warp = int(a.c.rows[row])
        cta = self.batch.coordinates[int(self.batch.row_cta[warp])]
        return self.batch.run.reporter.who(cta, int(self.batch.row_warp[warp]))

    def name(self, a: ShadowAccess, row: int, granule: int) -> str:
        return self.name_at(granule * self.granule)

    def name_at(self, byte: int) -> str:
        offset, run = byte % self.batch.shared.stride, self.batch.run
        return run.reporter.shared_name(offset, run.program.dynamic_offset, run.program.shared_offsets)

    def side(self, a: ShadowAccess, row: int, epoch: int, site: int, writes: bool) -> AccessSide:
        agent = (epoch >> 32) & int(AGENT)
        return self.batch.run.side(self.batch, int(a.team[row]), agent, site, True)


def alike(g: Array) -> tuple[Array, Array] | None:
    """Return (the first row of each class, the rows (most, classes) of each class) if every row of `g` is of a class of equal
    rows, and a class has two or more. A shorter class repeats its first row.
    """
    if (g == g[0]).all():
        return np.zeros(1, np.int64), np.arange(len(g))[:, None]
    _, lead, of = np.unique(g[:, 0], return_index=True, return_inverse=True)
    if len(lead) == len(g) or (g != g[lead[of]]).any():
        return None
    turn = earlier(of)
    members: Array = np.broadcast_to(lead, (int(turn.max()) + 1, len(lead))).copy()
    members[turn, of] = np.arange(len(g))
    return lead, members
