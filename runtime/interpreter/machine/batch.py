"""A batch: blocks whose warps share register arrays. Warps at the same instruction run as one vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..checks.given_up import GivenUp
from ..checks.kinds import HazardKind
from ..checks.poison import mark_unset, poisoned
from ..checks.waits import MbarrierWait
from ..ptx.module import Instruction
from .barriers import Barriers
from .calls import Stack, before
from .control import split_branch, split_table
from .frame import Frame
from .group import Group, merge
from .mbarriers import Mbarriers
from .memory import RANK_SHIFT
from .shared_space import OwnShared, SharedSpace
from .spaces import LocalSpace, ParamSpace

if TYPE_CHECKING:
    from .launch import Run
    from .program import Op, Seg

Array = npt.NDArray[Any]
Key = tuple[Stack, str, int]
# The probability that the random schedule splits a group that could run as one.
_PART = 1 / 16


class Batch:
    """Blocks that run together, as rows of warps: row w * blocks + b is warp w of block b.

    `coordinates`: (blocks, 3), whole clusters one after the other.
    """

    def __init__(self, run: Run, coordinates: Array, first: int) -> None:
        self.run = run
        self.coordinates = coordinates
        self.first = first
        self.device: int = run.device_of(first)
        self.parameters: ParamSpace = run.parameters[self.device]
        self.blocks: int = len(coordinates)
        self.cluster: int = run.cluster_size
        self.teams: int = self.blocks // self.cluster
        self.per_block: int = run.warps_per_block
        self.warps: int = self.blocks * self.per_block
        self.row_cta: Array = np.tile(np.arange(self.blocks), self.per_block)
        self.row_warp: Array = np.repeat(np.arange(self.per_block), self.blocks)
        self.row_rank: Array = self.row_cta % self.cluster
        self.row_team: Array = self.row_cta // self.cluster
        # The number of a warp within its cluster, which vector clocks and shadow memory use.
        self.row_agent: Array = self.row_rank * self.per_block + self.row_warp
        threads = self.row_warp[:, None] * 32 + np.arange(32)
        self.live: Array = threads < run.threads_per_block
        self.thread = threads
        self.shared: SharedSpace = SharedSpace(self, run.shared_bytes)
        self.own_shared: SharedSpace | OwnShared = self.shared if self.cluster == 1 else OwnShared(self.shared)
        self._addresses: dict[tuple[int, Any], Array] = {}
        self.local: LocalSpace = LocalSpace(self)
        self.frames: dict[tuple[int, str], Frame] = {}
        self.ready: dict[Key, Group] = {}
        self.parked: dict[Key, Group] = {}
        self.polling: list[Group] = []
        self.barriers: Barriers = Barriers(self)
        self.clocks: Any = None
        self.peers: Any = None  # for clusters, if hazards are detected
        self.engine: Any = None
        self.ran: Group | None = None  # the group that ran last
        self.in_turn: int = 0  # choices since groups take turns; 0 if the place decides alone
        self.looked_at: Any = None  # the last instruction that polled memory and found it unchanged
        self.looked_when: int = -1  # how many atomics had changed memory then
        self.spun_when: int = -1  # the same, when it had looked before at the same memory
        self.wgmma: Any = None
        self.refused: dict[
            int, list[tuple[int, int]]
        ] = {}  # by block: failed requests to cancel a launch, (queue, clock)
        self.tensor: Any = None  # tensor memory, from its first use on
        self._special: dict[str, Array] = {}
        self.trail: set[tuple[str, int]] | None = (
            None  # by function, the segments that were executed since this was last emptied
        )
        run.attach(self)
        self.mbarriers: Mbarriers = Mbarriers(self)
        self.given_up: GivenUp = GivenUp()
        self._start()

    def _start(self) -> None:
        frame = self.frame(0, self.run.program.entry.name)
        rows = np.arange(self.warps)
        mask = None if self.live.all() else self.live.copy()
        self.push(Group(self, frame, Stack(), 0, rows, mask))

    @property
    def done(self) -> bool:
        return not self.live.any()

    def row_of(self, team: int, agent: int) -> int:
        """Return the row of a warp by its cluster and its number there."""
        rank, warp = divmod(agent, self.per_block)
        return warp * self.blocks + team * self.cluster + rank

    def named(self, cta: int, mask: int) -> tuple[list[int], str]:
        """Return (the blocks of a block's cluster that a multicast mask names, the defect of the mask or "")."""
        size = self.cluster
        wrong = f"multicast mask {mask:#x} for a cluster of {size} blocks" if mask >> size or not mask else ""
        return [cta - cta % size + r for r in range(size) if mask >> r & 1], wrong

    def close(self) -> None:
        """Release the registers, and drop all references to the batch.

        Otherwise the batch would stay in memory until a garbage collection.
        """
        for frame in self.frames.values():
            frame.release()
        self.__dict__.clear()

    def frame(self, depth: int, name: str) -> Frame:
        found = self.frames.get((depth, name))
        if found is None:
            found = self.frames[depth, name] = Frame(self, self.run.program.code(name), depth)
            if found.code.unset and self.run.detect:
                mark_unset(found)
        return found

    # --- queue ---------------------------------------------------------------------------------

    def push(self, g: Group) -> None:
        """Make `g` ready, merged with the groups at the same place."""
        key = g.key
        if self.parked:
            waiting = self.parked.pop(key, None)
            if waiting is not None:
                g = merge(g, waiting)
        other = self.ready.get(key)
        self.ready[key] = g if other is None else merge(g, other)

    def again(self, g: Group) -> None:
        """Make `g` ready without the group that is parked at its place (`g` has just left it)."""
        other = self.ready.get(g.key)
        self.ready[g.key] = g if other is None else merge(g, other)

    def park(self, g: Group) -> None:
        """Park `g` until the other lanes of its warps, or warps of its warpgroups, come to the same place."""
        key = g.key
        other = self.parked.pop(key, None)
        if other is None:
            self.parked[key] = g
        else:
            self.again(merge(g, other))  # the merged group may be complete

    def poll(self, g: Group, why: Any) -> None:
        """Hold `g`, which polled memory or a barrier, until that may have changed."""
        g.why = why
        self.polling.append(g)

    def may_look(self, atomics: int) -> bool:
        """Return whether all groups wait, one of them polls memory, and atomics have changed memory since one looked."""
        return self.looked_when < atomics and not self.ready and any(type(g.why) is Instruction for g in self.polling)

    def look(self, ins: Instruction, atomics: int) -> None:
        """Record that an instruction polled memory and found it unchanged, after so many atomics had changed memory."""
        if self.looked_when == atomics:
            self.spun_when = atomics
        self.looked_at, self.looked_when = ins, atomics

    def wake_pollers(self) -> None:
        """Wake the groups that poll memory."""
        polling, self.polling = self.polling, []
        for g in polling:
            if type(g.why) is Instruction:
                g.why = None
                self.push(g)
            else:
                self.polling.append(g)

    def wake_mbarriers(self, offset: int) -> None:
        """Wake the groups that wait for the barrier at `offset`, after a phase is complete."""
        kept: list[Group] = []
        for g in self.polling:
            if type(g.why) is MbarrierWait and g.why.offset == offset:
                g.why = None
                self.push(g)
            else:
                kept.append(g)
        self.polling = kept

    def wake(self) -> None:
        """Wake all polling groups."""
        polling, self.polling = self.polling, []
        for g in polling:
            g.why = None
            self.push(g)

    def wake_all(self) -> None:
        """Wake all groups that poll or wait for lanes, after lanes have exited or a barrier has changed."""
        self.wake()
        parked, self.parked = self.parked, {}
        for g in parked.values():
            self.push(g)

    # --- running -------------------------------------------------------------------------------

    def choose(self) -> Group:
        """Return the next group: the one whose place comes first, or sometimes another, by the seed."""
        rng = self.run.rng
        g = self._take()
        if rng is None or g.n == 1 or rng.random() >= _PART:
            return g
        # Some warps run ahead until the others reach the same place.
        cut = rng.randrange(1, g.n)
        parts = [g.subset(g.pc, np.arange(g.n) < cut), g.subset(g.pc, np.arange(g.n) >= cut)]
        ahead = rng.randrange(2)
        self.ready[g.key] = parts[1 - ahead]
        return parts[ahead]

    def _take(self) -> Group:
        ready, rng = self.ready, self.run.rng
        if len(ready) == 1:
            return ready.popitem()[1]
        if self.in_turn:
            self.in_turn += 1
            if self.in_turn & 1:
                return ready.pop(next(iter(ready)))  # the one that waits longest
        keys = list(ready)
        if rng is not None and rng.random() < 0.5:
            key = keys[rng.randrange(len(keys))]
            if ready[key].mask is None:
                return ready.pop(key)
        first = keys[0]
        for key in keys[1:]:
            if before(key[0], key[2], first[0], first[2]):
                first = key
        return ready.pop(first)

    def step(self) -> None:
        """Run one group until it waits, diverges or may merge with others."""
        g = self.ran = self.choose()
        run = self.run
        taken = run.turns.taken
        while True:
            seg = g.frame.code.segments[g.pc]
            if self.trail is not None:
                self.trail.add((g.frame.code.name, g.pc))
            run.steps += seg.cost
            if run.steps > run.budget:
                run.out_of_steps(g, seg)
            if seg.touches and self.wgmma.flight and run.detect:
                self.wgmma.check_touched(g, seg.reads, seg.writes, seg.code)
            if seg.touches and self.wgmma.accumulators.held:
                self.wgmma.accumulators.settle(g.frame, seg.reads | seg.writes)
            poison = g.frame.poison
            sync = seg.sync
            if sync is not None:
                if run.order is not None:
                    admitted = run.order.admit(self, g)
                    if admitted is None:
                        return
                    g = admitted
                if not (careful(seg)[0] if poison else sync)(g):
                    return
                g.why = None
            if poison or seg.loads:
                run_careful(g, seg, poison)
            else:
                for op in seg.ops:
                    op(g)
            if seg.writes and run.detect:
                self.wgmma.wrote(g, seg.writes & ~seg.moves, seg.moves)
            kind = seg.kind
            if kind == "fall":
                g.pc = seg.next
                if g.pc <= seg.index and run.steps >= run.watch.rounds.next:  # the same
                    self.push(g)
                    return
            elif kind == "branch":
                if not split_branch(self, g, seg):
                    return
                watch = run.watch  # finds endless loops
                if run.steps >= watch.rounds.next or (run.steps >= watch.next and not self.engine.pending):
                    self.push(g)
                    return
            elif not self._finish(g, seg):
                return
            others = bool(self.ready or self.parked)
            asks = taken and sync is not None and (run.turns.interrupts or not others)
            if (asks and run.turns.after(self)) or others:
                self.push(g)
                return

    def _finish(self, g: Group, seg: Any) -> bool:
        self.wgmma.accumulators.settle_all()
        match seg.kind:
            case "exit":
                self.exit(g)
            case "table":
                split_table(self, g, seg)
            case "call" | "return":
                (g.frame.code.call[seg.index] if seg.kind == "call" else self.leave)(g)
            case _:
                _, _, who = self.run.reporter.group(g, g.active)
                self.run.reporter.hazard(HazardKind.TRAP, "the kernel executed trap", seg.end, (who,), ends=True)
        return False

    def leave(self, g: Group) -> None:
        """Return from a device function: copy the results to the caller, and move the lanes back to the call."""
        stack = g.stack
        if not stack.depth:
            self.exit(g)
            return
        caller = self.frame(stack.depth - 1, stack.name)
        caller.code.returns[stack.pc](g, caller)
        pc_next = caller.code.segments[stack.pc].next
        self.push(Group(self, caller, stack.outer, pc_next, g.rows, g.mask))

    def exit(self, g: Group) -> None:
        select = g.select
        self.live[select] &= ~g.active
        self.run.on_exit(g)
        self.barriers.lanes_left()
        if self.parked or self.polling:
            self.wake_all()

    def memory(self) -> list[Array]:
        """Return the blocks' memory and barriers, as arrays that are equal when they are in the same state."""
        b = self.barriers
        arrays = [self.live, self.shared.data, self.local.data, b.arrived, b.expected, b.true_count]
        arrays += [b.cluster_arrived, b.warp_arrived]
        for m in self.mbarriers.at.values():
            arrays += [m.valid, m.count, m.pending, m.bytes, m.phase & 1]
        return arrays

    # --- values that differ between warps --------------------------------------------------------

    def shared_address(self, offset: int, dtype: Any, select: Any) -> Array:
        """Return a shared variable's address in the warps of `select`: (1, 1), or (rows, 1) in clusters."""
        found = self._addresses.get((offset, dtype))
        if found is None:
            rank = self.row_rank[:, None] if self.cluster > 1 else np.zeros((1, 1), np.int64)
            found = self._addresses[offset, dtype] = ((rank << RANK_SHIFT) + offset).astype(dtype)
        return found if self.cluster == 1 else found[select]

    def special(self, name: str) -> Array:
        """Return a special register of all warps: (warps or 1, 32 or 1)."""
        found = self._special.get(name)
        if found is None:
            found = self.run.special(self, name)
            if "clock" not in name and "globaltimer" not in name:
                self._special[name] = found
        return found


def careful(seg: Seg) -> list[Op]:
    """Return the instructions of a segment in the form that tracks poison, the synchronising one first."""
    if not seg.wary:
        seg.wary = [poisoned(*source) for source in seg.sources]
    return seg.wary


def run_careful(g: Group, seg: Seg, poison: dict[int, Array]) -> None:
    """Run a segment's instructions. After the first one that produces poison, run the form that tracks poison."""
    done = 0
    if not poison:
        for op in seg.ops:
            op(g)
            done += 1
            if poison:
                break
    if poison:
        for op in careful(seg)[done + (seg.sync is not None) :]:
            op(g)
