"""Order made through memory: releases and acquires at addresses, in one cluster and between clusters.

A release leaves at its address what its warp knows; an acquire that reads there learns it. Relaxed operations do so
together with fences: they release what the warp knew at its last fence, and what they read is learned at the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .clocks import widened

if TYPE_CHECKING:
    from .group import Group
    from .spaces import Part

Array = npt.NDArray[Any]
Knowledge = dict[int, Array]  # cluster -> (3, columns)


def _join(into: Knowledge, team: int, what: Array) -> None:
    held = into.get(team)
    if held is None:
        into[team] = what.copy()
        return
    wide = max(held.shape[1], what.shape[1])
    held = held if held.shape[1] == wide else widened(held, wide)
    what = what if what.shape[1] == wide else widened(what, wide)
    into[team] = np.maximum(held, what)


class SyncMemory:
    """What has been released at each address of a run."""

    def __init__(self) -> None:
        self.at: dict[tuple[int, int], Knowledge] = {}
        # What a warp has read by relaxed operations and learns at its next fence: (cluster, agent) -> knowledge.
        self.unfenced: dict[tuple[int, int], Knowledge] = {}

    def access(self, c: Group, part: Part, size: int, semantics: str, reads: bool, writes: bool) -> None:
        """A strong access: `semantics` is "", relaxed, volatile, acquire, release or acq_rel."""
        clocks = c.batch.clocks
        if clocks is None:
            return
        releases = writes and (semantics in ("release", "acq_rel") or clocks.any_fence)
        acquires = reads and (releases or bool(self.at))
        if not (releases or acquires):
            return
        where = c.active if part.mask is None else part.mask
        rows = np.broadcast_to(np.arange(c.n)[:, None], where.shape)[where]
        index = part.index[where]
        pairs = np.unique(np.stack([rows, index]), axis=1)
        memory = id(part.view.base if part.view.base is not None else part.view)
        for row, at in pairs.T.tolist():
            key = (memory, at * size)
            if acquires and key in self.at:
                self._acquire(c, row, self.at[key], semantics)
            if releases:
                self._release(c, row, key, semantics in ("release", "acq_rel"), reads)
        if releases:
            clocks.tick(c)

    def _release(self, c: Group, row: int, key: tuple[int, int], full: bool, joins: bool) -> None:
        batch, clocks = c.batch, c.batch.clocks
        warp = int(c.rows[row])
        team, agent = int(batch.row_team[warp]), int(batch.row_agent[warp])
        mine = clocks.known[team, agent]
        mine = mine.copy() if full else clocks.relaxed_part(mine)
        if not mine.any():
            return
        first = batch.first // batch.cluster
        entry = self.at.setdefault(key, {}) if joins else self.at.__setitem__(key, {}) or self.at[key]
        _join(entry, first + team, mine)
        for other, what in clocks.foreign_known(team, mine[0]):
            _join(entry, other, what)

    def _acquire(self, c: Group, row: int, entry: Knowledge, semantics: str) -> None:
        batch = c.batch
        warp = int(c.rows[row])
        team, agent = int(batch.row_team[warp]), int(batch.row_agent[warp])
        if semantics == "relaxed":
            held = self.unfenced.setdefault((batch.first // batch.cluster + team, agent), {})
            for other, what in entry.items():
                _join(held, other, what)
        else:
            batch.clocks.learn_from(team, agent, entry)

    def fence(self, c: Group) -> None:
        """A fence: what relaxed reads have seen is learned."""
        if not self.unfenced:
            return
        batch = c.batch
        first = batch.first // batch.cluster
        for warp in c.rows.tolist():
            team, agent = int(batch.row_team[warp]), int(batch.row_agent[warp])
            held = self.unfenced.pop((first + team, agent), None)
            if held:
                batch.clocks.learn_from(team, agent, held)
