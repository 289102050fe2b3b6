"""Endless spins: the whole state of a batch repeats, and no other warp can change the data that it reads.

The check compares the whole state from time to time: deciding registers (`slices.py`), local and shared memory,
barriers, the writable arrays. If a state occurs twice with one group ready and nothing in flight, it repeats without
end, unless another block changes global memory. So the other blocks run first, and further blocks start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..ptx.module import Instruction
from .awaited import awaited
from .frozen import Frozen
from .joint import Joint
from .kinds import HazardKind
from .runaway import Rounds
from .slices import deciding, looping, with_pauses

if TYPE_CHECKING:
    from ..machine.batch import Batch
    from ..machine.frame import Frame
    from ..machine.group import Group
    from ..machine.launch import Run

Array = npt.NDArray[Any]
_FIRST = 20_000  # steps before the first check
_FIRST_OF_SEVERAL = 2_000  # the same, if several GPUs wait for each other
_WINDOW = 4_000  # groups that one check watches
_MOST = 1 << 25  # with more bytes of arrays nothing is checked
_ROUNDS = 4


@dataclass(slots=True)
class Saved:
    """A batch's state: the place of its one ready group, its registers (frame, number, bits), and a hash of the rest."""

    place: Any
    registers: list[tuple[Frame, int, Array]]
    rest: int
    rounds: int = 0


class Watch:
    """Finds batches that repeat themselves."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.first: int = _FIRST if run.devices == 1 else _FIRST_OF_SEVERAL
        self.next: int = self.first
        self.left: int = 0
        self.saved: Saved | None = None
        self.asleep: dict[int, int] = {}  # batch -> the hash of global memory when the batch was found to repeat itself
        self.polled: Any = None  # memory and the polling groups, as `polled_before` found them last
        self._again = 0  # how often it has found the same since
        self._atomics = -1
        self.seen: set[Any] = set()  # states of those that poll, since memory last changed
        self._slices: dict[Any, int | None] = {}
        self._looping: dict[str, set[int]] = {}  # by function, the segments in loops
        self.rounds: Rounds = Rounds(run)
        self.frozen: Frozen = Frozen(run)
        self.joint: Joint = Joint(run)

    def repeats(self, batch: Batch) -> bool:
        """Return whether this batch repeats itself; called before each group."""
        if self.run.steps >= self.rounds.next:
            self.rounds.look(batch)
            if self.frozen.look():
                livelock(self.run)
        if self.run.steps >= self.joint.next and self.joint.look(batch):
            livelock(self.run, *self.joint.verdict())
        if self.run.steps < self.next:
            return False
        if self.left == 0:
            self._begin(batch)
            return False
        self.left -= 1
        if self.left == 0:
            self.next = self.run.steps + max(self.first, self.run.steps // 2)
            self.saved = None
            return False
        if not _alone(batch) or self.saved is None or _place(batch) != self.saved.place or not self._same(batch):
            return False
        self.saved.rounds += 1
        if self.saved.rounds < _ROUNDS:
            return False
        self.left, self.saved = 0, None
        self.asleep[id(batch)] = self.memory()
        return True

    def _begin(self, batch: Batch) -> None:
        if not _alone(batch):
            return
        if self.run.memory.writable_bytes > _MOST:
            self.next = 1 << 62
            return
        self.left = _WINDOW
        batch.trail = set()
        self.seen.clear()
        registers = [(f, slot, r.copy()) for f in batch.frames.values() for slot, r in f.registers.items()]
        self.saved = Saved(_place(batch), registers, self._rest(batch))

    def _same(self, batch: Batch) -> bool:
        """Return whether the batch is in the saved state. It compares first what differed last time."""
        assert self.saved is not None
        registers = self.saved.registers
        if sum(len(f.registers) for f in batch.frames.values()) != len(registers):
            return False
        ((_, g),) = batch.ready.items()
        chosen = self._deciding(batch, g)
        for at, (frame, slot, held) in enumerate(registers):
            if frame is g.frame and chosen is not None and not chosen >> slot & 1:
                continue
            if not np.array_equal(frame.registers[slot].view(np.uint8), held.view(np.uint8)):
                registers.insert(0, registers.pop(at))
                return False
        return self._rest(batch) == self.saved.rest

    def state(self, batch: Batch, g: Group) -> Any:
        """Return the state of polling warps: their places, and the registers that decide whether they go on polling
        (`slices.py`). After a poll outside of loops no state comes back, and each is a new object. Other waits begin again.
        """
        registers: list[int] = []
        stack = g.stack
        if type(g.why) is Instruction and not stack.depth and g.pc not in self._in_loops(g):
            return object()
        while stack.depth:
            registers.append(batch.frame(stack.depth - 1, stack.name).digest(g.select))
            stack = stack.outer
        registers.append(g.frame.digest(g.select, self._deciding(batch, g)))
        mask = None if g.mask is None else g.mask.tobytes()
        return id(batch), g.key, g.rows.tobytes(), mask, len(batch.trail or ()), *registers

    def _in_loops(self, g: Group) -> set[int]:
        code = g.frame.code
        found = self._looping.get(code.name)
        if found is None:
            found = self._looping[code.name] = looping(code.segments)
        return found

    def _deciding(self, batch: Batch, g: Group) -> int | None:
        """Return the registers that decide while warps stay in the segments that the batch has executed;
        None for all.
        """
        if g.stack.depth or not batch.trail:
            return None
        name = g.frame.code.name
        executed = frozenset(pc for of, pc in batch.trail if of == name)
        key = name, executed, g.pc
        if key not in self._slices:
            segments, here = g.frame.code.segments, executed | {g.pc}
            found = [deciding(segments, s, g.pc) for s in (here, with_pauses(segments, here, g.pc))]
            self._slices[key] = min((x for x in found if x is not None), key=int.bit_count, default=None)
        return self._slices[key]

    def memory(self) -> int:
        """Return a hash of the writable arrays."""
        return hash(tuple(b.bytes.tobytes() for b in self.run.memory.buffers.values() if b.writable))

    def _rest(self, batch: Batch) -> int:
        """Return a hash of all state except the registers."""
        (g,) = batch.ready.values()
        parts: list[Any] = [g.rows.tobytes(), g.mask is not None and g.mask.tobytes()]
        b = batch.barriers
        arrays = [*batch.memory(), *(w.group.rows for w in (*b.waiting, *b.cluster_waiting))]
        return hash((*parts, *(a.tobytes() for a in arrays), self.memory()))

    def rests(self, batch: Batch) -> bool:
        """Return whether a batch repeats itself and global memory has not changed."""
        if not self.asleep or id(batch) not in self.asleep:
            return False
        if self.asleep[id(batch)] == self.memory():
            return True
        del self.asleep[id(batch)]
        return False

    def polled_before(self) -> bool:
        """Return whether all polling groups have read global memory in its present state, and are as they were before.

        If atomics have changed memory since the last call, a group may hold a value from another state of memory. Then
        this waits for several calls that find the same.
        """
        states = frozenset(self.state(b, g) for b in self.run.resident for g in b.polling)
        before, self.polled = self.polled, (self.memory(), states)
        steady, self._atomics = self._atomics == self.run.atomics, self.run.atomics
        self._again = self._again + 1 if before == self.polled else 0
        return self._again >= (1 if steady else _ROUNDS)


def _alone(batch: Batch) -> bool:
    """Return whether only one group can go on, and nothing in flight can change what it reads."""
    return len(batch.ready) == 1 and not batch.polling and not batch.parked and not batch.engine.pending


def _place(batch: Batch) -> Any:
    ((key, g),) = batch.ready.items()
    return id(batch), key, g.n


_WAITS = "every running warp repeats itself: it waits for memory that no other warp can change"
_MEND = "the warp or block that changes it must be started, not have exited, and not wait itself"


def livelock(run: Run, kind: HazardKind = HazardKind.LIVELOCK, what: str = _WAITS, fix: str = _MEND) -> None:
    """Report that all running batches repeat themselves, unless some group waits for time to pass."""
    if run.pass_time():
        return
    lines: list[str] = []
    ins = None
    for batch in run.resident:
        for g in (*batch.ready.values(), *(g for g in batch.polling if isinstance(g.why, Instruction))):
            waits = awaited(batch, g, g.why if isinstance(g.why, Instruction) else batch.looked_at)
            lines += [line for _, line in waits]
            ins = ins or next((at for at, _ in waits), None)
            if not waits:
                seg = g.frame.code.segments[g.pc]
                at = seg.sync_ins or seg.end or (seg.code[0] if seg.code else None) or batch.looked_at
                ins = ins or at
                _, _, who = run.reporter.group(g, g.active)
                lines.append(f"{who} goes round at {run.reporter.place(at)}")
    run.reporter.hazard(kind, what, ins, tuple(lines[:40]), fix, ends=True)
    raise AssertionError("a livelock is always an error")
