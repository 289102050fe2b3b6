"""The shadow of tensor memory (PTX ISA 9.7.16.6): the last writer and the readers of each column of 16 lanes.

Loads, stores, products and copies are asynchronous, each in a queue of its warp. A load or store is done after tcgen05.wait.
An operation that tcgen05.commit tracks is done after the commit's mbarrier. Products and copies that one thread issues, or
that tcgen05.fence orders between threads, run in that order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..isa.semantics.tensor_core import COLUMNS
from .clocks import GENERIC
from .foreign import widened
from .shadow_access import ShadowAccess
from .shared_shadow import SharedShadow

if TYPE_CHECKING:
    from ..machine.batch import Batch
    from ..machine.group import Group
    from ..ptx.module import Instruction

Array = npt.NDArray[Any]
HALVES = 8  # parts of 16 lanes
QUEUES = ("tcgen05.ld", "tcgen05.st", "tcgen05")  # kinds of queue: loads, stores, and operations that a commit tracks
ORDER = "tcgen05 order"  # the kind of queue whose clock tells which operations of queue "tcgen05" its warp has fenced


class TensorShadow(SharedShadow):
    """The shadow of tensor memory, with one granule for each block, part of 16 lanes and column."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch, batch.blocks * HALVES * COLUMNS, 1)
        self.place: tuple[Any, ...] = "tensor", batch.first

    def name(self, a: ShadowAccess, row: int, granule: int) -> str:
        part, column = divmod(granule % (HALVES * COLUMNS), COLUMNS)
        return f"tensor memory, column {column} of lanes {16 * part} to {16 * part + 15},"


def granules(cta: Array, parts: Array, columns: Array) -> Array:
    """Return the granules (rows, n) of `parts` of 16 lanes and `columns` (rows, k) in blocks `cta` (rows,)."""
    at = (cta[:, None] * HALVES + parts)[:, :, None] * COLUMNS + columns[:, None, :]
    return at.reshape(len(cta), -1)


def issue(batch: Batch, rows: Array, kind: str) -> tuple[Array, Array]:
    """Begin one operation of each of the warps. Return their (queue, clock). A warp may be named more than once."""
    if batch.clocks is None:
        return np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    return batch.clocks.begin(rows, kind)


def access(
    c: Group, rows: Array, queues: Array, when: Array, ins: Instruction, ordered: bool, proxy: bool
) -> ShadowAccess:
    """Return the access of operations of warps.

    `ordered`: they run after earlier operations of their queues, and after operations that a fence has ordered before them.
    """
    batch, clocks = c.batch, c.batch.clocks
    team = batch.row_team[rows]
    known = clocks.known[team, batch.row_agent[rows]].copy()
    if known.shape[2] < clocks.columns:
        known = widened(known, clocks.columns)
    if ordered:
        for key, order in list(clocks.queue_of.items()):
            if key[0] == ORDER:
                queue = clocks.queue(("tcgen05", key[1]))
                known[:, GENERIC, queue] = np.maximum(known[:, GENERIC, queue], known[:, GENERIC, order])
        known[np.arange(len(rows)), GENERIC, queues] = np.maximum(when - 1, 0)
    return ShadowAccess(c.part(c.pc, rows, None), known, team, queues, when, ins, False, proxy)


def learn(c: Group, kind: str, every: bool = False) -> None:
    """Record that the warps of `c` know that the operations they have issued are done. `every`: each proxy sees them, too."""
    batch, clocks = c.batch, c.batch.clocks
    if clocks is None:
        return
    queues = clocks.queues_of(c.rows, kind)
    team, agent = batch.row_team[c.rows], batch.row_agent[c.rows]
    for plane in range(clocks.planes if every else 1):
        clocks.known[team, agent, plane, queues] = clocks.issued[team, queues]


def before_thread_sync(c: Group) -> None:
    """Execute tcgen05.fence::before_thread_sync.

    Later synchronisation of the warps orders the operations they have issued before those that other threads issue after it.
    """
    batch, clocks = c.batch, c.batch.clocks
    if clocks is None:
        return
    orders, queues = clocks.queues_of(c.rows, ORDER), clocks.queues_of(c.rows, "tcgen05")
    team, agent = batch.row_team[c.rows], batch.row_agent[c.rows]
    clocks.known[team, agent, GENERIC, orders] = clocks.issued[team, queues]
    mine = _columns(batch)
    for plane in clocks.fenced:
        if plane < clocks.planes and len(mine):
            held = clocks.known[team[:, None], agent[:, None], plane, mine]
            now = clocks.known[team[:, None], agent[:, None], GENERIC, mine]
            clocks.known[team[:, None], agent[:, None], plane, mine] = np.maximum(held, now)
    clocks.any_fence = True
    clocks.tick(c)


def after_thread_sync(c: Group, seen: dict[int, Array]) -> None:
    """Execute tcgen05.fence::after_thread_sync: the warps learn from relaxed waits, but about tensor memory alone.

    `seen`: for each warp the clocks (planes, columns) that its relaxed waits have read.
    """
    batch, clocks = c.batch, c.batch.clocks
    if clocks is None:
        return
    mine = _columns(batch)
    for row in c.rows.tolist():
        what = seen.pop(row, None)
        if what is None:
            continue
        some = mine[mine < what.shape[1]]
        team, agent = int(batch.row_team[row]), int(batch.row_agent[row])
        held = clocks.known[team, agent, GENERIC, some]
        clocks.known[team, agent, GENERIC, some] = np.maximum(held, what[GENERIC, some])


def _columns(batch: Batch) -> Array:
    """Return the clock columns of tensor memory's queues."""
    kinds = (*QUEUES, ORDER)
    return np.array([q for key, q in batch.clocks.queue_of.items() if key[0] in kinds], np.int64)
