"""What the warps of a cluster know of other clusters: vector clocks that they acquired through memory."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.uint32]


def widened(array: Array, columns: int) -> Array:
    """Return clocks (..., columns) with more columns, which are zero."""
    out = np.zeros((*array.shape[:-1], columns), array.dtype)
    out[..., : array.shape[-1]] = array
    return out


def joined(x: Array, y: Array) -> Array:
    """Return the later clocks of two arrays (planes, columns), which may have different numbers of columns."""
    wide = max(x.shape[1], y.shape[1])
    return np.maximum(x if x.shape[1] == wide else widened(x, wide), y if y.shape[1] == wide else widened(y, wide))


class History:
    """What one warp has learnt of one cluster: at each of `clocks`, the warp's own, it knew the array of `learnt`.

    Both grow, and each array holds the ones before it, so the last one in time is all that the warp knew then.
    """

    __slots__ = ("clocks", "learnt")

    def __init__(self) -> None:
        self.clocks: list[int] = []
        self.learnt: list[Array] = []

    def add(self, clock: int, what: Array) -> None:
        if not self.clocks:
            self.clocks.append(clock)
            self.learnt.append(what)
            return
        last = self.learnt[-1]
        if last.shape[1] >= what.shape[1] and (what <= last[:, : what.shape[1]]).all():
            return  # a warp that polls acquires the same clocks again and again
        if self.clocks[-1] == clock:
            self.learnt[-1] = joined(last, what)
        else:
            self.clocks.append(clock)
            self.learnt.append(joined(last, what))

    def at(self, clock: int) -> Array | None:
        """Return what the warp knew at a clock of its own; None if that was nothing."""
        found = bisect_right(self.clocks, clock)
        return self.learnt[found - 1] if found else None


class Foreign:
    """The histories of a batch's warps: by cluster of the batch, other cluster, and warp."""

    def __init__(self) -> None:
        self._teams: dict[int, dict[int, dict[int, History]]] = {}

    def __bool__(self) -> bool:
        return bool(self._teams)

    def clusters(self) -> set[int]:
        """Return the other clusters of which a warp knows something."""
        return {other for histories in self._teams.values() for other in histories}

    def add(self, team: int, agent: int, clock: int, other: int, what: Array) -> None:
        """Let a warp, at `clock`, know `what` (planes, columns) of cluster `other`.

        Others of the warp's cluster know it once they are ordered after this clock. Nobody may change `what` later.
        """
        histories = self._teams.setdefault(team, {}).setdefault(other, {})
        histories.setdefault(agent, History()).add(clock, what)

    def known(self, team: int, known: Array) -> list[tuple[int, Array]]:
        """Return [(cluster, (planes, columns))]: what a warp that knows `known` (columns,) of its own cluster knows of others."""
        found: list[tuple[int, Array]] = []
        for other, histories in self._teams.get(team, {}).items():
            every: Array | None = None
            for agent, history in histories.items():
                what = history.at(int(known[agent]))
                if what is not None:
                    every = what if every is None else joined(every, what)
            if every is not None:
                found.append((other, every))
        return found

    def knows(self, team: int, known: Array, other: int, agent: int, clock: int, plane: int) -> bool:
        """Return whether such a warp has synchronised, through memory, with `clock` of an agent of cluster `other`."""
        for mine, history in self._teams.get(team, {}).get(other, {}).items():
            what = history.at(int(known[mine]))
            if what is not None and agent < what.shape[1] and int(what[plane, agent]) >= clock:
                return True
        return False
