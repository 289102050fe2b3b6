"""The shadow of global buffers, whose agents are those of all clusters."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import launches
from .clocks import ASYNC_GLOBAL, GENERIC
from .kinds import HazardKind
from .shadow import AGENT, CLOCK, Shadow, ShadowAccess, agent_of, blank, generic_access, is_blank, spread
from .wording import AccessSide

if TYPE_CHECKING:
    from ..machine.group import Group
    from ..machine.launch import Run
    from ..ptx.module import Instruction

Array = npt.NDArray[Any]
_SMALL = 1 << 26  # bytes: less than this is not asked about


class GlobalShadow(Shadow):
    """A global buffer. Agents of all clusters: team number times 2^bits plus the agent within it.

    Names have 30 bits. Where a launch has more clusters than that, their numbers are kept modulo `teams`.
    """

    def __init__(self, run: Run, buffer: Any) -> None:
        super().__init__(len(buffer.bytes), run, run.program.site_type)
        self.run = run
        self.buffer = buffer
        self.place = "global", buffer.name
        self.bits: int = run.agent_bits
        self.teams: int = 1 << (30 - self.bits)
        self.wraps: bool = run.teams > self.teams
        self.r2: Array = np.zeros(0, np.int64)
        self.r2i: Array = np.zeros(0, self.site_type)
        self.by_cache: Array | None = None  # sites + 1 of ld.global.nc of each granule, made when there is one
        self.was_read: Array | None = None  # sites + 1 of reads of each granule, for the launches that follow

    def _made(self, n: int) -> None:
        self.r2, self.r2i = blank(n, np.int64), blank(n, self.site_type)
        if self.run.program.triggers:
            self.was_read = np.zeros(n, np.int32)

    def _refined(self, times: int) -> None:
        self.r2, self.r2i = spread(self.r2, times), spread(self.r2i, times)
        if self.by_cache is not None:
            self.by_cache = np.repeat(self.by_cache, times)
        if self.was_read is not None:
            self.was_read = np.repeat(self.was_read, times)

    def forget(self, start: int, size: int) -> None:
        """These bytes hold what nobody has written, and nobody has read."""
        if self.granule:
            part = slice(start // self.granule, -(-(start + size) // self.granule))
            for known in (self.w, self.r, self.r2):
                if not is_blank(known):
                    known[part] = 0

    # --- the read-only cache -----------------------------------------------------------------------

    def read(
        self, c: Group, index: Array, size: int, count: int, mask: Array | None, ins: Instruction, form: Any
    ) -> None:
        super().read(c, index, size, count, mask, ins, form)
        if getattr(form, "read_only", False) and self.buffer.writable:
            g, rows = self.select(self.granules(index, size, count), mask)
            if self.by_cache is None:
                self.by_cache = np.zeros(len(self.w), np.int32)
            access = generic_access(c, ins, False)
            self.by_cache[g] = access.site + 1
            self._check_cache(access, g, rows, self.w[g] != 0, self.wi[g])

    def _check_cache(self, a: ShadowAccess, g: Array, rows: Array, bad: Array, sites: Array) -> None:
        """ld.global.nc is for memory that nobody writes while the kernel runs (PTX ISA 9.7.9.9)."""
        if not bad.any():
            return
        where = tuple(int(i[0]) for i in np.nonzero(bad))
        row = int(np.broadcast_to(rows, g.shape)[where])
        what = f"{self.name(a, row, int(g[where]))} is read through the read-only cache by a kernel that writes it"
        reporter, there = self.run.reporter, self.run.sites[int(sites[where])]
        details = (self.who(a, row), f"the other access is at {reporter.place(there)}")
        fix = "read it by an ordinary load"
        reporter.hazard(HazardKind.READ_ONLY_CACHE, what, a.ins, details, fix, reporter.side("", there))

    # --- scopes --------------------------------------------------------------------------------------

    def on_read(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        if self.run.overlap.at_start:
            launches.check(self, a, g, rows, False)
        super().on_read(a, g, rows)
        if a.proxy:
            self._check_proxy(a, g, rows, False)
        if self.run.program.narrow:
            self.strong.reached(self, "r")[g] = a.reach

    def on_write(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        if self.by_cache is not None:
            sites = self.by_cache[g]
            self._check_cache(a, g, rows, sites != 0, sites - 1)
        if a.proxy:
            self._check_proxy(a, g, rows, True)
        if self.run.overlap.at_start:
            launches.check(self, a, g, rows, True)
        super().on_write(a, g, rows)
        if self.run.program.narrow:
            self.strong.reached(self, "w")[g] = a.reach

    # --- proxies -------------------------------------------------------------------------------------

    def _check_proxy(self, a: ShadowAccess, g: Array, rows: Array, writes: bool) -> None:
        """Generic writes that come before an access through the async proxy, with no proxy fence (PTX ISA 8.9.5)."""
        held = self.w[g]
        if not held.any():
            return
        agent = agent_of(held)
        bad = (held != 0) & ((agent & ((1 << self.bits) - 1)) < a.c.batch.clocks.agents)
        at = np.nonzero(bad)
        row, clock = np.broadcast_to(rows, held.shape)[at], held[at] & CLOCK
        before = self.ordered(a, row, agent[at], clock)  # an unordered access is a race
        bad[at] = before & ~self.ordered(a, row, agent[at], clock, ASYNC_GLOBAL)
        if not bad.any():
            return
        if writes:
            self.report_writes(a, g, rows, bad, held, True)
        else:
            self.report(a, g, rows, bad, held, self.wi, False, fence=True)

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
        """The GPU of agents, where there are several."""
        return (agent >> self.bits) // (self.run.teams // self.run.devices)

    def name_agent(self, a: ShadowAccess) -> Array:
        team = a.team + a.c.batch.first // a.c.batch.cluster
        if self.wraps:
            team = team % self.teams
        return (team << self.bits) + a.agent

    def _team(self, a: ShadowAccess, agent: Any) -> Any:
        """The cluster of an agent, or of agents, counted from the first of the accessing batch."""
        first = a.c.batch.first // a.c.batch.cluster
        team = (agent >> self.bits) - first
        if self.wraps:  # of the clusters that it may be, the last that has begun
            begun = self.run.next_block // self.run.cluster_size - first
            team = team % self.teams
            team = team - (team >= begun) * self.teams
        return team

    def check_initialised(self, a: ShadowAccess, g: Array, rows: Array, w: Array | None = None) -> None:
        if not self.buffer.initialised:
            super().check_initialised(a, g, rows, w)

    def note_read(self, a: ShadowAccess, g: Array, rows: Array) -> None:
        if self.was_read is not None:
            self.was_read[g] = a.site + 1
        if not self.buffer.writable:
            return
        prev = self.r[g]
        mine = self.epoch(a)[rows]
        if prev.any():
            other = (prev != 0) & (agent_of(prev) != agent_of(mine))
            if other.any():
                at = np.nonzero(other)
                moved = g[at]
                if is_blank(self.r2):
                    self.r2, self.r2i = self._zeros()
                self.r2[moved] = prev[at]
                self.r2i[moved] = self.ri[moved]
        if is_blank(self.r):
            self.r, self.ri = self._zeros()
        self.r[g] = mine
        self.ri[g] = a.site

    def _zeros(self) -> tuple[Array, Array]:
        """Epochs and sites of readers: memory for them is taken when there is one."""
        n = len(self.w)
        self._check_room(n * (8 + np.dtype(self.site_type).itemsize))
        return np.zeros(n, np.int64), np.zeros(n, self.site_type)

    def fit(self, size: int) -> None:
        if not self.granule or self.granule > size:
            n = -(-self.size // min(size, 16))
            kinds = 1 + (not is_blank(self.r)) + (not is_blank(self.r2)) if self.granule else 1
            self._check_room(n * kinds * (8 + np.dtype(self.site_type).itemsize))
        super().fit(size)

    def _check_room(self, needed: int) -> None:
        """Raise MemoryError where this machine has not as many bytes left."""
        if needed < _SMALL:
            return
        left = memory_left()
        if left is not None and needed > left:
            raise MemoryError(
                f"to find races in '{self.buffer.name}', of {self.size} bytes, the interpreter needs {needed} bytes more, "
                f"and this machine has {left} left: check smaller arrays, or run with InterpretParams(detect_hazards=False)"
            )

    def check_readers(self, a: ShadowAccess, g: Array, rows: Array, r: Array) -> None:
        super().check_readers(a, g, rows, r)
        before = self.r2[g]
        if before.any():
            bad = self.unordered(a, before, rows)
            if bad is not None:
                self.report(a, g, rows, bad, before, self.r2i, True, earlier_reads=True)
            self.r2[g] = 0

    def ordered(self, a: ShadowAccess, row: Array, agent: Array, clock: Array, plane: int = GENERIC) -> Array:
        first = a.c.batch.first // a.c.batch.cluster
        team = self._team(a, agent)
        local = agent & ((1 << self.bits) - 1)
        same = team == a.team[row]
        known = a.known[row, plane, np.where(same, local, 0)] >= clock
        if same.all():
            return known
        known &= same
        clocks = a.c.batch.clocks
        if clocks.foreign:
            for i in np.flatnonzero(~same):
                known[i] = clocks.knows_foreign(
                    int(a.team[row[i]]), a.known[row[i], 0], int(team[i] + first), int(local[i]), int(clock[i]), plane
                )
        return known

    def who(self, a: ShadowAccess, row: int) -> str:
        batch = a.c.batch
        warp = int(a.c.rows[row])
        cta = batch.coordinates[int(batch.row_cta[warp])]
        return self.run.reporter.who(cta, int(batch.row_warp[warp]))

    def name(self, a: ShadowAccess, row: int, granule: int) -> str:
        return f"'{self.buffer.name}'{self.buffer.index_of(granule * self.granule)}"

    def side(self, a: ShadowAccess, row: int, epoch: int, site: int, writes: bool) -> AccessSide:
        agent = (epoch >> 32) & int(AGENT)
        team, local = self._team(a, agent), agent & ((1 << self.bits) - 1)
        return self.run.side(a.c.batch, team, local, site, team == int(a.team[row]))


def memory_left() -> int | None:
    """Bytes that a process may still take, as Linux and its control group say; None where they don't."""
    found: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        text = Path("/proc/meminfo").read_text()
        found.append(int(text.split("MemAvailable:")[1].split()[0]) << 10)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text())
        statistics = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        found.append(most - sum(int(n) for name, n in statistics if name in ("anon", "kernel", "shmem")))
    return min(found) if found else None


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
