"""Tensor memory: allocation, and its loads and stores (PTX ISA 9.7.16.1, 9.7.16.7 and 9.7.16.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..checks import tensor_shadow
from ..checks.kinds import HazardKind
from ..checks.shadow_access import ShadowAccess, generic_access
from ..checks.tensor_shadow import TensorShadow, granules
from ..isa.semantics.tensor_core import COLUMNS, LANES, fragment
from ..ptx.module import Instruction
from .group import Group
from .tensor_unit import TensorUnit

if TYPE_CHECKING:
    from .batch import Batch

Array = npt.NDArray[Any]
UNIT = 32  # columns
LANE_SHIFT = 16
_FREE = "free all of it by tcgen05.dealloc before the block ends"


class TensorMemory:
    """The tensor memory of a batch's blocks: `data` (blocks, lanes, columns) words. Made at its first use."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.data: Array = np.zeros((batch.blocks, LANES, COLUMNS), np.uint32)
        self.owner: Array = np.zeros((batch.blocks, COLUMNS), np.int32)  # number of the allocation, 0: free
        self.parts: dict[tuple[int, int], tuple[int, Instruction]] = {}  # (block, column) -> columns, tcgen05.alloc
        self.promised: dict[int, list[int]] = {}  # a block's columns that its peer has allocated for it
        self.last: Array = np.full(batch.blocks, COLUMNS)
        self.relinquished: Array = np.zeros(batch.blocks, np.bool_)
        self.seen: dict[int, Array] = {}  # the clocks that relaxed waits of each warp have read
        self.shadow: TensorShadow | None = TensorShadow(batch) if batch.run.detect else None
        self.unit: TensorUnit = TensorUnit(self)

    def hazard(
        self, row: int, what: str, ins: Instruction, fix: str = "", kind: HazardKind = HazardKind.TMEM_MISUSE
    ) -> None:
        """Report a defect of warp `row` of the batch."""
        batch, reporter = self.batch, self.batch.run.reporter
        who = reporter.who(batch.coordinates[int(batch.row_cta[row])], int(batch.row_warp[row]))
        reporter.hazard(kind, what, ins, (who,), fix)

    def uniform(self, c: Group, value: Array, ins: Instruction, what: str) -> Array:
        """Return the value (rows,) that all lanes of each warp hold, and report warps whose lanes differ."""
        lanes = np.broadcast_to(value, (c.n, 32))
        first = lanes[np.arange(c.n), c.active.argmax(axis=1)]
        other: Array = ((lanes != first[:, None]) & c.active).any(axis=1)
        if other.any():
            fix = "give all lanes of the warp the same value"
            self.hazard(int(c.rows[int(other.argmax())]), f"lanes of a warp give different {what}", ins, fix)
        return first

    def brought(self, rows: Array, what: Array) -> None:
        """Keep the clocks that relaxed waits of warps have read, (rows, planes, columns), until
        tcgen05.fence::after_thread_sync.
        """
        for row, known in zip(rows.tolist(), what, strict=True):
            had = self.seen.get(row)
            fits = had is not None and had.shape == known.shape
            self.seen[row] = np.maximum(had, known) if had is not None and fits else known.copy()

    # --- allocation ----------------------------------------------------------------------------

    def allocate(self, c: Group, counts: Array, pair: bool, ins: Instruction) -> Array:
        """Allocate columns for each warp. Returns the first columns, (rows,); -1 where the warp must wait."""
        return np.array([self._allocate(int(r), int(n), pair, ins) for r, n in zip(c.rows, counts, strict=True)])

    def _allocate(self, row: int, count: int, pair: bool, ins: Instruction) -> int:
        cta = int(self.batch.row_cta[row])
        if not _is_count(count):
            self.hazard(row, f"an allocation of {count} columns", ins, "ask for a power of two from 32 to 512")
            count = min(1 << max(count - 1, UNIT - 1).bit_length(), COLUMNS)
        if self.relinquished[cta]:
            what = "an allocation after the block has given up its right to allocate"
            self.hazard(row, what, ins, "put tcgen05.relinquish_alloc_permit after the last allocation")
        if count > self.last[cta]:
            what = f"an allocation of {count} columns after one of {int(self.last[cta])}"
            self.hazard(row, what, ins, "allocate the largest number of columns first")
        if pair and self.promised.get(cta):
            return self.promised[cta].pop(0)
        blocks = [cta, cta ^ 1] if pair else [cta]
        used = (self.owner[blocks] != 0).any(axis=0)
        free = next((s for s in range(0, COLUMNS - count + 1, UNIT) if not used[s : s + count].any()), -1)
        if free < 0:
            return -1
        for block in blocks:
            self.owner[block, free : free + count] = len(self.parts) + 1
            self.parts[block, free] = count, ins
            self.last[block] = count
        if pair:
            self.promised.setdefault(cta ^ 1, []).append(free)
        self.batch.run.progress += 1
        return free

    def free(self, c: Group, address: Array, counts: Array, ins: Instruction) -> None:
        """Free the allocation of each warp, which names it by its first column."""
        for n, (row, where, count) in enumerate(zip(c.rows.tolist(), address.tolist(), counts.tolist(), strict=True)):
            cta, column = int(self.batch.row_cta[row]), where & 0xFFFF
            held = self.parts.get((cta, column))
            if held is None or held[0] != count or where >> LANE_SHIFT:
                has = f"{held[0]} columns are allocated there" if held else "nothing is allocated there"
                what = f"{count} columns are freed at tensor memory address {where:#x}, and {has}"
                self.hazard(row, what, ins, "free what was allocated, once")
                continue
            if self.shadow is not None:
                one = c.part(c.pc, c.rows[n : n + 1], None)
                cells = granules(np.array([cta]), np.arange(8), np.arange(column, column + count)[None])
                self.shadow.on_write(generic_access(one, ins, False), cells, np.zeros((1, 1), np.int64))
                self.shadow.writes.clear(cells)
            self.owner[cta, column : column + count] = 0
            del self.parts[cta, column]
        self.batch.run.progress += 1
        self.batch.wake()

    def relinquish(self, c: Group) -> None:
        self.relinquished[c.cta] = True

    def at_exit(self) -> None:
        """Report columns that blocks have left allocated."""
        for (cta, column), (count, ins) in self.parts.items():
            block = self.batch.run.reporter.block(self.batch.coordinates[cta])
            what = f"{block} ends with {count} columns of tensor memory allocated, from column {column} on"
            self.batch.run.reporter.hazard(HazardKind.TMEM_MISUSE, what, ins, (block,), _FREE)
            return

    # --- loads and stores ----------------------------------------------------------------------

    def place(self, c: Group, address: Array, shape: str, num: int, packed: bool, split: int, ins: Instruction) -> Any:
        """Check an access, and return where the registers of each warp lie: indices of `data` (rows, registers, 32, words)."""
        lanes, columns = fragment(shape, num, packed, split)
        first, start = (address >> LANE_SHIFT).astype(np.int64), (address & 0xFFFF).astype(np.int64)
        warp = c.batch.row_warp[c.rows] % 4
        step = 32 if shape == "32x32b" else 16
        wrong = (first // 32 != warp) | (first % step != 0)
        if wrong.any():
            n = int(wrong.argmax())
            low = 32 * int(warp[n])
            what = f"warp {int(warp[n])} of a warpgroup accesses tensor memory from lane {int(first[n])} on"
            self.hazard(
                int(c.rows[n]),
                what,
                ins,
                f"its lanes are {low} to {low + 31}, and .{shape} begins at a multiple of {step}",
            )
            first = np.where(wrong, 32 * warp, first)
        whole = start[:, None] + np.unique(columns)
        self.check(c.rows, c.cta, whole, ins)
        at = np.minimum(start[:, None, None, None] + columns, COLUMNS - 1)
        return (c.cta[:, None, None, None], (first[:, None, None] + lanes)[..., None], at), (
            first // 16,
            whole,
            step // 16,
        )

    def check(self, rows: Array, cta: Array, columns: Array, ins: Instruction) -> None:
        """Report columns (rows, k) that their blocks have not allocated."""
        inside = columns < COLUMNS
        held = inside & (self.owner[cta[:, None], np.where(inside, columns, 0)] != 0)
        if held.all():
            return
        n, k = (int(i[0]) for i in np.nonzero(~held))
        what = f"column {int(columns[n, k])} of tensor memory is accessed, which the block has not allocated"
        self.hazard(int(rows[n]), what, ins)

    def note(self, c: Group, where: Any, write: bool, ins: Instruction) -> None:
        """Record a load or store of warps in shadow memory."""
        if self.shadow is None:
            return
        part, columns, count = where
        queues, when = tensor_shadow.issue(c.batch, c.rows, "tcgen05.st" if write else "tcgen05.ld")
        a = tensor_shadow.access(c, c.rows, queues, when, ins, False, False)
        g = granules(c.cta, part[:, None] + np.arange(count), np.minimum(columns, COLUMNS - 1))
        self.noted(a, g, write)

    def noted(self, a: ShadowAccess, g: Array, write: bool) -> None:
        assert self.shadow is not None
        rows = np.arange(len(g))[:, None]
        if write:
            self.shadow.on_write(a, g, rows)
        else:
            self.shadow.on_read(a, g, rows)


def _is_count(count: int) -> bool:
    return UNIT <= count <= COLUMNS and not count & (count - 1)
