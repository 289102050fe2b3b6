"""Shadow memory: who wrote and who read each granule last, and whether that is ordered (FastTrack, vectorised).

A granule is as large as the smallest access seen so far. An epoch packs the agent (`clocks.py`) in bits 32 and up, the
atomic flag in bit 31 and the agent's clock in bits 0 to 30; zero means that nobody has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .kinds import HazardKind
from .ptx import Instruction
from .wording import Side, conflict

if TYPE_CHECKING:
    from .batch import Batch
    from .group import Group
    from .machine import Run

Array = npt.NDArray[Any]
ATOMIC = np.int64(1 << 31)
CLOCK = np.int64((1 << 31) - 1)
SHARED_READ = np.int64(1 << 62)
AGENT = np.int64((1 << 30) - 1)


def agent_of(epoch: Array) -> Array:
    return (epoch >> np.int64(32)) & AGENT


class Access:
    """One access to check: what the accessing agents know, and their epochs.

    `known` (rows, 3, columns); `agent` and `clock` (rows,); `rows_to_group` for words about lanes. `strong`: atomic
    or volatile, which does not race with its like.
    """

    __slots__ = ("agent", "c", "clash", "clock", "ins", "known", "proxy", "same", "site", "strong", "team")

    def __init__(
        self, c: Group, known: Array, team: Array, agent: Array, clock: Array, ins: Instruction,
        strong: bool, proxy: bool,
    ) -> None:  # fmt: skip
        self.c = c
        self.known = known
        self.team = team
        self.agent = agent
        self.clock = clock
        self.ins = ins
        self.strong = strong
        self.proxy = proxy
        self.site = c.batch.run.site(ins)
        self.same: Any = None
        self.clash: Any = None


def generic_access(c: Group, ins: Instruction, strong: bool) -> Access:
    """The access of each warp of `c` by itself."""
    batch = c.batch
    agent = batch.row_agent[c.rows]
    known = batch.clocks.of(c)
    clock = known[np.arange(c.n), 0, agent].astype(np.int64)
    return Access(c, known, batch.row_team[c.rows], agent, clock, ins, strong, False)


class Shadow:
    """The shadow of one array of bytes. Subclasses say which agents are comparable and what to call things."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.granule = 0
        self.w: Array = np.zeros(0, np.int64)
        self.wi: Array = np.zeros(0, np.int32)
        self.r: Array = np.zeros(0, np.int64)
        self.ri: Array = np.zeros(0, np.int32)

    # --- granules ------------------------------------------------------------------------------

    def fit(self, size: int) -> None:
        """Make granules at most `size` bytes."""
        if self.granule and self.granule <= size:
            return
        if not self.granule:
            self.granule = min(size, 16)
            n = -(-self.size // self.granule)
            self.w, self.r = np.zeros(n, np.int64), np.zeros(n, np.int64)
            self.wi, self.ri = np.zeros(n, np.int32), np.zeros(n, np.int32)
            self._made(n)
            return
        times = self.granule // size
        self.granule = size
        for name in ("w", "wi", "r", "ri"):
            setattr(self, name, np.repeat(getattr(self, name), times))
        self._refined(times)

    def _made(self, n: int) -> None:
        """Granules were made for the first time."""

    def _refined(self, times: int) -> None:
        """Each granule has become `times`."""

    def granules(self, index: Array, size: int, count: int) -> Array:
        """Word indices (rows, lanes) as granule indices (rows, lanes) or (rows, lanes, k).

        Accesses of `count` words are aligned to their whole width.
        """
        width = size * count
        self.fit(min(width, 16))
        if count > 1:
            index = index // count
        k = width // self.granule
        return index if k == 1 else (index * k)[..., None] + np.arange(k)

    # --- accesses by lanes ---------------------------------------------------------------------

    def read(
        self, c: Group, index: Array, size: int, count: int, mask: Array | None, ins: Instruction,
        form: Any,
    ) -> None:  # fmt: skip
        g, rows = self.select(self.granules(index, size, count), mask)
        if g.size:
            self.on_read(generic_access(c, ins, form.strong), g, rows)

    def write(
        self, c: Group, index: Array, size: int, count: int, mask: Array | None, ins: Instruction,
        form: Any, same: Any = None,
    ) -> Access | None:  # fmt: skip
        """`same()` gives the lanes (rows, 32) that write what memory holds already: they change nothing."""
        granules = self.granules(index, size, count)
        g, rows = self.select(granules, mask)
        if not g.size:
            return None
        access = generic_access(c, ins, form.strong)
        if same is not None:
            shape = granules.shape
            access.same = lambda: self.select(
                np.broadcast_to(same().reshape(*shape[:2], *([1] * (len(shape) - 2))), shape), mask
            )[0]
        self.on_write(access, g, rows)
        if not form.strong:
            self._check_clash(access, g, rows)
        return access

    def settle_clash(self, a: Access) -> None:
        """Report warps that wrote different values to one place by the same instruction, once memory is written."""
        g, rows, lost, w = a.clash
        lost = lost & ~a.same()
        if lost.any():
            self._report(a, g, rows, lost, w, self.wi, True)

    def _check_clash(self, a: Access, g: Array, rows: Array) -> None:
        """Warps that run as one vector may have written the same granule in the same instruction."""
        w = self.w[g]
        lost = w != self.epoch(a)[rows]
        if lost.any():
            a.clash = (g, rows, lost, w)

    def atomic(self, c: Group, index: Array, size: int, mask: Array | None, ins: Instruction, form: Any) -> None:
        g, rows = self.select(self.granules(index, size, 1), mask)
        if g.size:
            access = generic_access(c, ins, True)
            self.check_initialised(access, g, rows)
            self.on_write(access, g, rows)

    @staticmethod
    def select(g: Array, mask: Array | None) -> tuple[Array, Array]:
        """Flat granule indices of active lanes, and the row of each."""
        n = g.shape[0]
        rows: Array = np.arange(n, dtype=np.int64)
        if mask is None:
            column: Array = np.expand_dims(rows, 1)
            return g.reshape(n, -1), column
        spread: Array = np.broadcast_to(np.expand_dims(rows, tuple(range(1, g.ndim))), g.shape)
        flat: Array = spread[mask].reshape(-1)
        return g[mask].reshape(-1), flat

    # --- the checks ----------------------------------------------------------------------------

    def on_read(self, a: Access, g: Array, rows: Array) -> None:
        w = self.w[g]
        self.check_initialised(a, g, rows, w)
        bad = self._unordered(a, w, rows)
        if bad is not None:
            self._report(a, g, rows, bad, w, self.wi, False)
        self.note_read(a, g, rows)

    def on_write(self, a: Access, g: Array, rows: Array) -> None:
        w = self.w[g]
        bad = self._unordered(a, w, rows)
        if bad is not None and a.same is not None:
            bad &= ~a.same()
            bad = bad if bad.any() else None
        if bad is not None:
            self._report(a, g, rows, bad, w, self.wi, True)
        r = self.r[g]
        if r.any():
            self.check_readers(a, g, rows, r)
            self.r[g] = 0
        self.w[g] = self.epoch(a)[rows]
        self.wi[g] = a.site

    def epoch(self, a: Access) -> Array:
        """(rows,): the epochs that this access leaves behind."""
        mine = (self.name_agent(a) << np.int64(32)) | a.clock
        return mine | ATOMIC if a.strong else mine

    def name_agent(self, a: Access) -> Array:
        return a.agent.astype(np.int64)

    def _unordered(self, a: Access, epochs: Array, rows: Array) -> Array | None:
        """Where `epochs` are not ordered before the access; None where all are."""
        if not epochs.any():
            return None
        agent = agent_of(epochs)
        mine = self.name_agent(a)[rows]
        other = agent != mine
        if a.strong:
            other &= (epochs & ATOMIC) == 0
        other &= epochs != 0
        if not other.any():
            return None
        at = np.nonzero(other)
        row = np.broadcast_to(rows, epochs.shape)[at]
        ordered = self.ordered(a, row, agent[at], epochs[at] & CLOCK)
        if ordered.all():
            return None
        bad = np.zeros(epochs.shape, np.bool_)
        bad[tuple(i[~ordered] for i in at)] = True
        return bad

    def ordered(self, a: Access, row: Array, agent: Array, clock: Array) -> Array:
        """Whether (agent, clock) is ordered before the access of `row`."""
        return a.known[row, 0, agent] >= clock

    def check_initialised(self, a: Access, g: Array, rows: Array, w: Array | None = None) -> None:
        """Report granules that nobody wrote."""

    def check_readers(self, a: Access, g: Array, rows: Array, r: Array) -> None:
        bad = self._unordered(a, r, rows)
        if bad is not None:
            self._report(a, g, rows, bad, r, self.ri, True, earlier_reads=True)

    def note_read(self, a: Access, g: Array, rows: Array) -> None:
        self.r[g] = self.epoch(a)[rows]
        self.ri[g] = a.site

    # --- reporting -----------------------------------------------------------------------------

    def _report(
        self, a: Access, g: Array, rows: Array, bad: Array, epochs: Array, sites: Array, writes: bool,
        earlier_reads: bool = False,
    ) -> None:  # fmt: skip
        where = tuple(int(i[0]) for i in np.nonzero(bad))
        granule = int(g[where])
        row = int(np.broadcast_to(rows, g.shape)[where])
        epoch = int(epochs[where])
        conflict(self, a, row, granule, epoch, int(sites[granule]), writes, earlier_reads)

    def side(self, a: Access, row: int, epoch: int, site: int, writes: bool) -> Side:
        """The earlier access, in words."""
        raise AssertionError("each shadow names its own agents")

    def name(self, a: Access, row: int, granule: int) -> str:
        raise AssertionError("each shadow names its own memory")


class SharedShadow(Shadow):
    """Shared memory of a batch: full read clocks of every agent, so that no reader is forgotten."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(len(batch.shared.data))
        self.batch = batch
        self.table: Array = np.zeros((0, 0), np.uint32)
        # As fine as the program's narrowest access from the start: making granules finer later is costly.
        self.fit(batch.run.program.shared_granule)
        self.queue_reads: dict[int, Array] = {}
        self.queue_sites: dict[int, Array] = {}

    def _made(self, n: int) -> None:
        self.table = np.zeros((self.batch.cluster * self.batch.per_block, n), np.uint32)

    def _refined(self, times: int) -> None:
        self.table = np.repeat(self.table, times, axis=1)
        for reads in (self.queue_reads, self.queue_sites):
            for queue in reads:
                reads[queue] = np.repeat(reads[queue], times)

    def check_initialised(self, a: Access, g: Array, rows: Array, w: Array | None = None) -> None:
        w = self.w[g] if w is None else w
        if w.all():
            return
        where = tuple(int(i[0]) for i in np.nonzero(w == 0))
        row = int(np.broadcast_to(rows, g.shape)[where])
        name = self.name(a, row, int(g[where]))
        what = f"{name} is read before anything was written to it"
        self.batch.run.reporter.defer(HazardKind.UNINITIALISED, what, a.ins, (self.who(a, row),))

    def note_read(self, a: Access, g: Array, rows: Array) -> None:
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
        self.table[agent, g] = a.clock[rows]

    def _note_queue(self, a: Access, g: Array, rows: Array) -> None:
        """Reads by an asynchronous queue (one queue an access)."""
        queue = int(a.agent[0])
        if queue not in self.queue_reads:
            self.queue_reads[queue] = np.zeros(len(self.w), np.uint32)
            self.queue_sites[queue] = np.zeros(len(self.w), np.int32)
        self.queue_reads[queue][g] = np.broadcast_to(a.clock[rows], g.shape)
        self.queue_sites[queue][g] = a.site
        self.r[g] = self.epoch(a)[rows] | SHARED_READ

    def check_readers(self, a: Access, g: Array, rows: Array, r: Array) -> None:
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
            bad = (clock > known[:, queue]) & (me != queue)
            if bad.any():
                sites = self.queue_sites[queue]
                self._report_reader(a, at, bad, g, rows, queue, int(clock[bad][0]), sites)
                return

    def _report_reader(
        self, a: Access, at: Any, bad: Array, g: Array, rows: Array, agent: int, clock: int, sites: Array
    ) -> None:  # fmt: skip
        where = tuple(int(i[bad][0]) for i in at)
        granule = int(g[where])
        row = int(np.broadcast_to(rows, g.shape)[where])
        conflict(self, a, row, granule, (agent << 32) | clock, int(sites[granule]), True, True)

    def on_read(self, a: Access, g: Array, rows: Array) -> None:
        super().on_read(a, g, rows)
        if a.proxy:
            self._check_proxy(a, g, rows)

    def _check_proxy(self, a: Access, g: Array, rows: Array) -> None:
        """Generic writes that an asynchronous read would miss for want of a proxy fence."""
        epochs = self.w[g]
        agent = agent_of(epochs)
        row = np.broadcast_to(rows, epochs.shape)
        generic = (epochs != 0) & (agent != a.agent[rows])
        bad = generic & (a.known[row, 1, np.where(generic, agent, 0)] < (epochs & CLOCK))
        if bad.any():
            where = tuple(int(i[0]) for i in np.nonzero(bad))
            granule = int(g[where])
            site = int(self.wi[granule])
            conflict(self, a, int(row[where]), granule, int(epochs[where]), site, False, False, True)

    def never_fenced(self, a: Access, row: int, epoch: int) -> bool:
        """Whether the warp that wrote has executed no proxy fence since."""
        agent = (epoch >> 32) & int(AGENT)
        fenced = self.batch.clocks.known[int(a.team[row]), agent, 1, agent]
        return int(fenced) < epoch & int(CLOCK)

    def who(self, a: Access, row: int) -> str:
        warp = int(a.c.rows[row])
        cta = self.batch.coordinates[int(self.batch.row_cta[warp])]
        return self.batch.run.reporter.who(cta, int(self.batch.row_warp[warp]))

    def name(self, a: Access, row: int, granule: int) -> str:
        offset = granule * self.granule % self.batch.shared.stride
        run = self.batch.run
        return run.reporter.shared_name(offset, run.program.dynamic_offset, run.program.shared_offsets)

    def side(self, a: Access, row: int, epoch: int, site: int, writes: bool) -> Side:
        agent = (epoch >> 32) & int(AGENT)
        return self.batch.run.side(self.batch, int(a.team[row]), agent, site, True)


class GlobalShadow(Shadow):
    """A global buffer. Agents of all clusters: team number times 2^bits plus the agent within it."""

    def __init__(self, run: Run, buffer: Any) -> None:
        super().__init__(len(buffer.bytes))
        self.run = run
        self.buffer = buffer
        self.bits = run.agent_bits
        self.r2: Array = np.zeros(0, np.int64)
        self.r2i: Array = np.zeros(0, np.int32)

    def _made(self, n: int) -> None:
        self.r2, self.r2i = np.zeros(n, np.int64), np.zeros(n, np.int32)

    def _refined(self, times: int) -> None:
        self.r2, self.r2i = np.repeat(self.r2, times), np.repeat(self.r2i, times)

    def name_agent(self, a: Access) -> Array:
        first = a.c.batch.first // a.c.batch.cluster
        return ((a.team + first) << self.bits) + a.agent

    def check_initialised(self, a: Access, g: Array, rows: Array, w: Array | None = None) -> None:
        if self.buffer.initialised:
            return
        w = self.w[g] if w is None else w
        if w.all():
            return
        where = tuple(int(i[0]) for i in np.nonzero(w == 0))
        row = int(np.broadcast_to(rows, g.shape)[where])
        name = self.name(a, row, int(g[where]))
        what = f"{name} is read before anything was written to it"
        self.run.reporter.defer(HazardKind.UNINITIALISED, what, a.ins, (self.who(a, row),))

    def note_read(self, a: Access, g: Array, rows: Array) -> None:
        if not self.buffer.writable:
            return
        prev = self.r[g]
        mine = self.epoch(a)[rows]
        if prev.any():
            other = (prev != 0) & (agent_of(prev) != agent_of(mine))
            if other.any():
                at = np.nonzero(other)
                moved = g[at]
                self.r2[moved] = prev[at]
                self.r2i[moved] = self.ri[moved]
        self.r[g] = mine
        self.ri[g] = a.site

    def check_readers(self, a: Access, g: Array, rows: Array, r: Array) -> None:
        super().check_readers(a, g, rows, r)
        before = self.r2[g]
        if before.any():
            bad = self._unordered(a, before, rows)
            if bad is not None:
                self._report(a, g, rows, bad, before, self.r2i, True, earlier_reads=True)
            self.r2[g] = 0

    def ordered(self, a: Access, row: Array, agent: Array, clock: Array) -> Array:
        first = a.c.batch.first // a.c.batch.cluster
        team = (agent >> self.bits) - first
        local = agent & ((1 << self.bits) - 1)
        same = team == a.team[row]
        known = a.known[row, 0, np.where(same, local, 0)] >= clock
        if same.all():
            return known
        known &= same
        clocks = a.c.batch.clocks
        if clocks.foreign:
            for i in np.flatnonzero(~same):
                known[i] = clocks.knows_foreign(
                    int(a.team[row[i]]), a.known[row[i], 0], int(team[i] + first), int(local[i]), int(clock[i])
                )
        return known

    def who(self, a: Access, row: int) -> str:
        batch = a.c.batch
        warp = int(a.c.rows[row])
        cta = batch.coordinates[int(batch.row_cta[warp])]
        return self.run.reporter.who(cta, int(batch.row_warp[warp]))

    def name(self, a: Access, row: int, granule: int) -> str:
        return f"'{self.buffer.name}'{self.buffer.index_of(granule * self.granule)}"

    def side(self, a: Access, row: int, epoch: int, site: int, writes: bool) -> Side:
        agent = (epoch >> 32) & int(AGENT)
        team, local = agent >> self.bits, agent & ((1 << self.bits) - 1)
        team -= a.c.batch.first // a.c.batch.cluster
        return self.run.side(a.c.batch, team, local, site, team == int(a.team[row]))


def prepare_buffers(run: Run) -> None:
    """Give every buffer fresh shadow memory for this run, or none."""
    for buffer in run.memory.buffers.values():
        buffer.shadow = GlobalShadow(run, buffer) if run.detect and len(buffer.bytes) else None


def report_unwritten(run: Run) -> None:
    """Elements of outputs that no store reached."""
    for buffer in run.memory.buffers.values():
        if buffer.initialised or buffer.shadow is None:
            continue
        shadow = buffer.shadow
        size = buffer.dtype.itemsize
        shadow.fit(size)
        missing = np.flatnonzero(shadow.w == 0)
        if len(missing):
            per = max(size // shadow.granule, 1)
            count = len(np.unique(missing // per))
            run.report.unwritten[buffer.name] = count
            index = buffer.index_of(int(missing[0]) * shadow.granule)
            what = f"{count} elements of '{buffer.name}' were never written, the first at {index}"
            run.reporter.hazard(HazardKind.UNWRITTEN, what, None)
