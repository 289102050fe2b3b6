"""Races of ordinary loads with ordinary stores, which are reported only if the loaded value decides something.

Compilers let several warps load what one of them needs. If the kernel changes the array in place, such a load and the store of
another warp are unordered. The load may bring the old value or the new one, but where nobody uses it the kernel's results are
the same (PTX ISA 8.9.5: a race leaves the value of the load open, and nothing else).

Whether a value is used is known only after the load, and often before the store. So a launch with such a pair is run again from
the same memory. The loads in doubt are then no accesses: shadow memory does not record them, so that they cannot hide another
reader of the same memory. Their values are poison (`poison.py`), and the first instruction that is decided by one of them makes
the race a hazard. A load that no instruction uses in any lane is there for its own sake, so its race is certain. Atomics,
asynchronous copies, and pairs of two writes are never in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..ptx.module import Instruction
from .hazards import Finding, HazardError, Place
from .kinds import HazardKind
from .ordinary import is_load, is_store
from .poison import FIRST_DOUBT, raced
from .read_spans import ReadSpans, spans_of
from .slices import is_used
from .wording import described

if TYPE_CHECKING:
    from ..machine.group import Group
    from ..machine.launch import Run
    from .shadow_access import ShadowAccess

Array = npt.NDArray[Any]
Key = tuple[Any, int]  # the memory, the instruction of the loads (0: any)
_KINDS = (HazardKind.RACE_SHARED, HazardKind.RACE_GLOBAL, HazardKind.RACE_BLOCKS)
_MORE = 10_000  # a run with new doubts ends after twice its steps and so many
_ATTEMPTS = 24  # the most runs of a launch that put further loads in doubt
_NAMED = 512  # the most doubts that are described before it is known whether they decide something
_ROOM = 1 << 20  # bytes that spans may take, and
_SHARE = 8  # one byte more for so many bytes of writable arrays
_BESIDE = 3.5  # the most bytes of shadow memory a byte beside the copy
_AT_ONCE = 1 << 12  # accesses that are looked at together: each takes some 100 bytes meanwhile
_NEVER = 10**18


@dataclass
class Doubt:
    """A race in doubt. `when`: the number of accesses before it; `unwritten`: what it reads, if nobody has written that."""

    number: int
    kind: HazardKind
    what: str
    ins: Instruction
    details: tuple[str, ...]
    fix: str
    other: Place
    when: float
    unwritten: str = ""


@dataclass
class Nameless:
    """All doubts of a load that come after the described ones. `bits`: of a warp's number, behind that of its cluster.

    If the value of a warp decides something, the launch runs again, and this load of this warp is no longer in doubt.
    """

    key: Key
    bits: int


class Doubts:
    """The loads of a launch that are in doubt, over its runs.

    `known`: the bytes that they read in earlier runs. `new`: spans that this run has found.
    `end`: the steps after which this run ends in any case. `open`: whether further races may be in doubt.
    `again`: whether the launch must run again. `drop()` frees the copy of memory that a further run begins with.
    """

    def __init__(self, open_: bool = True, drop: Callable[[], None] | None = None) -> None:
        self.open: bool = open_
        self.drop: Callable[[], None] | None = drop
        self.attempts: int = 0
        self.given_up: bool = False  # the next run has no doubts, not even known ones
        self.end: int = _NEVER
        self.known: dict[Key, ReadSpans] = {}
        self.new: dict[Key, list[Array]] = {}
        self.table: list[Doubt | Nameless] = []
        self.decided: set[int] = set()
        self._of: dict[Key, dict[int, int]] = {}  # the number of each warp's doubt, or of the others'
        self._numbers: dict[Key, Array] = {}  # the same for the warps of known spans
        self._certain: dict[Key, set[int]] = {}  # warps whose loads are in doubt no more
        self._freed: bool = False  # whether this run has added to them
        self._used: dict[int, bool] = {}  # which loads may reach an effect
        self._finest: dict[Any, int] = {}  # by memory, the size of the granules that were in doubt
        self._sites: set[int] = set()  # the instructions of known loads

    @property
    def again(self) -> bool:
        return bool(self.new) or self.given_up or self._freed

    def begin(self) -> None:
        """Begin another run of the launch."""
        self.attempts += 1
        self.open = self.open and self.attempts < _ATTEMPTS
        self.given_up = self.given_up or (self._freed and self.attempts > 2 * _ATTEMPTS)
        if self.given_up:
            self.open = False
            for found in (self.known, self.new, self.table, self._of, self._numbers, self._finest, self._sites):
                found.clear()
            self.given_up = False
        for key, spans in self.new.items():
            known = self.known.get(key)
            self.known[key] = ReadSpans([*spans, *([] if known is None else [known.spans])])
            self._sites.add(key[1])
        self.new.clear()
        self._settle()
        self.decided.clear()
        self._freed = False
        self.end = _NEVER

    def _settle(self) -> None:
        """Forget loads that are in doubt no more, and number the others."""
        for key, spans in list(self.known.items()):
            gone = self._certain.get(key)
            left = spans if gone is None else spans.without(list(gone))
            if left is None:
                del self.known[key]
                continue
            self.known[key], of = left, self._of[key]
            self._numbers[key] = np.array([of.get(w, of.get(-1, 0)) for w in left.warps.tolist()], np.int32)

    # --- a race is found ---------------------------------------------------------------------------

    def put_off(
        self, shadow: Any, a: ShadowAccess, g: Array, rows: Array, bad: Array, epochs: Array, sites: Array,
        earlier_reads: bool,
    ) -> Array:  # fmt: skip
        """Return which elements of `bad` are races in any case. The others are in doubt: this run goes on without a report.

        `epochs`, `sites`: the earlier accesses, loads if `earlier_reads`, of the shape of `bad` like the granules `g`.
        """
        run = shadow.run
        if not self.open or a.strong or a.proxy or a.queue or shadow.wraps or (a.loaded is None) != earlier_reads:
            return bad
        if not (is_store(a.ins) if earlier_reads else self._may_be_idle(run.program, a.ins)):
            return bad
        g, rows, epochs, sites = (np.broadcast_to(x, bad.shape) for x in (g, rows, epochs, sites))
        step = max(_AT_ONCE * len(bad) // bad.size, 1)
        cuts = (slice(i, i + step) for i in range(0, len(bad), step))
        parts = [self._put_off(shadow, a, g[c], rows[c], bad[c], epochs[c], sites[c], earlier_reads) for c in cuts]
        if self._is_full(run):
            self.open, self.given_up = False, True
            self._soon(run, 0)
            return bad
        return np.concatenate(parts)

    def _put_off(
        self, shadow: Any, a: ShadowAccess, g: Array, rows: Array, bad: Array, epochs: Array, sites: Array,
        earlier_reads: bool,
    ) -> Array:  # fmt: skip
        """As `put_off`, for some of the accesses; all arrays have one shape."""
        run = shadow.run
        plain = partial(self._may_be_idle, run.program) if earlier_reads else is_store
        at = np.nonzero(bad)
        granule, row, epoch, site = (x[at] for x in (g, rows, epochs, sites))
        agent = shadow.agent_of(epoch)
        fit = ~shadow.is_queue(agent)
        if not shadow.in_blocks:  # folding has dropped the names of some readers (`folding.py`)
            fit &= (agent >> shadow.bits) < run.teams
        for number in np.unique(site).tolist():
            fit &= (site != number) | plain(run.sites[number])
        if not run.reporter.ignored.isdisjoint(_KINDS):
            fit &= ~_is_ignored(shadow, agent, shadow.name_agent(a)[row])
        warp = _numbered(shadow, a, row, agent) if earlier_reads else _numbered(shadow, a, row)
        load = site if earlier_reads else np.full(len(row), a.site)
        for number in _in_order(load[fit]):
            mine = np.flatnonzero(fit & (load == number))

            def words(i: int, mine: Array = mine) -> Any:
                n = mine[i]
                earlier = int(row[n]), int(granule[n]), int(epoch[n]), int(site[n])
                return described(shadow, a, *earlier, earlier_reads, earlier_reads)

            key = shadow.identity, id(run.sites[number])
            fit[mine] = self._note(key, shadow, a, warp[mine], granule[mine], earlier_reads, words)
        left = bad.copy()
        left[at] = ~fit
        return left

    def _note(
        self, key: Key, shadow: Any, a: ShadowAccess, warp: Array, g: Array, earlier_reads: bool, words: Callable[[int], Any]
    ) -> Array:  # fmt: skip
        """Put the reads of granules `g` by warps, both (n,), in doubt. Return for each of them whether it can be.

        Shared memory knows all readers of a granule, and the instruction of the last one. So where the load of this instruction
        is in doubt already, all loads of the warp become so.
        """
        whole, held = (key[0], 0), self._read(key, shadow, warp, g)
        fit = ~held & ~self._is_certain(key, warp)
        if earlier_reads and shadow.in_blocks and key[1] and held.any():
            wider = np.isin(warp, warp[held]) & ~np.isin(warp, warp[self._read(whole, shadow, warp, g)])
            at = np.flatnonzero(wider)
            if len(at):
                fit[at] = self._note(whole, shadow, a, warp[at], g[at], True, lambda i: words(int(at[i])))
                self._add(key, shadow, a, warp, g, fit & ~wider, earlier_reads, words)
                return fit
        self._add(key, shadow, a, warp, g, fit, earlier_reads, words)
        return fit

    def _add(
        self, key: Key, shadow: Any, a: ShadowAccess, warp: Array, g: Array, fit: Array, earlier_reads: bool,
        words: Callable[[int], Any],
    ) -> None:  # fmt: skip
        """Add reads to the new ones, and describe the first doubts."""
        at = np.flatnonzero(fit)
        if not len(at):
            return
        run, of = shadow.run, self._of.setdefault(key, {})
        for i in _first_of_each(warp[at]) if len(self.table) < _NAMED else ():
            if len(self.table) < _NAMED and (number := int(warp[at[i]])) not in of:
                kind, what, details, fix, other = words(int(at[i]))
                # a write's conflicts with other writes are found before these
                when = run.accesses + 0.5 * earlier_reads
                of[number] = len(self.table)
                self.table.append(Doubt(len(self.table), kind, what, a.ins, details, fix, other, when))
        if len(self.table) >= _NAMED and -1 not in of:
            of[-1] = len(self.table)
            self.table.append(Nameless(key, 32 if shadow.in_blocks else shadow.bits))
        if not self.new:
            self._soon(run)
        self._finest[key[0]] = min(shadow.granule, self._finest.get(key[0], shadow.granule))
        self.new.setdefault(key, []).append(spans_of(warp[at], g[at], shadow.granule))

    def _is_full(self, run: Run) -> bool:
        """Return whether so many loads are in doubt that they are no copies of a few, and take time and memory."""
        known = sum(2 * spans.begin.nbytes for spans in self.known.values())
        most = _ROOM + run.memory.writable_bytes // _SHARE
        if known + sum(spans.nbytes for every in self.new.values() for spans in every) <= most:
            return False
        for key, every in self.new.items():
            self.new[key] = [ReadSpans(every).spans]
        return known + sum(spans.nbytes for every in self.new.values() for spans in every) > most // 2

    def _is_certain(self, key: Key, warp: Array) -> Array:
        found: set[int] = self._certain.get(key, set()) | self._certain.get((key[0], 0), set())
        return np.isin(warp, list(found)) if found else np.zeros(warp.shape, np.bool_)

    def _may_be_idle(self, program: Any, load: Instruction) -> bool:
        """Return whether an ordinary load may be needed in some lanes and not in others."""
        if not is_load(load):
            return False
        found = self._used.get(id(load))
        if found is None:
            of = [code.segments for code in program.codes.values() if _holds(code.segments, load)]
            found = self._used[id(load)] = any(is_used(segments, load) for segments in of)
        return found

    def _soon(self, run: Run, more: int = _MORE) -> None:
        """Let the run end soon, as it is to be repeated or to end by an error."""
        self.end = min(self.end, 2 * run.steps + more if more else run.steps)
        run.budget = min(run.budget, self.end)

    def grow(self, shadow: Any, needed: int) -> None:
        """Let no race be in doubt if shadow memory is about to take so much that the copy of memory has no room beside it.

        Raises HazardError to end the run, if it has put races in doubt.
        """
        if self.drop is None or not self.open or self.known:
            return
        shadow.taken += needed
        if shadow.taken <= _BESIDE * shadow.size:
            return
        shadow.taken = shadow.nbytes + needed
        if shadow.taken > _BESIDE * shadow.size:
            self.open, self.given_up = False, bool(self.table)
            if self.given_up:
                raise HazardError(HazardKind.STEP_BUDGET, "the run was ended: it has races in doubt")
            self.drop()

    # --- a load of an earlier run's doubt ------------------------------------------------------------

    def refine(self, shadow: Any) -> None:
        """Give a memory granules that are in doubt as a whole, or not at all."""
        finest = self._finest.get(shadow.identity)
        if finest is not None:
            shadow.fit(finest)

    def without(self, shadow: Any, a: ShadowAccess, g: Array, rows: Array) -> tuple[Array, Array]:
        """Return the granules and rows of a load that shadow memory records. The values of others become poison."""
        if a.strong or (id(a.ins) not in self._sites and 0 not in self._sites) or not is_load(a.ins):
            return g, rows
        marks = self._marks(shadow, a, g, rows)
        if not marks.any():
            return g, rows
        granules, mask, count = a.loaded
        row = np.arange(len(granules)).reshape(-1, *[1] * (granules.ndim - 1))
        lanes = self._marks(shadow, a, granules, row)
        if lanes.ndim == 3:
            lanes = lanes.reshape(*lanes.shape[:2], count if lanes.shape[2] % count == 0 else 1, -1).max(axis=3)
            lanes = lanes if lanes.shape[2] == count > 1 else lanes.max(axis=2)
        if mask is not None:
            lanes = np.where(mask if lanes.ndim == 2 else mask[..., None], lanes, 0)
        raced(a.c, lanes)
        clean = marks == 0
        return g[clean], np.broadcast_to(rows, g.shape)[clean]

    def _marks(self, shadow: Any, a: ShadowAccess, g: Array, rows: Array) -> Array:
        """Return for each granule the mark of its doubt (`poison.py`), or 0."""
        marks = np.zeros(g.shape, np.int32)
        warp = np.broadcast_to(_numbered(shadow, a, rows), g.shape)
        for load in (0, id(a.ins)):
            key = shadow.identity, load
            known = self.known.get(key)
            if known is not None:
                at, held = known.find(warp, g * shadow.granule, shadow.granule)
                marks = np.where(held, self._numbers[key][at] + np.int32(FIRST_DOUBT), marks)
        return marks

    def _read(self, key: Key, shadow: Any, warp: Array, g: Array) -> Array:
        """Return which granules have a byte that the known loads of their warps read."""
        known = self.known.get(key)
        if known is None:
            return np.zeros(g.shape, np.bool_)
        return known.find(warp, g * shadow.granule, shadow.granule)[1]

    # --- a value in doubt decides something ----------------------------------------------------------

    def decide(self, c: Group, number: int, lanes: Array) -> None:
        """Record that a value in doubt has decided something in `lanes` (rows, 32).

        If hazards are errors, the earliest race ends the run.
        """
        run, doubt = c.batch.run, self.table[number]
        if isinstance(doubt, Nameless):
            self._free(c, doubt, lanes)
        elif number not in self.decided:
            self.decided.add(number)
            if not run.reporter.warn:
                if doubt is min(self._named(), key=lambda d: d.when):
                    self.report(run)
                self._soon(run)

    def _free(self, c: Group, doubt: Nameless, lanes: Array) -> None:
        """Let a load be in doubt no more for the warps of these lanes: no warp has another's value in doubt."""
        batch = c.batch
        rows = c.rows[lanes.any(axis=1)]
        team = batch.row_team[rows].astype(np.int64) + batch.first // batch.cluster
        self._certain.setdefault(doubt.key, set()).update(((team << doubt.bits) + batch.row_agent[rows]).tolist())
        if not self._freed:
            self._freed = True
            self._soon(batch.run)

    def unwritten(self, number: int) -> str:
        """Return what a load in doubt reads, if nobody has written that."""
        doubt = self.table[number]
        return doubt.unwritten if isinstance(doubt, Doubt) else ""

    def is_unwritten(self, number: int, origin: str) -> None:
        """Note that a load in doubt reads memory that nobody has written."""
        doubt = self.table[number]
        if isinstance(doubt, Doubt):
            doubt.unwritten = origin

    def _named(self) -> Iterator[Doubt]:
        return (doubt for doubt in self.table if isinstance(doubt, Doubt))

    def report(self, run: Run) -> None:
        """Report the decided races among the run's hazards, in the order in which they were found."""
        report = run.report
        last: list[Finding] = report.findings[len(report.hazards) :]  # the one that ended the run
        del report.findings[len(report.hazards) :]
        for doubt in sorted((d for d in self._named() if d.number in self.decided), key=lambda d: d.when):
            run.reporter.hazard(
                doubt.kind, doubt.what, doubt.ins, doubt.details, doubt.fix, doubt.other, when=doubt.when
            )
        report.findings.sort(key=lambda finding: finding.when)
        report.hazards[:] = [(finding.kind, finding.message) for finding in report.findings]
        report.findings += last


def _numbered(shadow: Any, a: ShadowAccess, rows: Array, agent: Array | None = None) -> Array:
    """Return the numbers of warps: by default of those that access, else of agents of the clusters of these rows."""
    warp = (shadow.name_agent(a)[rows] if agent is None else agent).astype(np.int64)
    if shadow.in_blocks:
        warp = warp + ((a.team.astype(np.int64) + a.c.batch.first // a.c.batch.cluster) << 32)[rows]
    return warp


def _is_ignored(shadow: Any, agent: Array, mine: Array) -> Array:
    """Return whether hazards of pairs of warps, by name, are of a kind that is not reported."""
    ignored = shadow.run.reporter.ignored
    if shadow.in_blocks:
        return np.full(agent.shape, HazardKind.RACE_SHARED in ignored)
    team = agent >> shadow.bits
    near = (team == mine >> shadow.bits) & (
        (agent - (team << shadow.bits)) // shadow.run.warps_per_block
        == (mine - (team << shadow.bits)) // shadow.run.warps_per_block
    )
    return np.where(near, HazardKind.RACE_GLOBAL in ignored, HazardKind.RACE_BLOCKS in ignored)


def _first_of_each(numbers: Array) -> list[int]:
    """Return where each of the numbers is for the first time, in ascending order."""
    return np.sort(np.unique(numbers, return_index=True)[1]).tolist()


def _in_order(numbers: Array) -> list[int]:
    return numbers[_first_of_each(numbers)].tolist()


def _holds(segments: Any, load: Instruction) -> bool:
    return any(ins is load for seg in segments for ins in seg.code)
