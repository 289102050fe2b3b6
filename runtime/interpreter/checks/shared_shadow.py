"""The shadow of shared memory: full read clocks of every agent, so that no reader is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .shadow import AGENT, ATOMIC, CLOCK, SHARED_READ, Shadow, ShadowAccess, agent_of, row_of
from .wording import AccessSide, conflict

if TYPE_CHECKING:
    from ..machine.batch import Batch

Array = npt.NDArray[Any]
_ONE_ROW = np.zeros((1, 1), np.int64)


class SharedShadow(Shadow):
    """Shared memory of a batch: full read clocks of every agent, so that no reader is forgotten."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(len(batch.shared.data), batch.run)
        self.batch = batch
        self.place = "shared", batch.first
        self.table: Array = np.zeros((0, 0), np.uint32)
        self.readers: Array = np.zeros(batch.cluster * batch.per_block, np.bool_)  # warps with entries in the table
        # As fine as the program's narrowest access from the start: making granules finer later is costly.
        self.fit(batch.run.program.shared_granule)
        self.generic: Array = np.zeros(0, np.bool_)
        self.queue_reads: dict[int, Array] = {}
        self.queue_sites: dict[int, Array] = {}

    def _made(self, n: int) -> None:
        self.table = np.zeros((self.batch.cluster * self.batch.per_block, n), np.uint32)
        self.r, self.ri = np.zeros(n, np.int64), np.zeros(n, self.site_type)
        reserved = self.batch.shared.reserved // self.granule
        if reserved:  # cleared before all that runs
            self.w.reshape(self.batch.blocks, -1)[:, :reserved] = ATOMIC

    def _refined(self, times: int) -> None:
        self.table = np.repeat(self.table, times, axis=1)
        for reads in (self.queue_reads, self.queue_sites):
            for queue in reads:
                reads[queue] = np.repeat(reads[queue], times)

    def note_read(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        agent = a.agent[rows]
        if int(a.agent[0]) >= len(self.table):
            self._note_queue(a, g, rows)
            return
        prev = self.r[g]
        mine = self.epoch(a)[rows]
        other = (prev != 0) & ((agent_of(prev) != agent) | (prev >= SHARED_READ))
        if other.any():
            mine = np.where(other, mine | SHARED_READ, mine)
        self.r[g] = mine
        self.ri[g] = a.site
        self.readers[a.agent] = True
        self.table[agent, g] = a.clock[rows]

    def _note_queue(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        """Reads by an asynchronous queue (one queue an access)."""
        queue = int(a.agent[0])
        if queue not in self.queue_reads:
            self.queue_reads[queue] = np.zeros(len(self.w), np.uint32)
            self.queue_sites[queue] = np.zeros(len(self.w), np.int32)
        self.queue_reads[queue][g] = np.broadcast_to(a.clock[rows], g.shape)
        self.queue_sites[queue][g] = a.site
        self.r[g] = self.epoch(a)[rows] | SHARED_READ

    def check_readers(self, a: ShadowAccess, g: Array, rows: Array, r: Array) -> None:
        mine = a.agent[rows]
        need = (r != 0) & ((agent_of(r) != mine) | (r >= SHARED_READ))
        if a.strong:
            need &= (r & ATOMIC == 0) | (r >= SHARED_READ)
        if not need.any():
            return
        at = np.nonzero(need)
        row = np.broadcast_to(rows, g.shape)[at]
        some = g[at]
        me = a.agent[row]
        known = a.known[row, 0]
        for agent in range(len(self.table)):
            clock = self.table[agent, some]
            bad = (clock > known[:, agent]) & (me != agent)
            if a.strong:
                bad &= (r[at] & ATOMIC) == 0
            if bad.any():
                self._report_reader(a, at, bad, g, rows, agent, int(clock[bad][0]), self.ri)
                return
        for queue, reads in self.queue_reads.items():
            clock = reads[some]
            bad = (clock > known[:, queue]) & ((me != queue) | (clock != a.clock[row]))
            if bad.any():
                sites = self.queue_sites[queue]
                self._report_reader(a, at, bad, g, rows, queue, int(clock[bad][0]), sites)
                return

    def _report_reader(
        self, a: ShadowAccess, at: Any, bad: Array, g: Array, rows: Array, agent: int, clock: int, sites: Array
    ) -> None:  # fmt: skip
        where = tuple(int(i[bad][0]) for i in at)
        granule = int(g[where])
        row = int(np.broadcast_to(rows, g.shape)[where])
        conflict(self, a, row, granule, (agent << 32) | clock, int(sites[granule]), True, True)

    def on_read(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        super().on_read(a, g, rows)
        if a.proxy:
            self._check_proxy(a, g, rows)
        if a.strong and self.batch.run.program.narrow:
            self.strong.reached(self, "r")[g] = a.reach

    def on_write(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        if a.proxy:
            self._check_proxy(a, g, rows, True)
        super().on_write(a, g, rows)
        if a.strong and self.batch.run.program.narrow:
            self.strong.reached(self, "w")[g] = a.reach

    def write_span(self, a: ShadowAccess, span: slice) -> None:
        """`on_write` of one row of granules that follow each other, as a copy of a whole tile writes them.

        Most such copies find one earlier write, of one epoch, and readers that all are known: that is told from one granule
        and from the greatest clock of each reader. Everything else is looked at granule by granule.
        """
        w = self.w[span]
        if (
            self.strong.before is not None
            or not (w == w[0]).all()
            or self._may_be_read(a, span)
            or not self._follows(a, int(w[0]))
        ):
            self.on_write(a, row_of(span), _ONE_ROW)
            return
        self.r[span] = 0
        self.w[span] = self.epoch(a)[0]
        self.wi[span] = a.site

    def _follows(self, a: ShadowAccess, epoch: int) -> bool:
        """Whether the access, of one row, is ordered after a write and sees it: `unordered` and `_missed` of one epoch."""
        if not epoch:
            return True
        agent, clock, me = (epoch >> 32) & int(AGENT), epoch & int(CLOCK), int(a.agent[0])
        other = agent != me or (a.queue and clock != int(a.clock[0]))
        if other and not (a.strong and epoch & int(ATOMIC)) and a.known[0, 0, agent] < clock:
            return False
        return not (a.proxy and agent != me and self._generic()[agent] and a.known[0, 1, agent] < clock)

    def _may_be_read(self, a: ShadowAccess, span: slice) -> bool:
        """Whether a stretch may have readers that the access does not know of."""
        if not self.r[span].any():
            return False
        known = a.known[0, 0]
        late = self.table[:, span].max(axis=1) > known[: len(self.table)]
        if late.any():
            return True
        return any(int(reads[span].max()) > known[queue] for queue, reads in self.queue_reads.items())

    def write_spans(self, starts: Array, count: int, agent: Array, clock: Array, known: Array, site: int) -> bool:
        """`write_span` of copies (n,) to `count` granules each from `starts`, which don't overlap.

        Copy i is of queue `agent[i]` with `clock[i]`, and its issuer knows `known[i]` (2, columns). False, with nothing
        noted, where one has something to report, or must be looked at granule by granule.
        """
        at = starts[:, None] + np.arange(count)
        w = self.w[at]
        first = w[:, 0]
        if not (w == first[:, None]).all() or not self._all_follow(first, agent, clock, known):
            return False
        read = np.flatnonzero(self.r[at].any(axis=1))
        if len(read) and self._any_late(at[read], known[read, 0]):
            return False
        self.r[at] = 0
        self.w[at] = ((agent << 32) | clock)[:, None]
        self.wi[at] = site
        return True

    def _all_follow(self, epoch: Array, agent: Array, clock: Array, known: Array) -> bool:
        """`_follows` of each copy."""
        if not epoch.any():
            return True
        theirs, then, n = agent_of(epoch), epoch & CLOCK, np.arange(len(epoch))
        theirs = np.where(epoch == 0, 0, theirs)
        race = ((theirs != agent) | (then != clock)) & (known[n, 0, theirs] < then)
        missed = (theirs != agent) & self._generic()[theirs] & (known[n, 1, theirs] < then)
        return not ((epoch != 0) & (race | missed)).any()

    def _any_late(self, at: Array, known: Array) -> bool:
        """Whether some stretch (n, k) has readers that its writer, which knows (n, columns), does not know of."""
        for agent in np.flatnonzero(self.readers):
            if (self.table[agent][at].max(axis=1) > known[:, agent]).any():
                return True
        return any((reads[at].max(axis=1) > known[:, queue]).any() for queue, reads in self.queue_reads.items())

    def _check_proxy(self, a: ShadowAccess, g: Array, rows: Array, writes: bool = False) -> None:
        """Generic writes that an asynchronous access would miss, or come after, for want of a proxy fence."""
        epochs = self.w[g]
        bad = self._missed(a, epochs, rows)
        if not bad.any():
            return
        if writes:
            self.report_writes(a, g, rows, bad, epochs, True)
        else:
            self.report(a, g, rows, bad, epochs, self.wi, False, fence=True)

    def _missed(self, a: ShadowAccess, epochs: Array, rows: Array) -> Array:
        """Which of `epochs` are of generic writes that no proxy fence has brought to the access."""
        agent = agent_of(epochs)
        generic = (epochs != 0) & (agent != a.agent[rows]) & self._generic()[agent]
        if not generic.any():
            return generic
        row: Array = np.broadcast_to(rows, epochs.shape)
        return generic & (a.known[row, 1, np.where(generic, agent, 0)] < (epochs & CLOCK))

    def _generic(self) -> Array:
        """For each agent whether its writes are of the generic proxy: a warp's, or of a warp's cp.async."""
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
        """Whether the warp that wrote has executed no proxy fence since."""
        agent = (epoch >> 32) & int(AGENT)
        fenced = self.batch.clocks.known[int(a.team[row]), agent, 1, agent]
        return int(fenced) < epoch & int(CLOCK)

    def who(self, a: ShadowAccess, row: int) -> str:
        warp = int(a.c.rows[row])
        cta = self.batch.coordinates[int(self.batch.row_cta[warp])]
        return self.batch.run.reporter.who(cta, int(self.batch.row_warp[warp]))

    def name(self, a: ShadowAccess, row: int, granule: int) -> str:
        offset = granule * self.granule % self.batch.shared.stride
        run = self.batch.run
        return run.reporter.shared_name(offset, run.program.dynamic_offset, run.program.shared_offsets)

    def side(self, a: ShadowAccess, row: int, epoch: int, site: int, writes: bool) -> AccessSide:
        agent = (epoch >> 32) & int(AGENT)
        return self.batch.run.side(self.batch, int(a.team[row]), agent, site, True)
