"""Endless runs of several groups: all of them together, and all memory, come back to a state that they had before.

Warps that hand a word to each other without end are an example: each of them goes on, so none of them spins alone. The
check saves the state of all groups from time to time, and compares it whenever the same groups are at the same places. A
register that decides nothing (`slices.py`) may differ. Under the eager and the late schedule an equal state means that the
run never ends under that schedule, if each group that can run has run since. If one has not, groups take turns from
then on. The random schedule may still choose another order. So if a state has come back often there, nothing is chosen at random
for a while. If the state still comes back, the run is ended: it has exceeded what it may take, but luck may end it, so this is no
livelock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..ptx.module import Instruction
from .kinds import HazardKind
from .slices import deciding, loop_around

if TYPE_CHECKING:
    from ..machine.batch import Batch
    from ..machine.group import Group
    from ..machine.launch import Run

_FIRST = 20_000  # steps before the first check
_ROUNDS = 65  # how often a state must come back: more often than `Run.looked` lets others go first
_ROUNDS_OF_RANDOM = 256  # after so many under a random schedule, warps take turns for a while
_TURNS = 4 * _ROUNDS  # for so many times the steps between two equal states
_PER_STEP = 1 / 20  # groups that a check compares for each step of the run
_MOST = 1 << 27  # bytes of memory that a check compares


_MEND = "look for a value that these loops change and set back, or add a way out of them"


class Joint:
    """Checks for states of the whole run that come back. `period`: the steps between the last two equal ones."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.next: int = _FIRST
        self.period: int = 0
        self._until = 0
        self._place: Any = None
        self._state: list[Any] = []
        self._unmoved: list[tuple[Group, int]] = []  # groups that could run, and have not run since the state was saved
        self._wanted: dict[Any, int | None] = {}
        self._calls = self._hits = self._at = self._groups = self._bytes = 0
        self._random: Any = None  # the run's and its turns' sources of random numbers, while warps take turns

    def look(self, batch: Batch) -> bool:
        """Return whether the run is in a state that has come back often enough; called before each group."""
        run = self.run
        if not self._until:
            self._begin()
        self._calls += 1
        if run.steps >= self._until or self._groups < 0 or self._bytes < 0:
            self._until = 0
            self.next = run.steps + run.steps // 2
            if self._random:
                (run.rng, run.turns.rng), self._random = self._random, None
            return False
        if self._unmoved:
            self._unmoved = [x for x in self._unmoved if self._waits(*x)]
        if self._calls & (self._calls - 1) == 0:
            self._save(batch)
            return False
        if self._place != (id(batch), *batch.ready) or not self._same():
            return False
        if self._unmoved:  # one of these may end the loops
            for g, _ in self._unmoved:
                g.batch.in_turn = g.batch.in_turn or 1
                g.batch.wake_pollers()
            return False
        self._hits += 1
        self.period, self._at = run.steps - self._at, run.steps
        self._unmoved = self._able()
        if run.rng is not None and self._hits >= _ROUNDS_OF_RANDOM:
            self._take_turns()
            return False
        return self._hits >= _ROUNDS and run.rng is None

    def verdict(self) -> tuple[HazardKind, str, str]:
        """Return the kind, the words and the fix of the report. Another schedule may end the run."""
        again = f"every {self.period} instructions all warps and all memory are again as they were before"
        if not self._random:
            return HazardKind.LIVELOCK, f"the run never ends under this schedule: {again}", _MEND
        what = f"the run was ended, as only luck may end it: if warps take turns, {again}"
        return HazardKind.STEP_BUDGET, what, _MEND

    def _take_turns(self) -> None:
        """Choose nothing at random for a while."""
        run = self.run
        self._random = run.rng, run.turns.rng
        run.rng = run.turns.rng = None
        for batch in run.resident:
            batch.in_turn = batch.in_turn or 1
        self._begin()
        self._until = run.steps + max(run.steps // 2, _TURNS * self.period)

    def _begin(self) -> None:
        run = self.run
        self._until = run.steps + run.steps // 2
        self._calls = 0
        self._groups = int(run.steps * _PER_STEP)
        self._bytes = _MOST

    def _save(self, batch: Batch) -> None:
        run = self.run
        self._hits, self._at = 0, run.steps
        self._place = None
        if run.devices > 1 or run.next_block < run.blocks:
            return
        if any(b.engine.pending or b.wgmma.flight or b.tensor is not None for b in run.resident):
            return
        self._state = list(self._parts())
        self._place = id(batch), *batch.ready
        self._unmoved = self._able()

    def _same(self) -> bool:
        """Return whether the run is in the saved state. It stops at the first difference."""
        if any(b.engine.pending for b in self.run.resident):
            return False
        held = iter(self._state)
        return all(part == next(held, None) for part in self._parts()) and next(held, None) is None

    def _parts(self) -> Iterator[Any]:
        """Yield the state in parts: each group, then barriers and memory."""
        resident = self.run.resident
        for batch in resident:
            waits = (*batch.barriers.waiting, *batch.barriers.cluster_waiting)
            groups = [*batch.ready.values(), *batch.polling, *batch.parked.values(), *(w.group for w in waits)]
            for g in sorted(groups, key=_first_lane):
                self._groups -= 1
                yield id(batch), g.key, g.rows.tobytes(), g.mask is not None and g.mask.tobytes()
                yield from self._registers(batch, g)
        for batch in resident:
            for array in batch.memory():
                self._bytes -= array.nbytes
                yield hash(array.tobytes())
        for buffer in self.run.memory.buffers.values():
            if buffer.writable:
                self._bytes -= len(buffer.bytes)
                yield hash(buffer.bytes.tobytes())

    def _registers(self, batch: Batch, g: Group) -> Iterator[int]:
        stack = g.stack
        while stack.depth:
            yield batch.frame(stack.depth - 1, stack.name).digest(g.select)
            stack = stack.outer
        key = g.frame.code.name, g.pc
        if key not in self._wanted:
            segments = g.frame.code.segments
            loop = frozenset(loop_around(segments, g.pc))
            self._wanted[key] = deciding(segments, loop, g.pc) if loop and not g.stack.depth else None
        yield g.frame.digest(g.select, self._wanted[key])

    def _able(self) -> list[tuple[Group, int]]:
        """Return the groups that could run, with their places."""
        polling = [g for b in self.run.resident for g in b.polling if isinstance(g.why, Instruction)]
        return [(g, g.pc) for g in (*(g for b in self.run.resident for g in b.ready.values()), *polling)]

    def _waits(self, g: Group, pc: int) -> bool:
        """Return whether a group has been at its place since, and has not run."""
        batch = g.batch
        return g.pc == pc and batch.ran is not g and (batch.ready.get(g.key) is g or g in batch.polling)


def _first_lane(g: Group) -> tuple[int, int]:
    return int(g.rows[0]), int(g.active[0].argmax())
