"""Ends runs that show no sign that they will end.

Whether a loop ends cannot always be decided: memory that the loop itself changes, or a state with a long period, may end it. A
checker that waits for the whole step budget takes minutes for each run. So it looks at the run in regular intervals for signs
of an end: a warp has left, a block has started, or a lane has come nearer to a bound in its outermost loop. Such a lane compares
a counter (or a loaded value, or an atomic's result) with the bound. The distance of the two is smaller than ever before, and at
this pace it is zero within a million instructions. A run without a sign for some time is ended, and the report says what its
lanes were doing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..isa.liveness import numbers_of, used
from ..ptx.module import Imm, Instruction, Operand, Reg, Special
from .hazards import HazardError
from .kinds import HazardKind
from .slices import loop_around

if TYPE_CHECKING:
    from ..machine.batch import Batch
    from ..machine.frame import Frame
    from ..machine.group import Group
    from ..machine.launch import Run
    from ..machine.program import Seg

Array = npt.NDArray[Any]
Number = int | float
_LOOKS = 8  # a run without a sign at so many looks in a row is ended
_NEARER = 7  # the looks in a row at which a lane must be as near to the end of its loop as before, or nearer
_FAR = 1_000_000  # the most instructions that a lane may need to the end of its loop
_LANES = 64  # the most lanes that are followed
_CALLS = 8  # the outermost calls whose loops are looked for
_LINES = 8  # the most lanes that a report describes
_NAMES = 6  # the most registers that it names


@dataclass(slots=True)
class FollowedLoop:
    """A loop around a segment: its comparisons, those that decide its branches out, and the registers that it writes."""

    comparisons: tuple[Instruction, ...]
    deciding: tuple[Instruction, ...]
    written: tuple[int, ...]
    at: Instruction | None


@dataclass(slots=True)
class Followed:
    """A lane. By comparison, `distances`: (steps, distance) at the last looks; `nearest`: the least distance before these;
    `values`: the operands at the last two looks.
    """

    batch: Batch
    row: int
    lane: int
    loop: FollowedLoop | None = None
    distances: dict[int, list[tuple[int, Number]]] = field(default_factory=dict[int, list[tuple[int, Number]]])
    values: dict[int, list[tuple[Number, Number]]] = field(default_factory=dict[int, list[tuple[Number, Number]]])
    nearest: dict[int, Number] = field(default_factory=dict[int, Number])
    registers: dict[int, bytes] = field(default_factory=dict[int, bytes])
    changing: list[str] = field(default_factory=list[str])

    def begin(self, loop: FollowedLoop | None) -> None:
        """Forget the loop before this one."""
        self.loop = loop
        for table in (self.distances, self.values, self.nearest, self.registers):
            table.clear()

    def enter(self, key: int, steps: int, distance: Number) -> None:
        """Record a distance, and keep the last ones."""
        found = self.distances.setdefault(key, [])
        found.append((steps, distance))
        if len(found) > _NEARER:
            self.nearest[key] = min(found.pop(0)[1], self.nearest.get(key, distance))


class Patience:
    """Looks for signs of an end every `steps` / 8 instructions, and ends the run after `steps` without one.

    Instructions that take long count more than once (`Run.takes_long`). With `steps` = 0 the step budget alone ends it.
    """

    def __init__(self, run: Run, steps: int) -> None:
        self.run = run
        self.every: int = steps // _LOOKS
        self._idle = 0
        self._seen: list[int] = [0]  # the numbers of steps at the last sign and at the looks since
        self._counts: Any = None
        self._followed: dict[tuple[int, int, int], Followed] = {}
        self._loops: dict[Any, FollowedLoop | None] = {}

    @property
    def first(self) -> int:
        """The number of steps before the first look."""
        return self.next_after(0)

    def next_after(self, steps: int) -> int:
        """Return the number of steps at which the run is looked at next."""
        budget = min(self.run.config.step_budget, self.run.doubts.end)
        return min(steps + self.every, budget) if self.every else budget

    def look(self, g: Group, seg: Seg) -> int:
        """Return when to look again; end a run that exceeds the step budget, or that has shown no sign for long."""
        run = self.run
        ended = run.steps > run.config.step_budget
        if run.steps > run.doubts.end and not ended:
            raise HazardError(HazardKind.STEP_BUDGET, "the run was ended: it has races in doubt")
        found = run.report.findings or run.doubts.decided
        if self.every and found and not ended:  # the run goes on with a hazard's consequences
            words = "the run was ended: it had hazards, and did not end by itself"
            raise HazardError(HazardKind.STEP_BUDGET, words)
        if self._sign(g):
            self._idle = 0
            self._seen.clear()
        else:
            self._idle += 1
        self._seen.append(run.steps)
        if ended or self._idle >= _LOOKS:
            self._report(g, seg, ended)
        return self.next_after(run.steps)

    def _sign(self, g: Group) -> bool:
        counts = self.run.exits, self.run.next_block
        left, self._counts = self._counts not in (None, counts), counts
        self._follow(g)
        return left or any(map(self._nearer, self._followed.values()))

    def _follow(self, g: Group) -> None:
        """Take what the followed lanes compare, and follow lanes of groups without one. `g` is the group that runs."""
        kept: dict[tuple[int, int, int], Followed] = {}
        for group in (g, *_groups(self.run)):
            held = [lane for lane in self._followed.values() if _holds(group, lane)]
            if not held and len(kept) < _LANES:
                row, at = (int(i) for i in np.argwhere(group.active)[0])
                held = [Followed(group.batch, int(group.rows[row]), at)]
            for lane in held:
                key = lane.batch.first, lane.row, lane.lane
                if key not in kept:
                    kept[key] = lane
                    self._take(group, lane)
        self._followed = kept

    def _take(self, g: Group, lane: Followed) -> None:
        """Enter what a lane of `g` compares now."""
        steps = self.run.steps
        frame, pc = self._outermost(g)
        loop = self._loop(frame.code, pc)
        if loop is not lane.loop:
            lane.begin(loop)
        if loop is None:  # it goes straight on
            lane.enter(0, steps, len(frame.code.segments) - pc)
            return
        for ins in loop.comparisons:
            a, b = (_value(frame, lane, o, ins.opcode[-1]) for o in ins.operands[1:3])
            if a is not None and b is not None and a == a and b == b:
                lane.values[id(ins)] = [*lane.values.get(id(ins), [])[-1:], (a, b)]
                lane.enter(id(ins), steps, abs(a - b))
        now = {slot: frame.base(slot)[lane.row, lane.lane].tobytes() for slot in loop.written}
        changed = [slot for slot, bits in now.items() if lane.registers.get(slot, bits) != bits]
        lane.changing = [frame.code.fn.registers[slot].name for slot in changed]
        lane.registers = now

    def _outermost(self, g: Group) -> tuple[Frame, int]:
        """Return the outermost function that is in a loop, and its segment; otherwise those of the group."""
        for depth in range(min(g.stack.depth, _CALLS)):
            stack = g.stack.at(depth + 1)
            frame = g.batch.frame(depth, stack.name)
            if self._loop(frame.code, stack.pc) is not None:
                return frame, stack.pc
        return g.frame, g.pc

    def _loop(self, code: Any, pc: int) -> FollowedLoop | None:
        key = code.name, pc
        if key not in self._loops:
            around = loop_around(code.segments, pc)
            same = next((x for n in around if (x := self._loops.get((code.name, n)))), None)
            self._loops[key] = same or (_loop_of(code.segments, around) if around else None)
        return self._loops[key]

    def _nearer(self, lane: Followed) -> bool:
        """Return whether a lane has come nearer to a bound, was never farther than before, and gets there soon."""
        for key, found in lane.distances.items():
            (begin, far), (steps, near) = found[0], found[-1]
            if len(found) < _NEARER or near >= min(far, lane.nearest.get(key, far)):
                continue
            if all(b[1] <= a[1] for a, b in pairwise(found)) and near * (steps - begin) / (far - near) <= _FAR:
                return True
        return False

    def _report(self, g: Group, seg: Seg, ended: bool) -> None:
        run = self.run
        if ended:
            what = f"the step budget of {run.config.step_budget} instructions ran out"
            fix = "look for an endless loop, or raise InterpretParams(step_budget=)"
        else:
            last = min(run.steps - self._seen[0], _LOOKS * self.every)
            what = (
                f"the run was ended after {run.steps} instructions, as it showed no sign of an end in the last {last}"
            )
            fix = "look for an endless loop; if the loop ends, give step_budget=, the instructions that a run may take"
        ins = seg.sync_ins or seg.end or (seg.code[0] if seg.code else None)
        lines = [self._words(lane) for lane in list(self._followed.values())[:_LINES]]
        if not lines:
            lines = [run.reporter.group(g, g.active)[2]]
        run.reporter.hazard(HazardKind.STEP_BUDGET, what, ins, tuple(lines), fix, ends=True)

    def _words(self, lane: Followed) -> str:
        """Return what a lane was doing."""
        batch, reporter = lane.batch, self.run.reporter
        where = batch.coordinates[int(batch.row_cta[lane.row])]
        words = reporter.who(where, int(batch.row_warp[lane.row]), lane.lane)
        if lane.loop is None:
            return words
        ago = min(self._seen[-1] - (self._seen[-2] if len(self._seen) > 1 else 0), self.every)
        words += f": goes round at {reporter.place(lane.loop.at)}"
        for ins in lane.loop.deciding:
            values = lane.values.get(id(ins), [])
            if len(values) > 1:
                names = [_name(o, v) for o, v in zip(ins.operands[1:3], values[-1], strict=True)]
                before = " and ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values[-2])
                words += f"; compares {names[0]} with {names[1]}, {ago} instructions before {before}"
        if lane.changing:
            more = len(lane.changing) - _NAMES
            words += f"; {', '.join(lane.changing[:_NAMES])}{f' and {more} more' if more > 0 else ''} changed"
        return words


def _groups(run: Run) -> Iterable[Group]:
    for batch in run.resident:
        waiting = [w.group for w in (*batch.barriers.waiting, *batch.barriers.cluster_waiting)]
        yield from (*batch.ready.values(), *batch.polling, *batch.parked.values(), *waiting)


def _holds(g: Group, lane: Followed) -> bool:
    """Return whether a lane is one of a group."""
    if g.batch is not lane.batch:
        return False
    at = int(np.searchsorted(g.rows, lane.row))
    return at < g.n and int(g.rows[at]) == lane.row and bool(g.active[at, lane.lane])


def _loop_of(segments: Any, around: set[int]) -> FollowedLoop:
    """Return the loop of these segments."""
    code = [ins for n in sorted(around) for ins in segments[n].code]
    wanted = 0
    for n in around:
        if segments[n].kind == "branch" and any(target not in around for target in segments[n].targets):
            wanted |= 1 << segments[n].guard[0]
    effects = [(ins, *used(ins)) for ins in code]
    before = None
    while wanted != before:
        before = wanted
        for _, reads, writes in effects:
            if writes & wanted:
                wanted |= reads
    compares = tuple(i for i in code if i.opcode[0] == "setp")
    deciding = tuple(i for i, _, w in effects if w & wanted and i.opcode[0] == "setp")
    written = 0
    for _, _, writes in effects:
        written |= writes
    return FollowedLoop(compares, deciding, tuple(numbers_of(written)), next(iter(code), None))


def _value(frame: Frame, lane: Followed, operand: Operand, type_: str) -> Number | None:
    """Return a lane's value of an operand of a comparison; None if it is no number."""
    if isinstance(operand, Imm) and operand.kind == "int":
        return operand.value
    if isinstance(operand, Imm):
        bits = np.array([operand.value], np.uint64)
        value = bits.view(np.float64) if operand.kind == "f64" else bits.astype(np.uint32).view(np.float32)
        return float(value[0])
    if isinstance(operand, Special):
        held = np.broadcast_to(lane.batch.special(operand.name), (lane.batch.warps, 32))[lane.row, lane.lane]
    elif isinstance(operand, Reg):
        held = frame.base(operand.index)[lane.row, lane.lane]
    else:
        return None
    if held.dtype.kind not in "uif" or type_[:1] not in "subf":
        return None
    value = held.view({"s": "i", "f": "f"}.get(type_[0], "u") + str(held.itemsize))
    return float(value) if type_[0] == "f" else int(value)


def _name(operand: Operand, value: Number) -> str:
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{operand.name} = {shown}" if isinstance(operand, Reg | Special) else shown
