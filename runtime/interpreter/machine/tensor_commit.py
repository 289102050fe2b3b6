"""tcgen05.commit: an arrival at mbarriers when the operations of a thread are done (PTX ISA 9.7.16.12.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..checks import tensor_shadow
from ..checks.kinds import HazardKind
from ..ptx.module import Instruction

if TYPE_CHECKING:
    from .tensor_memory import TensorMemory

Array = npt.NDArray[Any]


def arrive(
    memory: TensorMemory, rows: Array, offset: int, targets: list[Array], ins: Instruction
) -> None:  # fmt: skip
    """Issue the arrival of warps `rows`, one for each entry, at the barriers at `offset` of blocks `targets`."""
    batch = memory.batch
    queues, when = tensor_shadow.issue(batch, rows, "tcgen05")
    known = _ordered_before(memory, rows)
    order = batch.run.order
    if order is not None and batch.clocks is not None:
        for row, queue, clock in zip(rows.tolist(), queues.tolist(), when.tolist(), strict=True):
            order.issued(batch, int(batch.row_team[row]), int(batch.row_agent[row]), queue, clock)

    def perform() -> None:
        memory.unit.settle(rows)
        m = batch.mbarriers.get(offset)
        for n, (blocks, queue, clock) in enumerate(zip(targets, queues.tolist(), when.tolist(), strict=True)):
            for block in blocks.tolist():
                if batch.run.order is not None:
                    batch.run.order.completed(batch, block, offset, int(m.phase[block]), queue, clock)
                if m.clock is not None:
                    m.clock.fit()
                    held = m.clock.gathering[block]
                    wide = known.shape[2]
                    held[:, :wide] = np.maximum(held[:, :wide], known[n])
                    held[:, queue] = np.maximum(held[:, queue], clock)
        ctas = np.concatenate(targets)
        batch.mbarriers.arrive(offset, ctas, np.ones(len(ctas), np.int64), None, False, ins)

    batch.engine.issue(perform, "tcgen05.commit")


def _ordered_before(memory: TensorMemory, rows: Array) -> Array:
    """Return the clocks that are ordered before the products of warps, (rows, planes, columns).

    They are the clocks that the warps know, without their own accesses.
    """
    batch, clocks = memory.batch, memory.batch.clocks
    if clocks is None:
        return np.zeros((len(rows), 0, 0), np.uint32)
    team, agent = batch.row_team[rows], batch.row_agent[rows]
    known = clocks.known[team, agent].copy()
    known[np.arange(len(rows)), :, agent] = 0
    return known


def named(memory: TensorMemory, rows: Array, own: Array, masks: Array | None, ins: Instruction) -> list[Array]:
    """Return the blocks whose barriers each warp arrives at: those that `own` names, or those of a multicast's mask."""
    if masks is None:
        return [own[n : n + 1] for n in range(len(own))]
    found: list[Array] = []
    for n, mask in enumerate(masks.astype(np.int64).tolist()):
        blocks, wrong = memory.batch.named(int(own[n]), mask)
        if wrong:
            memory.hazard(int(rows[n]), wrong, ins, "", HazardKind.DESCRIPTOR)
        found.append(np.array(blocks, np.int64))
    return found
