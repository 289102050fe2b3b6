"""mbarrier objects (PTX ISA 9.7.13.15): arrivals, transaction counts, phases and waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..checks.foreign import widened
from ..checks.kinds import HazardKind
from ..checks.mbarrier_life import FIX, initialised_again
from ..ptx.module import Instruction
from .group import Group

if TYPE_CHECKING:
    from .batch import Batch

Array = npt.NDArray[Any]
PHASE_BITS = 40
# The contents of a valid mbarrier's memory, which only instructions of mbarriers may touch.
_CONTENTS = np.uint64(0x6D6261727269E172)
MAX_COUNT = (1 << 20) - 1


class Mbarrier:
    """The mbarriers at one shared offset, one for each block: arrays (blocks,)."""

    def __init__(self, blocks: int) -> None:
        self.valid: Array = np.zeros(blocks, np.bool_)
        self.count: Array = np.zeros(blocks, np.int64)
        self.pending: Array = np.zeros(blocks, np.int64)
        self.bytes: Array = np.zeros(blocks, np.int64)
        self.phase: Array = np.zeros(blocks, np.int64)
        self.seen: Array = np.zeros(blocks, np.int64)
        self.ever: Array = np.zeros(blocks, np.bool_)  # whether bytes were ever expected or delivered
        self.clock: Any = None
        self.peers: Any = None  # what arrivals of other blocks release, for waits of the cluster's scope
        self.last: Instruction | None = None
        self.before: Any = None  # what the last phase but one released: (blocks, planes, columns)

    def keep(self, done: Array) -> None:
        """Keep what the last phase of blocks `done` released, because another phase of theirs completes."""
        self.clock.fit()
        published = self.clock.published
        if self.before is None:
            self.before = np.zeros_like(published)
        elif self.before.shape != published.shape:
            self.before = widened(self.before, published.shape[2])
        self.before[done] = published[done]


class TimedOut:
    """The reason for which a group runs again: its try_wait returns False."""


TIMED_OUT = TimedOut()


class Mbarriers:
    """All mbarriers of a batch's blocks."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.at: dict[int, Mbarrier] = {}

    def get(self, offset: int) -> Mbarrier:
        found = self.at.get(offset)
        if found is None:
            found = self.at[offset] = Mbarrier(self.batch.blocks)
            if self.batch.clocks is not None:
                found.clock = self.batch.clocks.store(self.batch.blocks)
        return found

    def name(self, offset: int) -> str:
        run = self.batch.run
        return run.reporter.shared_name(offset, run.program.dynamic_offset, run.program.shared_offsets)

    def _hazard(self, kind: HazardKind, what: str, ins: Instruction | None, cta: int, fix: str = "") -> None:
        reporter = self.batch.run.reporter
        reporter.hazard(kind, what, ins, (reporter.block(self.batch.coordinates[cta]),), fix)

    def _check_valid(self, m: Mbarrier, ctas: Array, offset: int, ins: Instruction, what: str) -> bool:
        bad = ~m.valid[ctas]
        if not bad.any():
            self._check_contents(ctas, offset, ins, what)
            return True
        text = f"mbarrier {self.name(offset)} is {what} before it was initialised"
        self._hazard(HazardKind.BARRIER_MISUSE, text, ins, int(ctas[bad][0]), "call mbarrier.init first")
        return False

    def _check_contents(self, ctas: Array, offset: int, ins: Instruction, what: str) -> None:
        """Report other accesses that wrote a valid mbarrier's memory."""
        shared = self.batch.shared
        if not self.batch.run.detect or offset + 8 > shared.stride:
            return
        words, at = shared.data.view(np.uint64), (ctas * shared.stride + offset) // 8
        bad = words[at] != _CONTENTS
        if bad.any():
            text = f"mbarrier {self.name(offset)} is {what} after other instructions wrote its memory"
            fix = "keep its 8 bytes apart from data, or end it by mbarrier.inval before"
            self._hazard(HazardKind.BARRIER_MISUSE, text, ins, int(ctas[bad][0]), fix)
            words[at] = _CONTENTS

    # --- life ----------------------------------------------------------------------------------

    def init(self, offset: int, rows: Array, ctas: Array, counts: Array, ins: Instruction) -> None:
        """Initialise the barriers of blocks `ctas` for `counts` arrivals, by a lane of each of the warps `rows`: (lanes,)."""
        m = self.get(offset)
        again = initialised_again(m.valid, rows, ctas, counts)
        if again is not None:
            cta, how = again
            self._hazard(HazardKind.BARRIER_MISUSE, f"mbarrier {self.name(offset)} is {how}", ins, cta, FIX)
        bad = (counts < 1) | (counts > MAX_COUNT)
        if bad.any():
            what = f"mbarrier {self.name(offset)} is initialised with count {int(counts[bad][0])}"
            self._hazard(HazardKind.BARRIER_MISUSE, what, ins, int(ctas[bad][0]))
        if offset & 7:
            what = f"mbarrier at shared address {offset}, which is not a multiple of 8"
            self._hazard(HazardKind.MISALIGNED, what, ins, int(ctas[0]))
        m.valid[ctas] = True
        m.count[ctas] = m.pending[ctas] = counts
        for field in (m.bytes, m.phase, m.seen, m.ever):
            field[ctas] = 0
        shared = self.batch.shared
        if not offset & 7 and offset + 8 <= shared.stride:
            shared.data.view(np.uint64)[(ctas * shared.stride + offset) // 8] = _CONTENTS
        self.batch.run.progress += 1

    def invalidate(self, offset: int, ctas: Array, ins: Instruction) -> None:
        m = self.get(offset)
        if self._check_valid(m, ctas, offset, ins, "invalidated"):
            m.valid[ctas] = False

    # --- arrivals ------------------------------------------------------------------------------

    def arrive(
        self,
        offset: int,
        ctas: Array,
        counts: Array,
        expect: Array | None,
        drop: bool,
        ins: Instruction,
    ) -> Array:
        """Make arrivals of `counts`, one for each lane, at blocks `ctas`, after expecting bytes.

        Returns the state tokens. Arrivals with .noComplete must not complete the phase (9.7.13.15.13).
        """
        m = self.get(offset)
        m.last = ins
        if not self._check_valid(m, ctas, offset, ins, "arrived at"):
            return np.zeros(len(ctas), np.uint64)
        blocks = self.batch.blocks
        if expect is not None:
            m.bytes += np.bincount(ctas, expect, blocks).astype(np.int64)
            m.ever[ctas] |= expect != 0
        token = m.phase[ctas] | (m.pending[ctas] << PHASE_BITS)
        total = np.bincount(ctas, counts, blocks).astype(np.int64)
        m.pending -= total
        if drop:
            m.count -= total
        over = m.pending < 0
        if over.any():
            cta = int(np.flatnonzero(over)[0])
            what = (
                f"mbarrier {self.name(offset)} has {-int(m.pending[cta])} arrivals more than its count of "
                f"{int(m.count[cta])} in one phase"
            )
            self._hazard(HazardKind.BARRIER_MISUSE, what, ins, cta, "check the barrier's arrival count")
            m.pending[over] = 0
        if "noComplete" in ins.opcode:
            ends = (total > 0) & (m.pending == 0) & (m.bytes <= 0)
            if ends.any():
                what = f"mbarrier {self.name(offset)} completes its phase by an arrival with .noComplete"
                fix = "let the last arrival of the phase be one without .noComplete"
                self._hazard(HazardKind.BARRIER_MISUSE, what, ins, int(np.flatnonzero(ends)[0]), fix)
        self.settle(offset, m, ins)
        return token.astype(np.uint64)

    def transact(self, offset: int, ctas: Array, delta: Array, ins: Instruction) -> None:
        """Execute expect_tx (positive) and complete_tx (negative), one for each lane."""
        m = self.get(offset)
        if not self._check_valid(m, ctas, offset, ins, "told of bytes"):
            return
        m.ever[ctas] = True
        m.bytes += np.bincount(ctas, delta, self.batch.blocks).astype(np.int64)
        self.settle(offset, m, ins)

    def deliver(self, offset: int, cta: int, size: int, ins: Instruction) -> None:
        """Execute complete_tx of one copy."""
        m = self.get(offset)
        if not m.valid[cta]:
            self._check_valid(m, np.array([cta]), offset, ins, "told of bytes")
            return
        m.ever[cta] = True
        m.last = m.last or ins
        m.bytes[cta] -= size
        if m.bytes[cta] <= 0 and m.pending[cta] == 0:  # otherwise no phase ends
            self.settle(offset, m, ins)

    def settle(self, offset: int, m: Mbarrier, ins: Instruction) -> None:
        """Complete phases without pending arrivals and bytes."""
        free = m.valid & (m.pending == 0)
        if not free.any():
            return
        over = free & (m.bytes < 0)
        if over.any():
            cta = int(np.flatnonzero(over)[0])
            what = (
                f"mbarrier {self.name(offset)} was delivered {-int(m.bytes[cta])} bytes more than it expects "
                "in this phase"
            )
            fix = "make the bytes of expect_tx those of the copies"
            self._hazard(HazardKind.BYTES_MISMATCH, what, ins, cta, fix)
            m.bytes[over] = 0
        done = free & (m.bytes == 0)
        if not done.any():
            return
        if self.batch.run.detect:
            unseen = done & (m.phase > m.seen)
            if unseen.any():
                cta = int(np.flatnonzero(unseen)[0])
                what = f"mbarrier {self.name(offset)} completes a phase before any warp has seen the one before"
                fix = "wait for each phase before arriving for the next"
                self._hazard(HazardKind.PHASE_OVERRUN, what, ins, cta, fix)
        m.phase[done] += 1
        m.pending[done] = m.count[done]
        if m.clock is not None:
            if self.batch.run.program.keeps_phases:
                m.keep(done)
            m.clock.publish(done)
            if m.peers is not None:
                m.peers.publish(done)
        self.batch.run.progress += 1
        self.batch.wake_mbarriers(offset)

    # --- waits ---------------------------------------------------------------------------------

    def complete(self, offset: int, ctas: Array, wanted: Array, parity: bool, ins: Instruction) -> Array:
        """Return whether each lane's phase is complete: (lanes,)."""
        m = self.get(offset)
        if not self._check_valid(m, ctas, offset, ins, "waited for"):
            return np.ones(len(ctas), np.bool_)
        phase = m.phase[ctas]
        if parity:
            return (phase & 1) != (wanted & 1)
        asked = wanted & ((1 << PHASE_BITS) - 1)
        if (asked > phase).any():
            what = f"a wait for a phase of mbarrier {self.name(offset)} that is still to begin"
            self._hazard(HazardKind.IMPOSSIBLE_WAIT, what, ins, int(ctas[asked > phase][0]))
        return phase > asked

    def release(self, offset: int, rows: Array, ctas: Array, relaxed: bool, scope: str) -> None:
        """Let warps `rows` (of the batch) release what they know to the barriers of blocks `ctas`.

        An arrival of the scope .cta releases nothing to another block. An arrival without a scope does, although the ISA's
        default is .cta, because CUTLASS uses such arrivals at the barriers of peers.
        """
        m, clocks = self.get(offset), self.batch.clocks
        reach = self.batch.run.program.reach(scope or "cta")
        own = self.batch.row_cta[rows] == ctas
        if own.any():
            clocks.release_rows(m.clock, ctas[own], rows[own], relaxed, reach)
        if own.all():
            return
        rows, ctas = rows[~own], ctas[~own]
        if scope != "cta":
            m.peers = m.peers or clocks.store(self.batch.blocks)
            clocks.release_rows(m.peers, ctas, rows, relaxed, reach)
        if (relaxed or scope == "cta") and self.batch.peers is not None:
            self.batch.peers.arrive(rows, ctas, offset)

    def saw_earlier(self, offset: int, rows: Array, ctas: Array, c: Group, relaxed: bool) -> None:
        """Record that warps have observed the completion of a phase after which another one has completed.

        They acquire what was released before that phase: on a GPU they may have gone on earlier.
        """
        m = self.get(offset)
        m.seen[ctas] = np.maximum(m.seen[ctas], m.phase[ctas] - 1)
        if m.clock is not None and not relaxed and m.before is not None:
            self.batch.clocks.learn(c.part(c.pc, rows, None), widened(m.before, self.batch.clocks.columns)[ctas])

    def saw(self, offset: int, rows: Array, ctas: Array, c: Group, relaxed: bool, scope: str) -> None:
        """Record that warps `rows` (of the batch) have observed the completion of the barriers of blocks `ctas`.

        They acquire what was released, or their next fence does if the wait is relaxed. A wait of the scope .cta acquires
        nothing from other blocks, except from copies.
        """
        m = self.get(offset)
        m.seen[ctas] = m.phase[ctas]
        clocks = self.batch.clocks
        if clocks is None:
            return
        if self.batch.peers is not None:
            self.batch.peers.observed(ctas, offset)
        stores = [(m.clock, "cta"), (None if scope == "cta" else m.peers, "cluster")]
        for store, least in stores:
            if store is None:
                continue
            if not relaxed:
                clocks.acquire_published(store, ctas, c.part(c.pc, rows, None))
                continue
            store.fit()
            self.batch.run.sync.hold(self.batch, rows, store.published[ctas], self.batch.run.program.reach(least))
            if self.batch.tensor is not None:  # for a tcgen05.fence after it
                self.batch.tensor.brought(rows, store.published[ctas])
