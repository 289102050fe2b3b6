"""The state of named barriers of a block and of the cluster barrier; `builders/barrier_ops.py` has their instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..checks.kinds import HazardKind
from ..isa.rows_sync import NAMED
from ..ptx.module import Instruction
from .group import Group

if TYPE_CHECKING:
    from .batch import Batch

Array = npt.NDArray[Any]


class Parted:
    """The reason for which a group runs again: its lanes go on without the rest of their warps."""


PARTED = Parted()


@dataclass(slots=True)
class Waiting:
    """Warps that wait at a barrier: `group` is at the place where they go on; `write` stores a reduction's result."""

    barrier: int
    group: Group
    ins: Instruction
    write: Any = None


class Barriers:
    """The barriers of a batch's blocks. Counts are in threads, (16, blocks)."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        shape = (NAMED, batch.blocks)
        self.arrived: Array = np.zeros(shape, np.int64)
        self.expected: Array = np.zeros(shape, np.int64)  # 0: all threads of the block
        self.true_count: Array = np.zeros(shape, np.int64)
        self.thread_count: Array = np.zeros(shape, np.int64)
        self.used: Array = np.zeros(NAMED, np.bool_)
        self.turns: Array = np.zeros(shape, np.int64)  # how often each barrier has completed
        self.waiting: list[Waiting] = []
        self.clock: list[Any] = [None] * NAMED
        self.cluster_arrived: Array = np.zeros(batch.teams, np.int64)
        self.cluster_phase: Array = np.zeros(batch.teams, np.int64)
        self.warp_phase: Array = np.zeros(batch.warps, np.int64)
        self.warp_arrived: Array = np.zeros(batch.warps, np.bool_)
        self.cluster_waiting: list[Waiting] = []
        self.cluster_clock: Any = None

    def live_threads(self) -> Array:
        """Return the threads of each block in warps that have not exited; whole warps count."""
        alive = self.batch.live.any(axis=1).reshape(self.batch.per_block, self.batch.blocks)
        return alive.sum(axis=0) * 32

    # --- named barriers ------------------------------------------------------------------------

    def arrive(self, c: Group, barrier: int, count: Array | None, ins: Instruction, votes: Array | None) -> Array:
        """Count the warps of `c` at a barrier. Returns the blocks (blocks,) whose barrier is now complete."""
        cta = c.cta
        self.used[barrier] = True
        arrived, expected = self.arrived[barrier], self.expected[barrier]
        blocks = np.unique(cta) if len(cta) > 1 else cta
        if count is not None:
            self._check_count(c, barrier, count, ins, blocks)
            expected[cta] = count
        elif expected[blocks].any() and (arrived[blocks] > 0).any():
            self._count_differs(c, barrier, ins)
        threads = self._threads(c) if c.why is PARTED else np.full(c.n, 32)
        arrived += np.bincount(cta, threads, len(arrived)).astype(np.int64)
        if votes is not None:
            here = votes & c.active
            self.true_count[barrier] += np.bincount(cta, here.sum(axis=1), len(arrived)).astype(np.int64)
            self.thread_count[barrier] += np.bincount(cta, c.active.sum(axis=1), len(arrived)).astype(np.int64)
        clocks, order, first = self.batch.clocks, self.batch.run.order, self.batch.first
        if order is not None:
            turns = self.turns[barrier][cta].tolist()
            order.warps(self.batch, c.rows, lambda i: ("bar", first + int(cta[i]), barrier), "meet", lambda i: turns[i])
        if clocks is not None:
            if self.clock[barrier] is None:
                self.clock[barrier] = clocks.store(self.batch.blocks)
            clocks.release(self.clock[barrier], cta, c)
        need = np.where(expected > 0, expected, self.live_threads())
        over = (arrived > need)[blocks]
        if over.any():
            self._too_many(c, barrier, ins, int(arrived[blocks].max()), int(need[blocks].max()))
        done = np.zeros(len(arrived), np.bool_)
        done[blocks] = arrived[blocks] >= need[blocks]
        return done

    def _threads(self, c: Group) -> Array:
        """Return the threads, (rows,), that arrive with lanes of diverged warps.

        The exited lanes of a warp arrive with its first live lane.
        """
        live = self.batch.live[c.select]
        lead = live.argmax(axis=1)
        first = c.active[np.arange(c.n), lead]
        return c.active.sum(axis=1) + first * (~live).sum(axis=1)

    def part(self) -> bool:
        """Let lanes that wait for the rest of their warp at a barrier without .aligned arrive alone (PTX ISA 9.7.13.1).

        Called if nothing else can go on. Returns False if there are no such lanes.
        """
        batch = self.batch
        for key, g in list(batch.parked.items()):
            ins = g.frame.code.segments[g.pc].sync_ins
            if (
                ins is not None
                and ins.opcode[0] == "barrier"
                and "cluster" not in ins.opcode
                and "aligned" not in ins.opcode
            ):
                del batch.parked[key]
                g.why = PARTED
                batch.ready[key] = g
                return True
        return False

    def _check_count(self, c: Group, barrier: int, count: Array, ins: Instruction, blocks: Array) -> None:
        arrived, expected = self.arrived[barrier], self.expected[barrier]
        bad = (count % 32 != 0) | (count <= 0) | (count > self.batch.run.threads_per_block + 31)
        if bad.any():
            _, _, who = self.batch.run.reporter.group(c, np.broadcast_to(bad[:, None], (c.n, 32)))
            what = (
                f"barrier {barrier} with a thread count of {int(count[bad][0])}; it must be a multiple of 32 "
                f"and at most the block's {self.batch.run.threads_per_block}"
            )
            self.batch.run.reporter.hazard(HazardKind.BARRIER_COUNT, what, ins, (who,))
        cta = c.cta
        if ((arrived[cta] > 0) & (expected[cta] != count)).any():
            self._count_differs(c, barrier, ins)

    def _count_differs(self, c: Group, barrier: int, ins: Instruction) -> None:
        _, _, who = self.batch.run.reporter.group(c, c.active)
        what = f"warps meet at barrier {barrier} with different thread counts"
        self.batch.run.reporter.hazard(HazardKind.BARRIER_COUNT, what, ins, (who,))

    def _too_many(self, c: Group, barrier: int, ins: Instruction, have: int, need: int) -> None:
        _, _, who = self.batch.run.reporter.group(c, c.active)
        what = f"{have} threads arrived at barrier {barrier}, which waits for {need}"
        self.batch.run.reporter.hazard(HazardKind.BARRIER_COUNT, what, ins, (who,))

    def complete(self, barrier: int, done: Array) -> None:
        """Reset the barrier of the blocks in `done`, and let their waiting warps go on."""
        kept: list[Waiting] = []
        going: list[Waiting] = []
        for w in self.waiting:
            if w.barrier != barrier:
                kept.append(w)
                continue
            free = done[w.group.cta]
            if free.all():
                going.append(w)
            elif free.any():
                going.append(Waiting(barrier, w.group.subset(w.group.pc, free), w.ins, w.write))
                kept.append(Waiting(barrier, w.group.subset(w.group.pc, ~free), w.ins, w.write))
            else:
                kept.append(w)
        self.waiting = kept
        for w in going:
            self.passed(w.group, barrier, w.write)
        self.reset(barrier, done)
        for w in going:
            self.batch.push(w.group)

    def passed(self, g: Group, barrier: int, write: Any) -> None:
        """Join the clocks of warps whose barrier completes, and write the reduction's result."""
        if self.batch.clocks is not None:
            self.batch.clocks.acquire(self.clock[barrier], g.cta, g)
        if write is not None:
            write(g, self.true_count[barrier][g.cta], self.thread_count[barrier][g.cta])

    def reset(self, barrier: int, done: Array) -> None:
        self.batch.run.stored(False)
        self.turns[barrier][done] += 1
        for counts in (self.arrived, self.expected, self.true_count, self.thread_count):
            counts[barrier][done] = 0
        if self.clock[barrier] is not None:
            self.clock[barrier].clear(done)

    def lanes_left(self) -> None:
        """Complete barriers that waited for all threads of a block, after warps have exited."""
        if not self.waiting:
            return
        live = self.live_threads()
        for barrier in np.flatnonzero(self.used):
            arrived, expected = self.arrived[barrier], self.expected[barrier]
            done = (arrived > 0) & (expected == 0) & (arrived >= live)
            if done.any():
                self.complete(int(barrier), done)

    # --- cluster barrier -----------------------------------------------------------------------

    def cluster_arrive(self, c: Group, ins: Instruction, release: bool) -> None:
        batch = self.batch
        if self.warp_arrived[c.rows].any():
            _, _, who = batch.run.reporter.group(c, c.active)
            what = "barrier.cluster.arrive twice without a wait between"
            batch.run.reporter.hazard(HazardKind.BARRIER_COUNT, what, ins, (who,))
        self.warp_arrived[c.rows] = True
        team = batch.row_team[c.rows]
        clocks = batch.clocks
        if clocks is not None:
            if self.cluster_clock is None:
                self.cluster_clock = clocks.store(batch.teams)
            clocks.release(self.cluster_clock, team, c, not release, 1)
        self.cluster_arrived += np.bincount(team, minlength=batch.teams)
        self.cluster_settle()

    def cluster_settle(self) -> None:
        """Complete the cluster barriers that all live warps have arrived at."""
        batch = self.batch
        alive = batch.live.any(axis=1)
        need = np.bincount(batch.row_team[alive], minlength=batch.teams)
        done = (self.cluster_arrived > 0) & (self.cluster_arrived >= need)
        if not done.any():
            return
        self.cluster_phase += done
        self.cluster_arrived[done] = 0
        batch.run.progress += 1
        if self.cluster_clock is not None:
            self.cluster_clock.publish(done)
        waiting, self.cluster_waiting = self.cluster_waiting, []
        for w in waiting:
            rest = self.cluster_wait(w.group, w.ins, w.group.pc)
            if rest is not None:
                batch.push(rest)

    def cluster_wait(self, c: Group, ins: Instruction, pc: int) -> Group | None:
        """Return the warps of `c` whose barrier phase is complete, at `pc`, or None; the others wait."""
        team = self.batch.row_team[c.rows]
        if not self.warp_arrived[c.rows].all():
            bad = np.broadcast_to(~self.warp_arrived[c.rows][:, None], (c.n, 32)) & c.active
            _, _, who = self.batch.run.reporter.group(c, bad)
            what = "barrier.cluster.wait with no barrier.cluster.arrive before it"
            self.batch.run.reporter.hazard(HazardKind.BARRIER_COUNT, what, ins, (who,))
            return c.at(pc)
        ready = self.cluster_phase[team] > self.warp_phase[c.rows]
        if not ready.all():
            held = c.subset(pc, ~ready)
            self.cluster_waiting.append(Waiting(-1, held, ins))
            if not ready.any():
                return None
        free = c.subset(pc, ready)
        self.warp_phase[free.rows] += 1
        self.warp_arrived[free.rows] = False
        if self.batch.clocks is not None and self.cluster_clock is not None:
            self.batch.clocks.acquire_published(self.cluster_clock, self.batch.row_team[free.rows], free)
        return free
