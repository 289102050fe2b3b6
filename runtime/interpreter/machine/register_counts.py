"""Register counts of warps that change them by setmaxnreg (PTX ISA 9.7.19.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..checks.kinds import HazardKind
from ..ptx.module import Instruction
from .group import Group

if TYPE_CHECKING:
    from .batch import Batch
    from .launch import Run

Array = npt.NDArray[Any]


class RegisterCounts:
    """The registers a lane of each warp of a run's blocks."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.held: dict[tuple[int, int], dict[int, int]] = {}  # by block (batch's first, number): by warp
        self.times: dict[tuple[int, int], dict[int, int]] = {}  # the same: how often each warp has set its count
        self.last: Instruction | None = None

    def set(self, c: Group, count: int, grows: bool, ins: Instruction) -> Array:
        """Execute setmaxnreg.

        If all warps of a block have set a count, the sum must fit the block's registers. Returns the warps that must
        wait: those that ask for more than the free registers.
        """
        run, batch = self.run, c.batch
        short = np.zeros(c.n, np.bool_)
        given = run.program.entry.directives.get("maxnreg")
        first = {} if given is None else dict.fromkeys(range(run.warps_per_block), -(-given[0] // 8) * 8)
        limit = self._most()
        for row, warp in enumerate(c.rows.tolist()):
            cta, number = int(batch.row_cta[warp]), int(batch.row_warp[warp])
            held = self.held.setdefault((batch.first, cta), dict(first))
            before = held.get(number, 0)
            held[number] = count
            total = sum(held.values()) * 32
            if len(held) < run.warps_per_block or total <= limit or not run.detect:
                continue
            if grows and count > before > 0:
                held[number], short[row] = before, True
            else:
                what = f"the warps of a block ask for {total} registers by setmaxnreg; the block has {limit}"
                who = run.reporter.who(batch.coordinates[cta], number)
                run.reporter.hazard(HazardKind.REGISTER_CAPACITY, what, ins, (who,))
        return short

    def note(self, c: Group, ins: Instruction) -> None:
        """Record that warps have executed setmaxnreg to its end."""
        self.last, batch = ins, c.batch
        for warp in c.rows.tolist():
            times = self.times.setdefault((batch.first, int(batch.row_cta[warp])), {})
            number = int(batch.row_warp[warp])
            times[number] = times.get(number, 0) + 1

    def at_exit(self, batch: Batch) -> None:
        """Report warpgroups of the batch, after its blocks have exited, of which only some warps have executed setmaxnreg."""
        run = self.run
        for cta in range(batch.blocks):
            times = self.times.pop((batch.first, cta), {})
            for first in range(0, run.warps_per_block if times else 0, 4):
                warps = range(first, min(first + 4, run.warps_per_block))
                counts = [times.get(warp, 0) for warp in warps]
                if min(counts) == max(counts):
                    continue
                late = warps[counts.index(min(counts))]
                what = f"a warp has executed setmaxnreg {min(counts)} times, and another one of its warpgroup {max(counts)} times"
                who = run.reporter.who(batch.coordinates[cta], late)
                fix = "let all warps of the warpgroup execute it"
                run.reporter.hazard(HazardKind.REGISTER_CAPACITY, what, self.last, (who,), fix)

    def _most(self) -> int:
        """Return the most registers that a block can have: all lanes get the same multiple of 8."""
        run = self.run
        given = run.program.entry.directives
        threads = 32 * run.warps_per_block
        blocks = max(given.get("minnctapersm", (1,))[0], 1)
        lane = min(run.target.limits.registers_per_multiprocessor // (threads * blocks) // 8 * 8, 256)
        if "maxnreg" in given:
            lane = min(lane, -(-given["maxnreg"][0] // 8) * 8)
        return lane * threads
