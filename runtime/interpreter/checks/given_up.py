"""Tests of mbarriers that fail although their phase completes later (PTX ISA 9.7.13.15.16, mbarrier.test_wait and .try_wait).

A test_wait does not wait, and a try_wait gives up after a time limit of the system. Either is true for certain only if the
completion of the phase is ordered before it. So a program may rely on the phase only where a true result led it. A test that is
not just tried again fails once for each phase: always under the schedule "late", half of the time under "random", never under
"eager".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .clocks import GENERIC

if TYPE_CHECKING:
    from ..machine.group import Group
    from ..ptx.module import Instruction

Array = npt.NDArray[Any]


class GivenUp:
    """The tests of a batch's warps that have failed once."""

    def __init__(self) -> None:
        # by instruction and mbarrier: phases, (warps,), from which on tests may fail
        self._until: dict[tuple[int, int], Array] = {}

    def fails(self, c: Group, ins: Instruction, offset: int, row: Array, cta: Array, done: Array) -> Array:
        """Return which tests fail now: those of `row` (rows of `c`), of the barrier at `offset` of blocks `cta`.

        `done`: whether the phase is complete. The three arrays have an entry for each test, (tests,).
        """
        batch = c.batch
        run, m = batch.run, batch.mbarriers.get(offset)
        if batch.clocks is None or run.order is not None or run.config.schedule == "eager":
            return np.zeros(len(row), np.bool_)
        warps = c.rows[row]
        until = self._until.get((id(ins), offset))
        fails = m.valid[cta] if until is None else m.valid[cta] & (m.phase[cta] - done >= until[warps])
        if not fails.any() or (run.rng is not None and run.rng.random() < 0.5):
            return np.zeros(len(row), np.bool_)
        return fails & ~(done & self._surely(c, m, warps, cta))

    def failed(self, c: Group, ins: Instruction, offset: int, row: Array, done: Array) -> None:
        """Record that tests of `row` have failed, so that they fail no more in this phase. `done`: it was complete, (tests,)."""
        batch = c.batch
        until = self._until.setdefault((id(ins), offset), np.zeros(batch.warps, np.int64))
        warps = c.rows[row]
        until[warps] = batch.mbarriers.get(offset).phase[batch.row_cta[warps]] - done + 1

    def _surely(self, c: Group, m: Any, warps: Array, cta: Array) -> Array:
        """Return for which warps the last phase's completion is ordered before what they do now."""
        batch = c.batch
        known = batch.clocks.known[batch.row_team[warps], batch.row_agent[warps], GENERIC]
        sure = np.ones(len(warps), np.bool_)
        for store in (m.clock, m.peers):
            if store is not None:
                store.fit()
                sure &= (known >= store.published[cta, GENERIC]).all(axis=1)
        return sure
