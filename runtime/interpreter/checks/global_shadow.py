"""The shadow of global buffers, whose agents are those of all clusters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import launches, overtaken
from .clocks import ASYNC_GLOBAL, GENERIC
from .columns import over_runs, rows_at, run_heads, runs
from .folding import Folding
from .kinds import HazardKind
from .parted_shadow import PartedShadow
from .readers import ONE, Readers
from .shadow import AGENT, CLOCK, agent_of
from .shadow_access import ShadowAccess, generic_access
from .wording import AccessSide

if TYPE_CHECKING:
    from ..machine.group import Group
    from ..machine.launch import Run
    from ..ptx.module import Instruction

Array = npt.NDArray[Any]


class GlobalShadow(PartedShadow):
    """The shadow of a global buffer. An agent's name is the number of its team (cluster) times 2^bits, plus its number there.

    Names have 30 bits. If a launch has more clusters than fit, their numbers are kept modulo `teams`.
    """

    in_blocks = False

    def __init__(self, run: Run, buffer: Any) -> None:
        super().__init__(run, buffer)
        self.place: tuple[Any, ...] = "global", buffer.name
        self.bits: int = run.agent_bits
        self.teams: int = 1 << (30 - self.bits)
        self.wraps: bool = run.teams > self.teams

    @property
    def identity(self) -> Any:
        return "global", self.buffer.address

    def folding(self) -> Folding | None:
        run = self.run
        if self.granule > 1 or self.wraps or run.devices > 1 or run.teams + 1 >= self.teams:
            return None
        return Folding(run, self.bits, run.teams)

    # --- the read-only cache -----------------------------------------------------------------------

    def read(
        self, c: Group, index: Array, size: int, count: int, mask: Array | None, ins: Instruction, form: Any
    ) -> None:
        super().read(c, index, size, count, mask, ins, form)
        if getattr(form, "read_only", False) and self.buffer.writable:
            g, rows = self.select(self.granules(index, size, count), mask)
            if self.by_cache is None:
                self.by_cache: Array | None = np.zeros(self.count, self.site_type)
            access = generic_access(c, ins, False)
            self.by_cache[g] = access.site + 1
            for at, row in self.each(access, g, rows):
                w = self.writes.get(at)
                self._check_cache(access, at, row, w != 0, self.writes.site[w])

    def _check_cache(self, a: ShadowAccess, g: Array, rows: Array, bad: Array, sites: Array) -> None:
        """Report ld.global.nc of memory that the kernel writes (PTX ISA 9.7.9.9)."""
        if not bad.any():
            return
        where = tuple(int(i[0]) for i in np.nonzero(bad))
        row = int(np.broadcast_to(rows, g.shape)[where])
        what = f"{self.name(a, row, int(g[where]))} is read through the read-only cache by a kernel that writes it"
        reporter, there = self.run.reporter, self.run.sites[int(sites[where])]
        details = (self.who(a, row), f"the other access is at {reporter.place(there)}")
        fix = "read it by an ordinary load"
        reporter.hazard(HazardKind.READ_ONLY_CACHE, what, a.ins, details, fix, reporter.side("", there))

    # --- accesses ------------------------------------------------------------------------------------

    def on_read(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        if self.run.overlap.at_start:
            launches.check(self, a, g, rows, False)
        if self.was_read is not None:
            self.was_read[g] = a.site + 1
        self.check_initialised(a, g, rows)
        for at, row in self.each(a, g, rows):
            super().on_read(a, at, row)
            if a.proxy:
                self._check_proxy(a, at, row, False)

    def on_write(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        if self.by_cache is not None:
            sites = self.by_cache[g]
            self._check_cache(a, g, rows, sites != 0, sites - np.int32(1))
        if self.run.overlap.at_start:
            launches.check(self, a, g, rows, True)
        for at, row in self.each(a, g, rows):
            if a.proxy:
                self._check_proxy(a, at, row, True)
                overtaken.check(self, a, at, row)
            super().on_write(a, at, row)

    def after_readers(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        own = self.reads
        for reads in self.readers:
            self.reads = reads
            super().after_readers(a, g, rows)
        self.reads: Readers = own

    def check_clash(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        for at, row in self.each(a, g, rows) if a.c.n > 1 else ():
            if a.clash is None:
                super().check_clash(a, at, row)

    # --- proxies -------------------------------------------------------------------------------------

    def _check_proxy(self, a: ShadowAccess, g: Array, rows: Array, writes: bool) -> None:
        """Report generic writes before an access through the async proxy if no proxy fence is between them (PTX ISA 8.9.5)."""
        numbers = self.writes.get(g)
        if not numbers.any():
            return
        bad = self._judge(numbers, rows, lambda n, r: self.unfenced(a, self.writes.epoch[n], r, ASYNC_GLOBAL))
        if bad is None:
            return
        held, sites = self.writes.epoch[numbers], self.writes.site[numbers]
        if writes:
            self.report_writes(a, g, rows, bad, held, sites, True)
        else:
            self.report(a, g, rows, bad, held, sites, False, fence=True)

    def unfenced(self, a: ShadowAccess, held: Array, rows: Array, plane: int) -> Array | None:
        """Return which epochs `held` are of warps' accesses that are ordered before `a`, but not in `plane`; None if none."""
        agent = agent_of(held)
        bad = (held != 0) & ((agent & ((1 << self.bits) - 1)) < a.c.batch.clocks.agents)
        at = np.nonzero(bad)
        row, clock = np.broadcast_to(rows, held.shape)[at], held[at] & CLOCK
        before = self.ordered(a, row, agent[at], clock)  # an unordered access is a race
        bad[at] = before & ~self.ordered(a, row, agent[at], clock, plane)
        return bad if bad.any() else None

    def far(self, a: ShadowAccess, epochs: Array, rows: Array, reach: Array) -> Array:
        theirs, mine = agent_of(epochs), self.name_agent(a)[rows]
        block = (1 << self.bits) - 1
        per_block = self.run.warps_per_block
        near = (theirs >> self.bits == mine >> self.bits) & (
            (reach < 2 + self.run.program.several) | ((theirs & block) // per_block == (mine & block) // per_block)
        )
        if self.run.program.several:
            near |= (reach == 1) & (self._device(theirs) == self._device(mine))
        return (reach > 0) & ~near

    def is_queue(self, agent: Array) -> Array:
        return (agent & ((1 << self.bits) - 1)) >= self.run.warps_per_block * self.run.cluster_size

    def _device(self, agent: Array) -> Array:
        """Return the GPU of each agent, if there are several GPUs."""
        return (agent >> self.bits) // (self.run.teams // self.run.devices)

    def name_agent(self, a: ShadowAccess) -> Array:
        team = a.team + a.c.batch.first // a.c.batch.cluster
        if self.wraps:
            team = team % self.teams
        return (team << self.bits) + a.agent

    def _team(self, a: ShadowAccess, agent: Any) -> Any:
        """Return the cluster of an agent, or of agents, counted from the first cluster of the accessing batch."""
        first = a.c.batch.first // a.c.batch.cluster
        team = (agent >> self.bits) - first
        if self.wraps:  # several clusters have this number: take the last one that has begun
            begun = self.run.next_block // self.run.cluster_size - first
            team = team % self.teams
            team = team - (team >= begun) * self.teams
        return team

    def check_initialised(self, a: ShadowAccess, g: Array, rows: Array, w: Array | None = None) -> None:
        if (self.discards or not self.buffer.initialised) and w is None:  # of all parts at once, see `on_read`
            super().check_initialised(a, g, rows, ~self.unwritten(g))

    def missing(self, granule: int) -> str:
        never = int(self._part(granule // self.per_part)[0].get(np.array([granule]))[0]) == 0
        return super().missing(granule) if never else "after discard.L2 threw its data away"

    def note_read(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        if not self.buffer.writable:
            return
        reads, mine = self.reads, self.epoch(a)
        if reads.repeats(a.site, mine, g, rows):
            return
        reads.part(self.granule)
        numbers = reads.get(g)
        at = run_heads(numbers, rows)
        had, row = runs(numbers, rows) if at is None else (numbers.reshape(-1)[at], rows_at(rows, numbers.shape, at))
        now, r, site = mine[row], reads.r[had], reads.site[had]
        if np.array_equal(now, r) and (site == a.site).all() and not self.run.program.narrow:
            return  # all granules keep their last reader
        other = (r != 0) & (agent_of(r) != agent_of(now))
        before, before_site = reads.before(had)
        r2, site2 = np.where(other, r, before), np.where(other, site, before_site)
        if not reads.single:
            lost = other & (before != 0) & (agent_of(before) != agent_of(now))
            self._keep_lost(a, g, at, row, (before, before_site, lost))
        if reads.single:
            if reads.second is not None and other.any():
                moved = np.broadcast_to(over_runs(other, at, g.shape), g.shape)
                self._keep_second(a, g[moved], np.broadcast_to(rows, g.shape)[moved])
                earlier: Array = np.zeros(len(other), np.int64)
                earlier[other] = reads.earlier(reads.second, had[other])
                reads.second.put(g[moved], np.broadcast_to(over_runs(earlier, at, g.shape), g.shape)[moved])
            made = reads.of(mine, a.site, a.reach)[rows]
        elif not r2.any():  # in a loop of one lane, all its words have one entry
            made = reads.of(mine, a.site, a.reach)[rows]
        else:
            made = over_runs(reads.add(now, a.site, r2, site2, a.reach), at, g.shape)
        reads.put(g, made)
        if a.c.n > 1:
            lost = reads.get(g) != made
            if lost.any():
                some, row = g[lost], np.broadcast_to(rows, g.shape)[lost]
                self._keep_another(a, some, row, mine)
                self._keep_others(a, some, mine[row])
        reads.note(a.site, mine, g, rows)

    def _keep_lost(
        self, a: ShadowAccess, g: Array, at: Array | None, row: Array, displaced: tuple[Array, Array, Array]
    ) -> None:  # fmt: skip
        """Keep the readers (epochs, sites, which of them) of runs that later ones displace and are not ordered after."""
        epochs, sites, lost = displaced
        kept = self.unordered_of(lost, a, epochs, row)
        if kept is not None:
            some = np.broadcast_to(over_runs(kept, at, g.shape), g.shape)
            every = (np.broadcast_to(over_runs(of, at, g.shape), g.shape)[some] for of in (epochs, sites))
            self.reads.keep(g[some], *every)

    def _keep_second(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        """Keep the readers of granules (n,) that are about to leave `second`."""
        second = self.reads.second
        assert second is not None
        epochs, sites, _ = second.held(second.get(g))
        lost = (epochs != 0) & (agent_of(epochs) != agent_of(self.epoch(a))[rows])
        self._keep_lost(a, g, None, rows, (epochs, sites, lost))

    def _keep_others(self, a: ShadowAccess, g: Array, epochs: Array) -> None:
        """Keep the readers `epochs` of granules (n,), all by one instruction, that are not among the last two."""
        reads = self.reads
        if reads.single and reads.second is None:
            return
        number = reads.get(g)
        second = reads.before(number)[0] if reads.second is None else reads.second.epoch[reads.second.get(g)]
        lost = (reads.r[number] != epochs) & (second != epochs)
        if lost.any():
            reads.keep(g[lost], epochs[lost], np.full(int(lost.sum()), a.site))

    def _keep_another(self, a: ShadowAccess, g: Array, rows: Array, mine: Array) -> None:
        """Keep another reader of granules (n,) beside the last one, where several warps read them by one instruction."""
        reads = self.reads
        had = reads.get(g)
        r2 = reads.before(had)[0] if reads.second is None else reads.second.epoch[reads.second.get(g)]
        free = agent_of(reads.r[had]) != agent_of(mine[rows])
        free &= (r2 == 0) | self.ordered(a, rows, agent_of(r2), r2 & CLOCK)
        if not free.any() or (reads.single and reads.second is None):
            return
        g, rows, had = g[free], rows[free], had[free]
        if reads.second is not None:
            reads.second.put(g, reads.second.of(mine, a.site, 0)[rows])
            return
        at = run_heads(had, rows)
        had, row = (had, rows) if at is None else (had[at], rows[at])
        made = reads.add(reads.r[had], reads.site[had], mine[row], a.site, reads.reach[had])
        reads.put(g, over_runs(made, at, g.shape))

    def check_readers(self, a: ShadowAccess, g: Array, rows: Array, r: Array) -> None:
        for numbers, epochs, sites in self.held_readers(g, r):
            bad = self._judge(numbers, rows, lambda n, of, epochs=epochs: self.unordered(a, epochs[n], of))
            if bad is not None:
                self.report(a, g, rows, bad, epochs[numbers], sites[numbers], True, earlier_reads=True)
        for epochs, sites in self._further_readers(g):
            bad = self.unordered(a, epochs, rows)
            if bad is not None:
                self.report(a, g, rows, bad, epochs, sites, True, earlier_reads=True)

    def every_reader(self, g: Array) -> Iterator[tuple[Array, Array]]:
        """Give (epochs, sites) of all readers that are kept of granules, in turns."""
        for numbers, epochs, sites in self.held_readers(g, self.reads.get(g)):
            yield epochs[numbers], sites[numbers]
        yield from self._further_readers(g)

    def last_readers(self, g: Array) -> Iterator[Array]:
        for epochs, _ in self.every_reader(g):
            yield epochs

    def _further_readers(self, g: Array) -> list[tuple[Array, Array]]:
        """Return (epochs, sites) of the readers that are kept beside the last two."""
        further = self.reads.further
        numbers = None if further is None else further.get(g)
        return further.table(numbers) if further is not None and numbers is not None and numbers.any() else []

    def held_readers(self, g: Array, r: Array) -> list[tuple[Array, Array, Array]]:
        """Return (numbers, epochs, sites) of the last readers of granules and of those before; `r` are the last ones' numbers."""
        reads, second = self.reads, self.reads.second
        if second is not None:
            return [(r, reads.r, reads.site), (second.get(g), second.epoch, second.site)]
        return [(r, reads.r, reads.site), (r, reads.r2, reads.site2)][: 1 if reads.fields is ONE else 2]

    def ordered(self, a: ShadowAccess, row: Array, agent: Array, clock: Array, plane: int = GENERIC) -> Array:
        first = a.c.batch.first // a.c.batch.cluster
        team = self._team(a, agent)
        local = agent & ((1 << self.bits) - 1)
        same = team == a.team[row]
        known = a.known[row, plane, np.where(same, local, 0)] >= clock
        if same.all():
            return known
        known &= same
        foreign = a.c.batch.clocks.foreign
        if foreign:
            apart = np.flatnonzero(~same)
            asked = [x[apart].tolist() for x in (row, team + first, local, clock)]
            found: dict[tuple[int, ...], bool] = {}  # the lanes of a warp often ask the same
            for i, one in zip(apart.tolist(), zip(*asked, strict=True), strict=True):
                if one not in found:
                    mine, other, warp, when = one
                    found[one] = foreign.knows(int(a.team[mine]), a.known[mine, 0], other, warp, when, plane)
                known[i] = found[one]
        return known

    def who(self, a: ShadowAccess, row: int) -> str:
        batch = a.c.batch
        warp = int(a.c.rows[row])
        cta = batch.coordinates[int(batch.row_cta[warp])]
        return self.run.reporter.who(cta, int(batch.row_warp[warp]))

    def name(self, a: ShadowAccess, row: int, granule: int) -> str:
        return str(self.buffer.element(granule * self.granule))

    def side(self, a: ShadowAccess, row: int, epoch: int, site: int, writes: bool) -> AccessSide:
        agent = (epoch >> 32) & int(AGENT)
        team, local = self._team(a, agent), agent & ((1 << self.bits) - 1)
        return self.run.side(a.c.batch, team, local, site, team == int(a.team[row]))


def prepare_buffers(run: Run) -> None:
    """Give every buffer fresh shadow memory for this run, or none if hazards are not detected."""
    for buffer in run.memory.buffers.values():
        buffer.shadow = GlobalShadow(run, buffer) if run.detect and len(buffer.bytes) else None


def report_unwritten(run: Run) -> None:
    """Report elements of outputs that no store reached."""
    for buffer in run.memory.buffers.values():
        if buffer.initialised or buffer.shadow is None:
            continue
        shadow = buffer.shadow
        size = buffer.dtype.itemsize
        shadow.fit(size)
        missing = shadow.never_written()
        if len(missing):
            per = max(size // shadow.granule, 1)
            count = len(np.unique(missing // per))
            run.report.unwritten[buffer.name] = count
            index = buffer.index_of(int(missing[0]) * shadow.granule)
            what = f"{count} elements of '{buffer.name}' were never written, the first at {index}"
            run.reporter.hazard(HazardKind.UNWRITTEN, what, None)
