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

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..ptx.module import Instruction
from .hazards import Finding, Place
from .kinds import HazardKind
from .poison import FIRST_DOUBT, raced
from .slices import is_used
from .wording import described

if TYPE_CHECKING:
    from ..machine.launch import Run
    from .shadow import ShadowAccess

Array = npt.NDArray[Any]
Key = tuple[Any, int, int, int]  # the memory, the reader's cluster and number, its instruction (0: any)
_KINDS = (HazardKind.RACE_SHARED, HazardKind.RACE_GLOBAL, HazardKind.RACE_BLOCKS)
_STRONG = {"volatile", "relaxed", "acquire", "release", "mmio"}
_MORE = 10_000  # a run with new doubts ends after twice its steps and so many
_ATTEMPTS = 24  # the most runs of a launch
_MOST = 512  # the most loads of warps that are in doubt in a launch
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


class Doubts:
    """The loads of a launch that are in doubt, over its runs.

    `known`: the bytes that they read in earlier runs, by key: (begin, end) of spans, in ascending order with gaps between
    them, so that a whole array takes few bytes. `new`: spans that this run has found.
    `end`: the steps after which this run ends in any case. `open`: whether further races may be in doubt.
    """

    def __init__(self, open_: bool = True) -> None:
        self.open: bool = open_
        self.attempts: int = 0
        self.given_up: bool = False  # the next run has no doubts, not even known ones
        self.end: int = _NEVER
        self.known: dict[Key, Array] = {}
        self.new: dict[Key, list[Array]] = {}
        self.table: list[Doubt] = []
        self.decided: set[int] = set()
        self._of: dict[Key, int] = {}  # the number of each key's doubt
        self._used: dict[int, bool] = {}  # which loads may reach an effect
        self._finest: dict[Any, int] = {}  # by memory, the size of the granules that were in doubt
        self._sites: set[int] = set()  # the instructions of known loads

    def begin(self) -> None:
        """Begin another run of the launch."""
        self.attempts += 1
        self.open = self.open and self.attempts < _ATTEMPTS
        if self.given_up:
            for found in (self.known, self.new, self.table, self._of, self._finest, self._sites):
                found.clear()
            self.given_up = False
        for key, found in self.new.items():
            before = self.known.get(key)
            self.known[key] = _joined([*found, *([] if before is None else [before])])
            self._sites.add(key[3])
        self.new.clear()
        self.decided.clear()
        self.end = _NEVER

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
        if not (_is_store(a.ins) if earlier_reads else self._may_be_idle(run.program, a.ins)):
            return bad
        g, rows, epochs, sites = (np.broadcast_to(x, bad.shape) for x in (g, rows, epochs, sites))
        readers = shadow.agent_of(epochs[bad]) if earlier_reads else rows[bad]
        if len(self.table) + len(np.unique(readers)) > _MOST:
            return self._give_up(run, bad)
        step = max(_AT_ONCE * len(bad) // bad.size, 1)
        cuts = (slice(i, i + step) for i in range(0, len(bad), step))
        parts = [self._put_off(shadow, a, g[c], rows[c], bad[c], epochs[c], sites[c], earlier_reads) for c in cuts]
        return np.concatenate(parts)

    def _put_off(
        self, shadow: Any, a: ShadowAccess, g: Array, rows: Array, bad: Array, epochs: Array, sites: Array,
        earlier_reads: bool,
    ) -> Array:  # fmt: skip
        """As `put_off`, for some of the accesses; all arrays have one shape."""
        run = shadow.run
        plain = partial(self._may_be_idle, run.program) if earlier_reads else _is_store
        at = np.nonzero(bad)
        granule, row, epoch, site = (x[at] for x in (g, rows, epochs, sites))
        agent = shadow.agent_of(epoch)
        fit = ~shadow.is_queue(agent)
        if not shadow.in_blocks:  # folding has dropped the names of some readers (`folding.py`)
            fit &= (agent >> shadow.bits) < run.teams
        for number in np.unique(site).tolist():
            fit &= (site != number) | plain(run.sites[number])
        reader, load = (agent, site) if earlier_reads else (shadow.name_agent(a)[row], np.full(len(row), a.site))
        team: Array = a.team[row] + a.c.batch.first // a.c.batch.cluster if shadow.in_blocks else 0 * row
        keys, first, of = np.unique(
            np.stack([x.astype(np.int64) for x in (team, reader, load)], axis=1),
            axis=0, return_index=True, return_inverse=True,
        )  # fmt: skip
        if len(self.table) + len(first) > _MOST:
            return self._give_up(run, bad)
        order = np.argsort(of.reshape(-1), kind="stable")
        ends = np.cumsum(np.bincount(of.reshape(-1), minlength=len(first)))
        for n in np.argsort(first):
            mine = order[ends[n - 1] if n else 0 : ends[n]]
            mine = mine[fit[mine]]
            if not len(mine):
                continue
            i = int(mine[0])
            earlier = int(row[i]), int(granule[i]), int(epoch[i]), int(site[i])
            words = partial(described, shadow, a, *earlier, earlier_reads, earlier_reads)
            key = (shadow.identity, int(keys[n, 0]), int(keys[n, 1]), id(run.sites[int(keys[n, 2])]))
            fit[mine] = self._note(key, shadow, a, granule[mine], earlier_reads, words)
        left = bad.copy()
        left[at] = ~fit
        return left

    def _give_up(self, run: Run, bad: Array) -> Array:
        """Let no race of this launch be in doubt: so many loads in doubt take time and memory, and are no copies of a few."""
        self.open, self.given_up = False, True
        self._soon(run)
        return bad

    def _note(
        self, key: Key, shadow: Any, a: ShadowAccess, g: Array, earlier_reads: bool, words: Callable[[], Any]
    ) -> Array:  # fmt: skip
        """Put the reads of granules `g` by a key in doubt. Return for each of them whether it can be.

        Shared memory knows all readers of a granule, and the instruction of the last one. So where the load of this instruction
        is in doubt already, all loads of the warp become so.
        """
        run, held = shadow.run, self._read(key, shadow, g)
        whole = (*key[:3], 0)
        if held.any() and earlier_reads and shadow.in_blocks and not self._read(whole, shadow, g).any():
            return self._note(whole, shadow, a, g, earlier_reads, words)
        if held.all():
            return ~held
        if key not in self._of:
            kind, what, details, fix, other = words()
            if kind not in _KINDS or kind in run.reporter.ignored:
                return np.zeros(g.shape, np.bool_)
            when = run.accesses + 0.5 * earlier_reads  # a write's conflicts with other writes are found before these
            self._of[key] = len(self.table)
            self.table.append(Doubt(len(self.table), kind, what, a.ins, details, fix, other, when))
        if not self.new:
            self._soon(run)
        self._finest[key[0]] = min(shadow.granule, self._finest.get(key[0], shadow.granule))
        self.new.setdefault(key, []).append(_spans(g[~held]) * shadow.granule)
        return ~held

    def _may_be_idle(self, program: Any, load: Instruction) -> bool:
        """Return whether an ordinary load may be needed in some lanes and not in others."""
        if not _is_load(load):
            return False
        found = self._used.get(id(load))
        if found is None:
            of = [code.segments for code in program.codes.values() if _holds(code.segments, load)]
            found = self._used[id(load)] = any(is_used(segments, load) for segments in of)
        return found

    def _soon(self, run: Run) -> None:
        """Let the run end soon, as it is to be repeated or to end by an error."""
        self.end = min(self.end, 2 * run.steps + _MORE)
        run.budget = min(run.budget, self.end)

    # --- a load of an earlier run's doubt ------------------------------------------------------------

    def refine(self, shadow: Any) -> None:
        """Give a memory granules that are in doubt as a whole, or not at all."""
        finest = self._finest.get(shadow.identity)
        if finest is not None:
            shadow.fit(finest)

    def without(self, shadow: Any, a: ShadowAccess, g: Array, rows: Array) -> tuple[Array, Array]:
        """Return the granules and rows of a load that shadow memory records. The values of others become poison."""
        if a.strong or (id(a.ins) not in self._sites and 0 not in self._sites) or not _is_load(a.ins):
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
        row: Array = np.broadcast_to(rows, g.shape)
        first = a.c.batch.first // a.c.batch.cluster
        names = shadow.name_agent(a).tolist()
        for n in np.unique(row).tolist():
            team = int(a.team[n]) + first if shadow.in_blocks else 0
            for site in (0, id(a.ins)):
                key = (shadow.identity, team, names[n], site)
                if key in self.known:
                    mine = row == n
                    marks[mine] = np.where(self._read(key, shadow, g[mine]), self._of[key] + FIRST_DOUBT, marks[mine])
        return marks

    def _read(self, key: Key, shadow: Any, g: Array) -> Array:
        """Return which granules have a byte that the key's known loads read."""
        known = self.known.get(key)
        if known is None:
            return np.zeros(g.shape, np.bool_)
        begin = g * shadow.granule
        ended = np.searchsorted(known[:, 1], begin, side="right")
        return ended < np.searchsorted(known[:, 0], begin + shadow.granule)

    # --- a value in doubt decides something ----------------------------------------------------------

    def decide(self, run: Run, doubt: Doubt) -> None:
        """Record that a value in doubt has decided something. If hazards are errors, the earliest race ends the run."""
        if doubt.number in self.decided:
            return
        self.decided.add(doubt.number)
        if not run.reporter.warn:
            if doubt is min(self.table, key=lambda d: d.when):
                self.report(run)
            self._soon(run)

    def report(self, run: Run) -> None:
        """Report the decided races among the run's hazards, in the order in which they were found."""
        report = run.report
        last: list[Finding] = report.findings[len(report.hazards) :]  # the one that ended the run
        del report.findings[len(report.hazards) :]
        for doubt in sorted((self.table[n] for n in self.decided), key=lambda d: d.when):
            run.reporter.hazard(
                doubt.kind, doubt.what, doubt.ins, doubt.details, doubt.fix, doubt.other, when=doubt.when
            )
        report.findings.sort(key=lambda finding: finding.when)
        report.hazards[:] = [(finding.kind, finding.message) for finding in report.findings]
        report.findings += last


def _spans(numbers: Array) -> Array:
    """(begin, end) of the runs of successive numbers."""
    found = np.unique(numbers)
    first = np.concatenate([[True], np.diff(found) > 1])
    return np.stack([found[first], found[np.roll(first, -1)] + 1], axis=1)


def _joined(spans: list[Array]) -> Array:
    """The union of spans, as spans with gaps between them."""
    found = np.concatenate(spans)
    found = found[np.argsort(found[:, 0], kind="stable")]
    ends = np.maximum.accumulate(found[:, 1])
    first = np.concatenate([[True], found[1:, 0] > ends[:-1]])
    return np.stack([found[first, 0], ends[np.roll(first, -1)]], axis=1)


def _is_load(ins: Instruction) -> bool:
    return ins.opcode[0] in ("ld", "ldu") and _STRONG.isdisjoint(ins.opcode)


def _is_store(ins: Instruction) -> bool:
    return ins.opcode[0] == "st" and "async" not in ins.opcode and _STRONG.isdisjoint(ins.opcode)


def _holds(segments: Any, load: Instruction) -> bool:
    return any(ins is load for seg in segments for ins in seg.code)


def may_doubt(code: list[Instruction]) -> bool:
    """Return whether a program has ordinary loads and stores of memory that others see."""
    kinds = {_is_load(ins) for ins in code if (_is_load(ins) or _is_store(ins)) and _is_open(ins)}
    return kinds == {True, False}


def _is_open(ins: Instruction) -> bool:
    return not any(word in ("local", "const") or word.startswith("param") for word in ins.opcode)
