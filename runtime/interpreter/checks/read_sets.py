"""All readers of each granule of shared memory since its last write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .columns import Column

Array = npt.NDArray[Any]


class ReadSets(Column):
    """All readers of each granule since its last write: the clocks of warps and of queues.

    `r`: the epoch of the last reader, with a flag if there are others; `site`: the site of the last warp that read.
    """

    fields: tuple[str, ...] = ("r", "site", "reach", "clocks", "queues", "queue_sites")

    def __init__(self, size: int, site_type: Any, agents: int, room: Callable[[int], None]) -> None:
        super().__init__(size, room)
        self.agents = agents
        self.r: Array = np.zeros(1, np.int64)
        self.site: Array = np.zeros(1, site_type)
        self.reach: Array = np.zeros(1, np.int8)
        self.clocks: Array = np.zeros((1, agents), np.uint32)
        self.queues: Array = np.zeros((1, 0), np.uint32)
        self.queue_sites: Array = np.zeros((1, 0), site_type)

    def held(self, numbers: Array) -> tuple[Array, Array, Array]:
        """Return the (epochs, sites, reach) of the last readers of entries."""
        return self.r[numbers], self.site[numbers], self.reach[numbers]

    def with_reader(self, had: Array, r: Array, agent: Array, clock: Array, site: int, reach: int) -> Array:
        """Add readers to copies of the sets `had` (n,). Return the numbers of the copies.

        `agent` and `clock` are (n,), or (readers, n) for several readers of each; `r` (n,) are the epochs of the last ones.
        """
        most = int(agent.max()) + 1 - self.agents
        if most > self.queues.shape[1]:
            more = ((0, 0), (0, -(-most // 4) * 4 - self.queues.shape[1]))
            self.queues, self.queue_sites = np.pad(self.queues, more), np.pad(self.queue_sites, more)
        sites, clocks, queues, queue_sites = (f[had] for f in (self.site, self.clocks, self.queues, self.queue_sites))
        n = np.arange(len(had))
        if most > 0:  # all readers are queues
            queues[n, agent - self.agents] = clock
            queue_sites[n, agent - self.agents] = site
        else:
            sites[:] = site
            clocks[n, agent] = clock
        made = self.new(len(had))
        self.r[made], self.site[made], self.reach[made], self.clocks[made] = r, sites, reach, clocks
        self.queues[made], self.queue_sites[made] = queues, queue_sites
        return np.arange(made.start, made.stop)

    def late(self, numbers: Array, known: Array) -> tuple[Array, Array]:
        """Return which warps (n, agents) and queues (n, queues) of sets have reads that `known` (n, columns) lacks."""
        count = min(self.queues.shape[1], known.shape[1] - self.agents)  # other queues are newer, and have read nothing
        mine = known[:, self.agents : self.agents + count]
        return self.clocks[numbers] > known[:, : self.agents], self.queues[numbers, :count] > mine
