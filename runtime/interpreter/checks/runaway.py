"""Finds loops that never end, or that exceed the step budget, long before the budget has run out.

The end of many loops depends only on counters, not on loaded values. One round is then a function of a few registers.
If these change by the same amount in each round, later rounds need not run one after the other. The function is
computed for thousands of rounds at once, each from its predicted registers. If each round results in the registers of
the next, and no branch takes another direction, all these rounds will run.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..isa.liveness import numbers_of, used
from ..ptx.module import Instruction, Special
from .kinds import HazardKind
from .slices import loop_around

if TYPE_CHECKING:
    from ..machine.batch import Batch
    from ..machine.group import Group
    from ..machine.launch import Run

Array = npt.NDArray[Any]
_EVERY = 2_000  # the fewest steps between two checks: eight end before `patience.py` ends a loop of atomics
_GROUPS = 4  # the most groups that a check considers
_PATH = 1000  # the most segments of a round
_TOGETHER = 1 << 15  # rounds that are computed at once
_CLOCKS = ("%clock", "%globaltimer")


class Rounds:
    """Checks for endless loops from time to time."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.next: int = _EVERY
        self._decided: dict[Any, int | None] = {}

    def look(self, batch: Batch) -> None:
        """Raise a hazard if a loop of a ready group will exceed the step budget."""
        steps = self.run.steps
        self.next = steps + max(_EVERY, steps // 4)
        for g in list(batch.ready.values())[:_GROUPS]:
            key = g.frame.code.name, g.pc
            if key not in self._decided:
                self._decided[key] = deciding_by(g.frame.code.segments, g.pc)
            wanted = self._decided[key]
            if wanted == 0:
                self._never_ends(g)
            elif wanted is not None:
                self._judge(g, wanted)

    def _judge(self, g: Group, wanted: int) -> None:
        start = Round(g, wanted, int(np.flatnonzero(g.active.reshape(-1))[0]))
        first = start.after(start.registers)  # what is left from before the loop is gone then
        second = first and start.after(first)
        if not first or not second:
            return
        if all(np.array_equal(first[slot], second[slot], equal_nan=True) for slot in first):
            self._never_ends(g)
        budget = self.run.config.step_budget
        needed = (budget - self.run.steps) // start.cost + 1
        if start.lasts(first, second, needed):
            what = f"this loop goes round {needed} times more, for which the step budget of {budget} instructions is too small"
            fix = "check the loop's bound, or raise InterpretParams(step_budget=)"
            self._report(g, HazardKind.STEP_BUDGET, what, fix)

    def _never_ends(self, g: Group) -> None:
        what = "this loop never ends: no instruction in it changes what its branches depend on"
        self._report(g, HazardKind.LIVELOCK, what, "change such a value in the loop, or add a way out of it")

    def _report(self, g: Group, kind: HazardKind, what: str, fix: str) -> None:
        segments = g.frame.code.segments
        code = (
            ins
            for n in (g.pc, *sorted(loop_around(segments, g.pc)))
            for ins in (*segments[n].code, segments[n].end)
            if ins
        )
        at = segments[g.pc].sync_ins or next(code, None)
        _, _, who = self.run.reporter.group(g, g.active)
        self.run.reporter.hazard(kind, what, at, (who,), fix, ends=True)


class Round:
    """One round of a loop, from a group's segment back to it, as a function of registers of one lane."""

    def __init__(self, g: Group, wanted: int, lane: int) -> None:
        self.segments: Any = g.frame.code.segments
        self.start: int = g.pc
        self.wanted = wanted
        self.cost: int = 0  # steps of the last computed round
        self.fits: Any = None
        self.g = g
        self.lane = lane
        self.mask: Any = None
        self.n: int = 1
        self.pc: int = g.pc
        self.v: _Lane = _Lane(g, self.lane, {})
        self.registers: dict[int, Array] = {slot: self.v[slot] for slot in numbers_of(wanted)}

    def put(self, slot: int, value: Array) -> None:
        """Set a register. Builders of instructions call it as they call a group's `put`."""
        value = self._each(value)
        self.v[slot] = value if self.mask is None else np.where(self.mask, value, self.v[slot])

    def _each(self, value: Array) -> Array:
        """A value of each round. Nearly all are that; `np.broadcast_to` takes longer than to see this."""
        return value if value.shape == (self.n, 1) else np.broadcast_to(value, (self.n, 1))

    def lanes(self, pc: int, chosen: Array) -> Round:
        """Return the rounds where `chosen` is True, with the same registers."""
        part = copy(self)
        part.mask = chosen[:, :1]
        return part

    def after(self, registers: dict[int, Array]) -> dict[int, Array] | None:
        """Return the registers (rounds, 1) after one round from these; None if the lane leaves the loop.

        `fits` then holds which rounds take the same path as the first one.
        """
        self.n = len(next(iter(registers.values()))) if registers else 1
        self.v = _Lane(self.g, self.lane, registers)
        self.fits = np.ones((self.n, 1), np.bool_)
        self.cost, at = 0, self.start
        for _ in range(_PATH):
            seg = self.segments[at]
            self.cost += seg.cost
            for op, ins, _ in seg.sources:
                if used(ins)[1] & self.wanted and not self.execute(op, ins):
                    return None
            if seg.kind == "branch":
                taken = self._each(self.v[seg.guard[0]] != seg.guard[1])
                self.fits &= taken == taken[0]
                at = seg.targets[0 if taken[0, 0] else 1]
            elif seg.kind == "fall":
                at = seg.next
            else:
                return None
            if at == self.start:
                return {slot: self._each(self.v[slot]) for slot in registers}
        return None

    def execute(self, op: Any, ins: Instruction) -> bool:
        """Execute an instruction that sets registers; return whether that is possible."""
        op(self)
        return True

    def lasts(self, first: dict[int, Array], second: dict[int, Array], needed: int) -> bool:
        """Return whether the loop certainly runs `needed` rounds from the registers `first`; `second` are those after
        one round.
        """
        if any(not np.array_equal(first[s], second[s]) for s in first if first[s].dtype.kind not in "ui"):
            return False
        steps = {s: second[s] - first[s] for s in first if first[s].dtype.kind in "ui"}
        for begin in range(0, needed, _TOGETHER):
            rounds = np.arange(begin, min(begin + _TOGETHER, needed) + 1, dtype=np.uint64)[:, None]
            states = {
                s: first[s] + rounds.astype(first[s].dtype) * steps[s]
                if s in steps
                else np.repeat(first[s], len(rounds), 0)
                for s in first
            }
            found = self.after({s: x[:-1] for s, x in states.items()})
            if found is None or not self.fits.all():
                return False
            if not all(np.array_equal(found[s], states[s][1:], equal_nan=True) for s in found):
                return False
        return True


class _Lane(dict[int, Array]):
    """The values of registers and constants, (rounds, 1). Registers that no round has set have the value of a group's
    lane, (1, 1).
    """

    def __init__(self, g: Group, lane: int, known: dict[int, Array]) -> None:
        super().__init__(known)
        self.g = g
        self.lane = lane

    def __missing__(self, slot: int) -> Array:
        row, lane = divmod(self.lane, 32)
        value = np.broadcast_to(self.g.v[slot], (self.g.n, 32))[row, lane].reshape(1, 1)
        self[slot] = value
        return value


def deciding_by(segments: Any, at: int, loads: Callable[[Instruction], bool] | None = None) -> int | None:
    """The registers (a bit set) by which warps stay in the loops around a segment; None if there is no such set.

    `loads`: whether an instruction that is not elementwise may set one of them. Then the set also has the predicates of all
    instructions that are not elementwise, as a store may change what a load brings.
    """
    loop = loop_around(segments, at)
    if not loop or any(segments[n].kind not in ("fall", "branch") for n in loop):
        return None
    if all(target in loop for n in loop for target in segments[n].targets):
        return 0  # no branch leaves it
    wanted = 0
    for n in loop:
        if segments[n].kind == "branch":
            wanted |= 1 << segments[n].guard[0]
    sources = [source for n in loop for source in segments[n].sources]
    for _, ins, elementwise in sources if loads else ():
        if ins.guard is not None and not elementwise:
            wanted |= 1 << ins.guard[0].index
    while True:
        before_this = wanted
        for _, ins, elementwise in sources:
            reads, writes = used(ins)
            if writes & wanted:
                if not (elementwise or (loads and loads(ins))) or any(
                    isinstance(o, Special) and o.name.startswith(_CLOCKS) for o in ins.operands
                ):
                    return None
                wanted |= reads
        if wanted == before_this:
            return wanted
