"""Entries of shadow memory that no later access can tell apart.

Where warps access bytes in scattered order, each access leaves an entry, and granules need long numbers to tell so many apart.
Two kinds of epochs need no entry of their own:

- Those of a cluster that has ended and whose clocks no memory and no warp holds. No later access can be ordered after them, and
  none is by the same agent. All of them become epochs of one agent, whose block no report names.
- Those of a running cluster's warp that all its warps are ordered after, if no other cluster holds the clocks. The warp's first
  clock stands for them. A clock of a plane stands for a fence that was passed: a plane in which no warp knows the agent at all
  does not matter, as a fence lifts all that a warp knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ..machine.batch import Batch
    from ..machine.launch import Run

Array = npt.NDArray[Any]
_AGENT = np.int64(32)  # the lowest bit of an epoch's agent
_CLOCK = np.int64((1 << 31) - 1)
_STRONG = np.int64(1 << 31)
_NEVER = np.uint32(0xFFFFFFFF)
_AT_ONCE = 1 << 14  # entries that are looked at together


class Folding:
    """What a run's epochs become now. `end` is a cluster's number that no cluster has."""

    def __init__(self, run: Run, bits: int, end: int) -> None:
        self.bits = np.int64(bits)
        self.end = np.int64(end)
        self.warps: int = run.warps_per_block * run.cluster_size
        batches = sorted(run.resident, key=lambda batch: batch.first)
        self.begins: Array = np.array([batch.first // batch.cluster for batch in batches], np.int64)
        self.ends: Array = self.begins + np.array([batch.teams for batch in batches], np.int64)
        self.begun = run.next_block // run.cluster_size
        self.held: Array = np.array(sorted(run.sync.clusters() | _learnt(batches)), np.int64)
        known = [np.zeros(0, np.uint32), *(_known_by_all(batch) for batch in batches)]
        self.known: Array = np.concatenate(known)
        self.places: Array = np.cumsum([len(part) for part in known])[:-1]  # where the batches' clocks begin in `known`

    def of(self, epochs: Array) -> tuple[Array, Array]:
        """Return the epochs (n,) that stand for `epochs`, and for which of them others may stand, too."""
        agent = epochs >> _AGENT
        team, local = agent >> self.bits, agent & ((1 << self.bits) - 1)
        batch = np.searchsorted(self.begins, team, "right") - 1
        runs = (batch >= 0) & (team < np.append(self.ends, 0)[batch])
        open_ = (epochs != 0) & ~np.isin(team, self.held)
        ended = open_ & ~runs & ((team < self.begun) | (team == self.end))
        queue = local >= self.warps
        gone = ((self.end << self.bits) + np.where(queue, self.warps, 0) << _AGENT) + 1 | epochs & _STRONG
        warp = open_ & runs & ~queue
        at = self.places[batch[warp]] + (team[warp] - self.begins[batch[warp]]) * self.warps + local[warp]
        warp[warp] = (epochs[warp] & _CLOCK) <= self.known[at]
        first = epochs & ~_CLOCK | 1
        return np.where(ended, gone, np.where(warp, first, epochs)), ended | warp


def _known_by_all(batch: Batch) -> Array:
    """Return for each warp of a batch, (warps of a cluster * clusters,), the last clock that all running warps know of it.

    It is 0 where this may change what a later access finds: an asynchronous copy has the clocks of its issue.
    """
    clocks = batch.clocks
    known = clocks.known[..., : clocks.agents]
    if clocks.queues:
        return np.zeros(known.shape[0] * clocks.agents, np.uint32)
    runs: Array = np.zeros((batch.teams, clocks.agents), np.bool_)
    runs[batch.row_team, batch.row_agent] = batch.live.any(axis=1)
    most = np.where(runs[:, :, None, None], known, _NEVER)
    most[:, :, 1:][most[:, :, 1:] == 0] = _NEVER
    return most.min(axis=(1, 2)).reshape(-1)


def _learnt(batches: list[Batch]) -> set[int]:
    """Return the clusters whose clocks a warp of another one holds."""
    return {other for batch in batches for other in batch.clocks.foreign.clusters()}


def folded(folding: Folding, fields: dict[str, Array], epochs: tuple[str, ...], used: Array) -> Array:
    """Join those of the `used` entries that no later access can tell apart: all but the first of them are not `used` then.

    Return for each entry the one that stands for it.
    """
    stands = np.arange(len(used), dtype=np.uint32)
    first: dict[tuple[int, ...], int] = {}
    for start in range(1, len(used), _AT_ONCE):
        at = start + np.flatnonzero(used[start : start + _AT_ONCE])
        given = {name: field[at] for name, field in fields.items()}
        may: Array = np.ones(len(at), np.bool_)
        for name in epochs:
            given[name], one = folding.of(given[name])
            may &= one | (given[name] == 0)
        at, given = at[may], {name: field[may] for name, field in given.items()}
        if not len(at):
            continue
        for name in epochs:
            fields[name][at] = given[name]
        columns = [field.astype(np.int64) for field in given.values()]
        order = np.lexsort(columns)
        new: Array = np.ones(len(at), np.bool_)
        new[1:] = np.logical_or.reduce([c[order[1:]] != c[order[:-1]] for c in columns])
        heads = order[new]
        keys = zip(*(c[heads].tolist() for c in columns), strict=True)
        stand = np.array([first.setdefault(key, int(here)) for key, here in zip(keys, at[heads].tolist(), strict=True)])
        of: Array = np.empty(len(at), np.int64)
        of[order] = stand[np.cumsum(new) - 1]
        stands[at] = of
        used[at[of != at]] = False
    return stands
