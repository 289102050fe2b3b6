"""Shared memory of other blocks of a cluster (PTX ISA 5.1.7.1 and 9.7.13.3, barrier.cluster).

A block's shared memory exists from its start to its exit. So an access to a peer's memory must come after an event of the peer
(a cluster barrier, a message), and before an event that a warp of the peer has observed when it exits. The check takes both from
the order of events, independently of the schedule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .clocks import GENERIC
from .kinds import HazardKind

if TYPE_CHECKING:
    from ..machine.batch import Batch
    from ..machine.group import Group
    from ..ptx.module import Instruction

Array = npt.NDArray[Any]
_FIX = "put a cluster barrier before the first such access and one before exit"


class Peers:
    """The last access of each warp to each block of its cluster: clocks and sites, (clusters, ranks, agents)."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        shape = (batch.teams, batch.cluster, batch.cluster * batch.per_block)
        self.clock: Array = np.zeros(shape, np.uint32)
        self.site: Array = np.zeros(shape, np.int32)
        # Arrivals that release nothing: their clocks (blocks, agents) by the barrier's offset
        self.arrived: dict[int, Array] = {}
        self.seen: Array = np.zeros(shape, np.uint32)  # the clocks of such arrivals whose phase was observed

    def accessed(self, c: Group, row: Array, cta: Array, ins: Instruction) -> None:
        """Record that rows of `c` access shared memory of blocks `cta`."""
        batch = self.batch
        other = cta != c.cta[row]
        if not other.any():
            return
        row, cta = row[other], cta[other]
        self.check_started(c, row, cta, ins)
        if "async" in ins.opcode:  # a barrier of the peer signals it
            return
        warps = c.rows[row]
        agent, team = batch.row_agent[warps], batch.row_team[warps]
        self.clock[team, cta % batch.cluster, agent] = batch.clocks.known[team, agent, GENERIC, agent]
        self.site[team, cta % batch.cluster, agent] = batch.run.site(ins)

    def arrive(self, rows: Array, cta: Array, offset: int) -> None:
        """Record arrivals of warps `rows` that release nothing. A warp that observes their phase knows that they took place."""
        batch = self.batch
        held = self.arrived.setdefault(offset, np.zeros((batch.blocks, self.clock.shape[2]), np.uint32))
        agent = batch.row_agent[rows]
        held[cta, agent] = batch.clocks.known[batch.row_team[rows], agent, GENERIC, agent]

    def observed(self, cta: Array, offset: int) -> None:
        """Record that warps of blocks `cta` have observed a phase of their barrier."""
        held = self.arrived.get(offset)
        if held is not None:
            team, rank = np.divmod(cta, self.batch.cluster)
            self.seen[team, rank] = np.maximum(self.seen[team, rank], held[cta])

    def check_started(self, c: Group, row: Array, cta: Array, ins: Instruction) -> None:
        live = self.batch.live.reshape(self.batch.per_block, self.batch.blocks, 32)
        gone: Array = ~np.any(live[:, cta], axis=(0, 2))
        early = ~peers_run(self.batch, c.rows[row])
        bad = gone if gone.any() else early
        if bad.any():
            first = int(bad.argmax())
            when = "after that block has exited" if gone.any() else "before that block is known to run"
            self._report(int(c.rows[row[first]]), int(cta[first]), when, ins)

    def all_run(self, rows: Array, cta: Array) -> bool:
        """Return whether blocks `cta` run, and warps `rows` of the batch know it."""
        live = self.batch.live.reshape(self.batch.per_block, self.batch.blocks, 32)
        return bool(live[:, cta].any(axis=(0, 2)).all() and peers_run(self.batch, rows).all())

    def at_exit(self) -> None:
        """Check accesses to peers after all blocks have exited: a warp of the peer must be ordered after each access."""
        batch = self.batch
        known = batch.clocks.known[:, :, GENERIC, : self.clock.shape[2]]  # (clusters, agents, agents)
        told = known.reshape(batch.teams, batch.cluster, batch.per_block, -1).max(axis=2)
        late = self.clock > np.maximum(told, self.seen)
        if late.any():
            team, rank, agent = (int(i) for i in np.argwhere(late)[0])
            warp_rank, warp = divmod(agent, batch.per_block)
            row = warp * batch.blocks + team * batch.cluster + warp_rank
            ins = batch.run.sites[int(self.site[team, rank, agent])]
            when = "and that block may have exited: nothing it waits for comes after"
            self._report(row, team * batch.cluster + rank, when, ins)

    def _report(self, row: int, cta: int, when: str, ins: Instruction) -> None:
        batch, reporter = self.batch, self.batch.run.reporter
        who = reporter.who(batch.coordinates[int(batch.row_cta[row])], int(batch.row_warp[row]))
        what = f"shared memory of {reporter.block(batch.coordinates[cta])} is touched {when}"
        reporter.hazard(HazardKind.PEER_NOT_RUNNING, what, ins, (who,), _FIX)


def peers_run(batch: Batch, rows: Array) -> Array:
    """Return the warps, (rows,), that know that their peers run: by a cluster barrier, or by a message from each peer."""
    known = batch.clocks.known[batch.row_team[rows], batch.row_agent[rows], GENERIC, : batch.clocks.agents]
    told = (known.reshape(len(rows), batch.cluster, batch.per_block) > 0).any(axis=2).all(axis=1)
    return told | (batch.barriers.warp_phase[rows] > 0)
