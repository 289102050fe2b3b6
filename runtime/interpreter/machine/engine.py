"""The asynchronous engines of a batch: operations that were issued and have not taken effect, and their groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..checks.kinds import HazardKind

if TYPE_CHECKING:
    from ..checks.clocks import Clocks
    from ..ptx.module import Instruction
    from .batch import Batch
    from .group import Group

Array = npt.NDArray[Any]
When = tuple[int, int]  # (queue, clock)
At = tuple["Instruction", list[tuple[int, int | None]]]
ALONE = 0.25  # the probability that an operation takes effect without those of the other blocks


class Wave(ABC):
    """Operations that one instruction has started, and that may take effect together."""

    @abstractmethod
    def land(self, some: list[int]) -> None:
        """Make the operations of these numbers take effect, in this order."""


@dataclass(slots=True, eq=False)
class Pending:
    """An operation in flight: `perform` makes it take effect. `finished`: its engine's list of operations to forget.

    `wave`: the same operation of each block, itself among them. `of`: the wave that started it, and its number there.
    """

    perform: Callable[[], None]
    what: str
    finished: list[Pending]
    wave: list[Pending] | None = None
    done: bool = False
    ended: Callable[[], None] | None = None  # for the recorder of a run
    of: tuple[Wave, int] | None = None

    def finish(self) -> None:
        """Record that the operation has taken effect, by itself or through another operation."""
        self.done = True
        self.finished.append(self)
        if self.ended is not None:
            self.ended()

    def now(self) -> None:
        if not self.done:
            self.finish()
            self.perform()


class Engine:
    """Decides when operations take effect: immediately ("eager"), when nothing else can go on ("late"), or by the seed."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        # By queue and rank of the source's block, the latest copy of each cluster that reads the source for a peer.
        self.sources: dict[tuple[int, int], Array] = {}
        self.pending: list[Pending] = []  # operations in flight; some may already have taken effect, see `_forget`
        self.finished: list[Pending] = []
        self._waves: dict[tuple[int, int], list[Pending]] = {}  # by instruction and execution of a block
        self._turns: dict[tuple[int, int], int] = {}
        self.schedule: str = batch.run.config.schedule
        self.groups: AsyncGroups = AsyncGroups(batch, self)

    def issue(
        self, perform: Callable[[], None], what: str, of: tuple[Instruction, int] | None = None, at: At | None = None
    ) -> Pending:
        """Put an operation in flight; under the eager schedule it takes effect immediately.

        `of`: its instruction and block. `at`: for a profile, its instruction, blocks and warpgroups.
        """
        op = Pending(perform, what, self.finished)
        recorder = self.batch.run.recorder
        if recorder is not None and (of is not None or at is not None):
            ins, those = at if at is not None else (of[0], [(of[1], None)]) if of is not None else (None, [])
            if ins is not None:
                op.ended = recorder.issued(self.batch, what, ins, those)
        order = self.batch.run.order
        if order is not None:
            order.copy(op)
            self.batch.run.progress += 1
            self.pending.append(op)
            self._forget()
        elif self.schedule == "eager":
            op.now()
            self.finished.clear()
            self.batch.run.progress += 1
        else:
            self._hold(op, of)
        return op

    def _hold(self, op: Pending, of: tuple[Instruction, int] | None) -> None:
        self.pending.append(op)
        if of is not None:
            site = id(of[0]), of[1]
            turn = self._turns[site] = self._turns.get(site, 0) + 1
            op.wave = self._waves.setdefault((site[0], turn), [])
            op.wave.append(op)

    def issue_wave(self, wave: Wave, what: str, ins: Instruction, blocks: list[int]) -> None:
        """Do `issue` for operations 0, 1, ... of a wave, of `blocks`. Record neither a profile nor an order of events."""
        if self.schedule == "eager":
            wave.land(list(range(len(blocks))))
            self.batch.run.progress += len(blocks)
            return
        for n, block in enumerate(blocks):
            op = Pending(partial(wave.land, [n]), what, self.finished, of=(wave, n))
            self._hold(op, (ins, block))

    def _let(self, op: Pending) -> None:
        """Make an operation take effect, and usually the same operation of the other blocks.

        Blocks do not wait for each other's copies, so any order of these is possible; blocks that stay together run as
        one vector.
        """
        rng = self.batch.run.rng
        alone = op.wave is None or len(op.wave) == 1 or (rng is not None and rng.random() < ALONE)
        self.force([op] if alone else [op, *(p for p in op.wave or () if p is not op)])

    def force(self, ops: list[Pending]) -> None:
        """Make these take effect: their completion is being observed."""
        at = 0
        while at < len(ops):
            op, of = ops[at], ops[at].of
            at += 1
            if of is None or op.done:
                op.now()
                continue
            op.finish()
            some = [of[1]]
            while at < len(ops) and (further := ops[at].of) is not None and further[0] is of[0]:
                if not ops[at].done:
                    ops[at].finish()
                    some.append(further[1])
                at += 1
            of[0].land(some)
        self._forget()
        self.batch.run.progress += 1

    def _forget(self) -> None:
        """Drop the operations that have taken effect.

        These are usually the oldest, so `remove` finds them fast among thousands.
        """
        for op in self.finished:
            with suppress(ValueError):  # it was never in flight
                self.pending.remove(op)
            if op.wave is not None:
                op.wave.remove(op)
                op.wave = None
        self.finished.clear()

    def stepped(self) -> None:
        """Make some operations take effect under the random schedule; called between groups."""
        rng = self.batch.run.rng
        if rng is None or not self.pending:
            return
        while self.pending and rng.random() < 0.5:
            self._let(self.pending[rng.randrange(len(self.pending))])

    def unblock(self) -> bool:
        """Make one operation take effect, because nothing in the batch can go on. Returns False if there is none."""
        self._forget()
        if not self.pending:
            return False
        rng = self.batch.run.rng
        self._let(self.pending[0 if rng is None else rng.randrange(len(self.pending))])
        return True

    def land(self) -> None:
        """Make all operations in flight on the GPU take effect."""
        for batch in self.batch.run.resident:
            batch.engine.drain()

    def drain(self) -> None:
        """Make the remaining operations take effect, after the blocks have exited."""
        while self.pending:
            self.force([self.pending[0]])

    def at_exit(self) -> None:
        """Check barriers and copies after all blocks have exited.

        A barrier must not expect bytes, and each copy must have been waited for.
        """
        batch = self.batch
        if not batch.run.detect:
            return
        if batch.clocks is not None:
            self._unawaited(batch.clocks)
        batch.run.registers.at_exit(batch)
        if batch.peers is not None:
            batch.peers.at_exit()
        if batch.tensor is not None:
            batch.tensor.at_exit()
        for offset, m in batch.mbarriers.at.items():
            bad = m.valid & (m.bytes != 0)
            if bad.any():
                cta = int(np.flatnonzero(bad)[0])
                left = int(m.bytes[cta])
                name = batch.mbarriers.name(offset)
                block = batch.run.reporter.block(batch.coordinates[cta])
                what = (
                    f"the kernel ends while mbarrier {name} still expects {left} bytes"
                    if left > 0
                    else f"the kernel ends with {-left} bytes delivered to mbarrier {name} that it never expected"
                )
                batch.run.reporter.hazard(
                    HazardKind.BYTES_MISMATCH, what, m.last, (block,),
                    "make the bytes of expect_tx those of the copies",
                )  # fmt: skip

    def _unawaited(self, clocks: Clocks) -> None:
        """Report bulk copies if no warp of the block waited until they were done with its shared memory."""
        batch = self.batch
        for key, queue in clocks.queue_of.items():
            if key[0] == "copy":  # a copy into the block of that rank, on that block's barrier
                agents, what = slice(key[1] * batch.per_block, (key[1] + 1) * batch.per_block), "write"
            elif key[0] == "bulk":
                agents, what = slice(key[1], key[1] + 1), "read"
            else:
                continue
            fix = "wait for its barrier" if what == "write" else "wait for its group (wait_group.read 0)"
            self._late(clocks, agents, queue, clocks.issued[:, queue], what, fix)
        for (queue, rank), latest in self.sources.items():
            agents = slice(rank * batch.per_block, (rank + 1) * batch.per_block)
            fix = "let the block that waits for its barrier tell this block, before it leaves"
            self._late(clocks, agents, queue, latest, "read", fix)

    def _late(self, clocks: Clocks, agents: slice, queue: int, latest: Array, what: str, fix: str) -> None:
        """Report a queue if no warp of `agents` knows its operations up to `latest`, (clusters,)."""
        late = latest > clocks.known[:, agents, 0, queue].max(axis=1)
        if late.any():
            batch = self.batch
            cta = int(np.flatnonzero(late)[0]) * batch.cluster + agents.start // batch.per_block
            block = batch.run.reporter.block(batch.coordinates[cta])
            text = f"{block} ends while this copy may still {what} its shared memory"
            batch.run.reporter.hazard(HazardKind.UNAWAITED_COPY, text, clocks.last.get(queue), (block,), fix)

    def reads_source(self, team: int, rank: int, queue: int, clock: int) -> None:
        """Record that a copy to a peer, which completes on the peer's barrier, reads shared memory of the block of `rank`."""
        latest = self.sources.setdefault((queue, rank), np.zeros(self.batch.teams, np.uint32))
        latest[team] = clock


@dataclass(slots=True)
class _State:
    """The groups of one lane (bulk) or one warp (cp.async), with entries (read, write, when read, when written)."""

    open: list[Any] = field(default_factory=list[Any])
    committed: list[list[Any]] = field(default_factory=list[list[Any]])


class AsyncGroups:
    """The commit groups of bulk copies, for each lane, and of cp.async, for each warp."""

    def __init__(self, batch: Batch, engine: Engine) -> None:
        self.batch = batch
        self.engine = engine
        self.of: dict[str, dict[tuple[int, int], _State]] = {"bulk": {}, "cp.async": {}}

    def add(self, key: tuple[str, int, int], entry: tuple[Pending, Pending, When, When]) -> None:
        """Add an operation to one lane's open group."""
        kind, warp, lane = key
        self.of[kind].setdefault((warp, lane), _State()).open.append(entry)

    def add_rows(self, kind: str, c: Group, op: Pending, queue: tuple[Array, Array]) -> None:
        """Add one operation of all warps of `c`, with each warp's (queue, clock)."""
        states = self.of[kind]
        for n, warp in enumerate(c.rows.tolist()):
            when = (int(queue[0][n]), int(queue[1][n]))
            states.setdefault((warp, -1), _State()).open.append((op, op, when, when))

    def _mine(self, kind: str, c: Group) -> list[tuple[int, _State]]:
        """Yield (row of c, state) of the lanes or warps of `c` that have had an operation."""
        states = self.of[kind]
        if not states:
            return []
        if kind == "cp.async":
            rows = ((n, states.get((w, -1))) for n, w in enumerate(c.rows.tolist()))
            return [(n, s) for n, s in rows if s is not None]
        row_of = {w: n for n, w in enumerate(c.rows.tolist())}
        active = c.active
        return [(row_of[w], s) for (w, lane), s in states.items() if w in row_of and active[row_of[w], lane]]

    def commit(self, kind: str, c: Group) -> None:
        for _, state in self._mine(kind, c):
            state.committed.append(state.open)
            state.open = []

    def wait(self, kind: str, c: Group, keep: int, reads: bool) -> None:
        """Wait until at most `keep` groups are in flight; with `reads`, only until their sources have been read."""
        clocks = self.batch.clocks
        ops: list[Pending] = []
        learned: list[tuple[int, When]] = []
        for row, state in self._mine(kind, c):
            count = len(state.committed) - keep
            for entries in state.committed[: max(count, 0)]:
                for read, write, when_read, when_written in entries:
                    ops.append(read if reads else write)
                    learned.append((row, when_read))
                    if not reads:
                        learned.append((row, when_written))
            if count > 0 and not reads:
                del state.committed[:count]
        self.engine.force(ops)
        if clocks is None or not learned:
            return
        proxies = (0,) if kind == "cp.async" else (0, 1)
        best: dict[tuple[int, int], int] = {}
        for row, (queue, clock) in learned:
            best[row, queue] = max(best.get((row, queue), 0), clock)
        team, agent = self.batch.row_team[c.rows], self.batch.row_agent[c.rows]
        for (row, queue), clock in best.items():
            for proxy in proxies:
                held = clocks.known[team[row], agent[row], proxy, queue]
                clocks.known[team[row], agent[row], proxy, queue] = max(int(held), clock)
            if kind == "cp.async":
                clocks.lane_copies.wait(int(c.rows[row]), clock)
        if kind == "bulk":
            clocks.lane_copies.wait_sources(c.rows)

    def all_rows(self, kind: str, c: Group) -> list[Pending]:
        """Return all operations of the warps of `c` that were not waited for."""
        found: list[Pending] = []
        for _, state in self._mine(kind, c):
            for entries in (*state.committed, state.open):
                found += [entry[1] for entry in entries if not entry[1].done]
        return found

    def last_rows(self, kind: str, c: Group) -> dict[int, When]:
        """Return the latest (queue, clock) of each warp of `c`, or (0, 0) if there is none."""
        found: dict[int, When] = dict.fromkeys(range(c.n), (0, 0))
        for row, state in self._mine(kind, c):
            for entries in (*state.committed, state.open):
                for entry in entries:
                    found[row] = max(found[row], entry[3])
        return found
