"""Order by way of memory: releases and acquires at addresses, in one cluster and between clusters.

A release stores its warp's clocks at its address; an acquire that reads there merges them. Relaxed operations do so together
with fences: they release the clocks of the warp's last fence, and the next fence merges the clocks that they read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .foreign import joined

if TYPE_CHECKING:
    from ..machine.batch import Batch
    from ..machine.group import Group
    from ..machine.spaces import Part

Array = npt.NDArray[Any]
Place = tuple[int, ...]  # memory and byte, then 1 and a cluster, 2 and a block or 3 and a GPU
Knowledge = dict[int, Array]  # cluster -> (3, columns)


def _join(into: Knowledge, team: int, what: Array) -> None:
    """Add `what`, which nobody may change later, to what is known of a cluster."""
    held = into.get(team)
    into[team] = what if held is None else joined(held, what)


class SyncMemory:
    """The clocks that were released at each address of a run."""

    def __init__(self) -> None:
        self.at: dict[Place, Knowledge] = {}
        # The clocks that a warp has read by relaxed operations and learns at its next fence, by the least reach of the
        # fence: (cluster, agent) -> reach -> knowledge.
        self.unfenced: dict[tuple[int, int], dict[int, Knowledge]] = {}

    def clusters(self) -> set[int]:
        """Return the clusters whose clocks are held here."""
        read = [held for levels in self.unfenced.values() for held in levels.values()]
        return {cluster for knowledge in (*self.at.values(), *read) for cluster in knowledge}

    def access(self, c: Group, part: Part, size: int, form: Any, reads: bool, writes: bool) -> None:
        """Record a strong access. Its form's semantics are "", relaxed, volatile, acquire, release or acq_rel."""
        clocks, semantics = c.batch.clocks, form.semantics  # an update keeps released clocks (PTX ISA 8.9.2)
        if clocks is None:
            return
        releases = writes and (semantics in ("release", "acq_rel") or clocks.any_fence)
        acquires = reads and (releases or bool(self.at))
        if not (releases or acquires):
            return
        if releases:
            clocks.performed(c.rows)
            if semantics in ("release", "acq_rel"):
                clocks.performed_global(c.rows)
        where = c.active if part.mask is None else part.mask
        rows = np.broadcast_to(np.arange(c.n)[:, None], where.shape)[where]
        index = part.index[where]
        pairs = np.unique(np.stack([rows, index]), axis=1)
        memory = id(part.view.base if part.view.base is not None else part.view)
        for row, at in pairs.T.tolist():
            keys = self._keys(c, row, (memory, at * size), form.reach)
            levels = list(enumerate(keys))[form.reach :]
            for level, key in levels if acquires else ():
                if key in self.at:
                    self._acquire(c, row, self.at[key], semantics, level)
            for level, key in levels if releases else ():
                self._release(c, row, key, semantics in ("release", "acq_rel"), reads or form.updates, level)
        if releases:
            clocks.tick(c)

    @staticmethod
    def _keys(c: Group, row: int, place: tuple[int, int], reach: int) -> list[Place]:
        """Return the keys of a place's releases.

        The keys are for all agents, for the accessor's GPU if there are several, for its cluster, and for its block.
        A release at a scope is stored for this scope and for all smaller ones. An acquire at a scope reads the scopes
        that it shares with the release.
        """
        batch = c.batch
        if not batch.run.program.narrow:
            return [place, place, place][: reach + 1]
        cta = int(batch.row_cta[int(c.rows[row])])
        cluster = (batch.first + cta) // batch.cluster
        near = [(*place, 1, cluster), (*place, 2, batch.first + cta)]
        return [place, (*place, 3, batch.device), *near] if batch.run.program.several else [place, *near]

    def _release(self, c: Group, row: int, key: Place, full: bool, joins: bool, level: int) -> None:
        batch, clocks = c.batch, c.batch.clocks
        warp = int(c.rows[row])
        team, agent = int(batch.row_team[warp]), int(batch.row_agent[warp])
        mine = clocks.known[team, agent]
        mine = mine.copy() if full else clocks.relaxed_part(mine, level)
        if not mine.any():
            return
        first = batch.first // batch.cluster
        entry = self.at.setdefault(key, {}) if joins else self.at.__setitem__(key, {}) or self.at[key]
        _join(entry, first + team, mine)
        for other, what in clocks.foreign.known(team, mine[0]):
            _join(entry, other, what)

    def _acquire(self, c: Group, row: int, entry: Knowledge, semantics: str, level: int) -> None:
        batch = c.batch
        warp = int(c.rows[row])
        team, agent = int(batch.row_team[warp]), int(batch.row_agent[warp])
        if semantics in ("relaxed", "volatile"):
            warps = self.unfenced.setdefault((batch.first // batch.cluster + team, agent), {})
            held = warps.setdefault(level, {})
            for other, what in entry.items():
                _join(held, other, what)
        else:
            batch.clocks.learn_from(team, agent, entry)

    def hold(self, batch: Batch, rows: Array, what: Array, level: int) -> None:
        """Let warps (of the batch) learn `what`, (warps, planes, columns) of their cluster, at their next fence of this reach
        or a wider one."""
        for warp, known in zip(rows.tolist(), what, strict=True):
            cluster = batch.first // batch.cluster + int(batch.row_team[warp])
            warps = self.unfenced.setdefault((cluster, int(batch.row_agent[warp])), {})
            _join(warps.setdefault(level, {}), cluster, known)

    def fence(self, c: Group, reach: int) -> None:
        """Execute a fence: its warps learn the clocks that relaxed reads found, as far as the fence reaches."""
        if not self.unfenced:
            return
        batch = c.batch
        first = batch.first // batch.cluster
        for warp in c.rows.tolist():
            team, agent = int(batch.row_team[warp]), int(batch.row_agent[warp])
            held = self.unfenced.get((first + team, agent), {})
            for level in [at for at in held if at >= reach]:
                batch.clocks.learn_from(team, agent, held.pop(level))
