"""Common parts of instructions that start asynchronous copies: operands lane by lane, targets, bulk groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...checks.kinds import HazardKind
from ...ptx.module import Imm
from ..compiler import Compiler
from ..engine import Pending
from ..group import Group
from ..memory import WINDOW_MASK
from .transfers import Issuer

Array = npt.NDArray[Any]
Reader = Callable[[Group], Array]


class Lanes:
    """Operands of the active lanes, one value for each lane."""

    def __init__(self, c: Group) -> None:
        self.c = c
        self.row: Array
        self.lane: Array
        self.row, self.lane = np.nonzero(c.active)

    def __len__(self) -> int:
        return len(self.row)

    def take(self, value: Array) -> Array:
        return np.broadcast_to(value, (self.c.n, 32))[self.row, self.lane]

    def shared(self, address: Array) -> tuple[Array, Array]:
        """Return (block, offset) of shared addresses."""
        cta, offset = self.c.batch.shared.place(self.c, address & np.uint64(WINDOW_MASK))
        return self.take(cta), self.take(offset)


def multicast(i: Issuer, mask: int) -> list[tuple[int, int]]:
    """Return the blocks of the cluster that a multicast mask names."""
    blocks, wrong = i.batch.named(i.cta, mask)
    if wrong:
        i.hazard(HazardKind.DESCRIPTOR, wrong)
    return [(block, block) for block in blocks]


def check_running(i: Issuer, cta: int) -> None:
    """Check that the peer that a copy writes to has started and has not exited."""
    if cta != i.cta and i.batch.peers is not None:
        i.batch.peers.check_started(i.group, np.zeros(1, np.int64), np.array([cta]), i.ins)


class BulkStore:
    """A copy out of shared memory in the lane's bulk group. It reads its source and writes in two separate events."""

    def __init__(self, i: Issuer) -> None:
        self.i = i
        self.reads: tuple[int, int] = i.issue(("bulk", i.agent, i.lane))
        self.writes: tuple[int, int] = i.issue(("bulkw", i.agent, i.lane))

    def put(self, read: Callable[[], None], write: Callable[[], None]) -> None:
        engine = self.i.batch.engine
        first = engine.issue(read, "read of a bulk copy's source", (self.i.ins, self.i.cta), (self.i.ins, []))

        def both() -> None:
            first.now()
            write()

        second: Pending = engine.issue(both, "bulk copy to global memory", at=(self.i.ins, [(self.i.cta, None)]))
        engine.groups.add(("bulk", self.i.warp, self.i.lane), (first, second, self.reads, self.writes))


def constant_operand(k: Compiler, operand: Any) -> int:
    if not isinstance(operand, Imm):
        raise k.error("an integer constant is wanted")
    return operand.value
