"""Vector clocks: which accesses are ordered before which (PTX ISA, section 8, 'Memory Consistency Model').

An *agent* is a warp, or a queue of asynchronous operations whose completions come in order (the copies of one
mbarrier, the bulk groups of one warp, the wgmma groups of one warpgroup). Agents are numbered within a cluster, warps
first. `known[team, warp, GENERIC, a]` is the latest clock of agent a whose accesses are ordered before what the warp
does next. The other planes hold the part of these clocks that meets a further condition. For `ASYNC`, `ASYNC_GLOBAL` and
`TENSOR_MAP`, a proxy fence was passed (8.9.5, 'Proxy-preserved base causality order'). For `PERFORMED`, an agent's reads of
shared memory have certainly taken place (`performed`). `PERFORMED_GLOBAL` is the same for global memory. For `FENCED` and the
planes beside it, a fence of their scope was passed, so relaxed operations of that scope release these clocks (8.8, 'Release
and Acquire Patterns'). A program has only the planes that it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .foreign import Foreign, widened
from .lane_copies import LaneCopies

if TYPE_CHECKING:
    from ..machine.batch import Batch
    from ..machine.group import Group
    from ..ptx.module import Instruction

Array = npt.NDArray[Any]
GENERIC = 0
ASYNC = 1  # shared memory, for the async proxy
FENCED = 2  # for the GPU and more
ASYNC_GLOBAL = 3  # global memory, for the async proxy
TENSOR_MAP = 4  # tensor maps in memory, released to their proxy
PERFORMED = 5  # reads of shared memory, before writes by the async proxy
PERFORMED_GLOBAL = 6  # the same of global memory
FENCED_CLUSTER = 7
FENCED_BLOCK = 8
FENCED_GPU = 9  # of several
# The plane of fenced clocks, by the scope of an access or fence (`Program.reach`).
_FENCED = (FENCED, FENCED_CLUSTER, FENCED_BLOCK)
_FENCED_SEVERAL = (FENCED, FENCED_GPU, FENCED_CLUSTER, FENCED_BLOCK)


class StoredClocks:
    """The clocks that synchronisation objects hold: `gathering` collects releases, and a wait gets `published`."""

    def __init__(self, clocks: Clocks, count: int) -> None:
        self.clocks = clocks
        self.gathering: Array = np.zeros((count, clocks.planes, clocks.columns), np.uint32)
        self.published: Array = np.zeros((count, clocks.planes, clocks.columns), np.uint32)

    def fit(self) -> None:
        if self.gathering.shape[2] < self.clocks.columns:
            self.gathering = widened(self.gathering, self.clocks.columns)
            self.published = widened(self.published, self.clocks.columns)

    def publish(self, done: Array) -> None:
        self.fit()
        self.published[done] = self.gathering[done]

    def clear(self, done: Array) -> None:
        self.gathering[done] = 0


def earlier(keys: Array) -> Array:
    """Return for each key the number of equal keys before it."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    first = np.append(True, ranked[1:] != ranked[:-1])
    starts = np.flatnonzero(first)
    counts = np.arange(len(keys)) - starts[np.cumsum(first) - 1]
    out = np.empty(len(keys), np.int64)
    out[order] = counts
    return out


class Clocks:
    """The clocks of a batch's warps and asynchronous queues."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.agents: int = batch.cluster * batch.per_block
        self.columns: int = -(-(self.agents + 8) // 8) * 8
        self.planes: int = batch.run.program.planes
        self.fenced: tuple[int, ...] = _FENCED_SEVERAL if batch.run.program.several else _FENCED
        self.known: Array = np.zeros((batch.teams, self.agents, self.planes, self.columns), np.uint32)
        own = np.arange(self.agents)
        self.known[:, own, 0, own] = 1
        self.queue_of: dict[Any, int] = {}
        self.queues: list[Any] = []
        self.issued: Array = np.zeros((batch.teams, self.columns), np.uint32)
        self.last: dict[int, Instruction] = {}  # the last instruction that issued to each queue
        self.any_fence: bool = False
        self.foreign: Foreign = Foreign()
        self.lane_copies: LaneCopies = LaneCopies(batch)

    def store(self, count: int) -> StoredClocks:
        return StoredClocks(self, count)

    def queue(self, key: tuple[Any, ...]) -> int:
        """Return the agent number of an asynchronous queue, such as ("copy", block rank, barrier offset)."""
        found = self.queue_of.get(key)
        if found is None:
            found = self.queue_of[key] = self.agents + len(self.queues)
            self.queues.append(key)
            if found >= self.columns:
                self.columns *= 2
                self.known = widened(self.known, self.columns)
                self.issued = widened(self.issued, self.columns)
        return found

    def queues_of(self, rows: Array, kind: str) -> Array:
        """Return the queue of this kind of each of the warps."""
        return np.array([self.queue((kind, int(agent))) for agent in self.batch.row_agent[rows]], np.int64)

    def begin(self, rows: Array, kind: str) -> tuple[Array, Array]:
        """Begin one operation of each of the warps, in turn. Returns their (queue, clock).

        A warp may be named more than once.
        """
        queues, teams = self.queues_of(rows, kind), self.batch.row_team[rows]
        when = self.issued[teams, queues].astype(np.int64) + 1 + earlier(rows)
        np.add.at(self.issued, (teams, queues), np.uint32(1))
        return queues, when

    # --- releases and acquires -----------------------------------------------------------------

    def of(self, c: Group) -> Array:
        """Return what each warp of `c` knows: (rows, planes, columns)."""
        batch = self.batch
        return self.known[batch.row_team[c.rows], batch.row_agent[c.rows]]

    def own(self, c: Group) -> Array:
        """Return each warp's own clock: (rows,)."""
        batch = self.batch
        agent = batch.row_agent[c.rows]
        return self.known[batch.row_team[c.rows], agent, 0, agent]

    def release(self, store: StoredClocks, keys: Array, c: Group, relaxed: bool = False, reach: int = 0) -> None:
        """Add what the warps of `c` know to `store[keys]`, and start a new epoch for them.

        A relaxed operation releases only what the warp knew at its last fence of that reach or a wider one.
        """
        self.release_rows(store, keys, c.rows, relaxed, reach)
        self.tick(c)

    def release_rows(
        self, store: StoredClocks, keys: Array, rows: Array, relaxed: bool = False, reach: int = 0
    ) -> None:
        """Do the same for warps by number, without a new epoch; a warp may appear more than once."""
        store.fit()
        team, agent = self.batch.row_team[rows], self.batch.row_agent[rows]
        if relaxed:
            if not self.any_fence:
                return
            mine = self.relaxed_part(self.known[team, agent], reach)
        else:
            mine = self.known[team, agent]
        order = np.argsort(keys, kind="stable")
        sorted_keys = keys[order]
        starts = np.flatnonzero(np.append(True, sorted_keys[1:] != sorted_keys[:-1]))
        joined = np.maximum.reduceat(mine[order], starts, axis=0)
        where = sorted_keys[starts]
        store.gathering[where] = np.maximum(store.gathering[where], joined)

    def relaxed_part(self, known: Array, reach: int) -> Array:
        """Return the part of what warps know, (..., planes, columns), that their relaxed operations of this reach release."""
        plane = self.fenced[reach] if self.planes > FENCED_BLOCK else FENCED
        return np.minimum(known, known[..., plane : plane + 1, :])

    def fence(self, c: Group, reach: int = 0) -> None:
        """Execute fence.acq_rel or a stronger fence.

        Later relaxed operations of this reach or less release what is known now.
        """
        self.any_fence = True
        planes = (FENCED,) if self.planes <= FENCED_BLOCK else self.fenced[reach:]
        self._lift(c, planes)
        self.performed(c.rows)
        self.performed_global(c.rows)
        self.tick(c)

    def performed(self, rows: Array) -> None:
        """Record that what warps have read from shared memory so far has been read.

        The ISA promises that after a proxy fence alone (8.9.5). On a GPU, other fences, releases in memory and the warp's
        own copies wait for its earlier loads, too; so do arrivals on mbarriers that release to the cluster. `bar.sync`,
        `barrier.cluster` and other arrivals do not: loads may still be in the queue of shared memory when the barrier
        completes. Loads whose values were needed before: see `overtaken.py`.
        """
        self._performed(rows, PERFORMED)

    def performed_global(self, rows: Array) -> None:
        """Record that what warps have read from global memory so far has been read (`overtaken.py`)."""
        self._performed(rows, PERFORMED_GLOBAL)

    def _performed(self, rows: Array, plane: int) -> None:
        if self.planes > plane:
            team, agent = self.batch.row_team[rows], self.batch.row_agent[rows]
            self.known[team, agent, plane, agent] = self.known[team, agent, GENERIC, agent]

    def _lift(self, c: Group, planes: tuple[int, ...]) -> None:
        """Copy all that the warps know to these planes."""
        batch = self.batch
        team, agent = batch.row_team[c.rows], batch.row_agent[c.rows]
        mine = self.known[team, agent]
        for plane in planes:
            mine[:, plane] = np.maximum(mine[:, plane], mine[:, GENERIC])
        self.known[team, agent] = mine

    def tick(self, c: Group) -> None:
        batch = self.batch
        agent = batch.row_agent[c.rows]
        self.known[batch.row_team[c.rows], agent, 0, agent] += 1

    def acquire(self, store: StoredClocks, keys: Array, c: Group) -> None:
        """Let the warps of `c` know what `store.gathering[keys]` holds."""
        store.fit()
        self.learn(c, store.gathering[keys])

    def acquire_published(self, store: StoredClocks, keys: Array, c: Group) -> None:
        store.fit()
        self.learn(c, store.published[keys])

    def learn(self, c: Group, what: Array) -> None:
        """Join `what` (rows, planes, columns) into the warps' clocks."""
        batch = self.batch
        team, agent = batch.row_team[c.rows], batch.row_agent[c.rows]
        self.known[team, agent] = np.maximum(self.known[team, agent], what)
        self.lane_copies.sync(c.rows)

    def proxy_fence(self, c: Group, planes: tuple[int, ...]) -> None:
        """Execute fence.proxy: all that the warp knows is now visible to other proxies too."""
        if ASYNC in planes:
            planes = (*planes, PERFORMED)
        if ASYNC_GLOBAL in planes:
            planes = (*planes, PERFORMED_GLOBAL)
        planes = tuple(p for p in planes if p < self.planes)
        self._lift(c, planes)
        self._lift_foreign(c, planes)
        self.tick(c)  # later writes of the warp are not fenced

    def _lift_foreign(self, c: Group, planes: tuple[int, ...]) -> None:
        """Do the same for what the warps know of other clusters."""
        if not self.foreign:
            return
        teams, agents = self.batch.row_team[c.rows], self.batch.row_agent[c.rows]
        for team, agent in zip(teams.tolist(), agents.tolist(), strict=True):
            own = self.known[team, agent, GENERIC]
            for other, what in self.foreign.known(team, own):
                lifted = what.copy()
                for plane in planes:
                    lifted[plane] = np.maximum(lifted[plane], lifted[GENERIC])
                self.foreign.add(team, agent, int(own[agent]), other, lifted)

    # --- between clusters ----------------------------------------------------------------------

    def learn_from(self, team: int, agent: int, entry: dict[int, Array]) -> None:
        """Let a warp learn `entry`, which it has acquired: the clocks of its own cluster's agents and of other clusters'."""
        own = self.batch.first // self.batch.cluster + team
        row = self.known[team, agent]
        for other, what in entry.items():
            if other == own:
                wide = min(what.shape[1], self.columns)
                row[:, :wide] = np.maximum(row[:, :wide], what[:, :wide])
            else:
                self.foreign.add(team, agent, int(row[0, agent]), other, what)
        self.lane_copies.sync(np.array([self.batch.row_of(team, agent)]))
