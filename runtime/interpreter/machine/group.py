"""A group: warps at the same instruction, which run it as one vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .batch import Batch
    from .calls import Stack
    from .frame import Frame

Array = npt.NDArray[Any]


class Group:
    """Warps that execute an instruction together.

    `rows`: sorted warp numbers in the batch. `mask`: (len(rows), 32) active lanes, or None for all.
    `v[i]` reads slot i of the frame for these rows: an array (rows, 32), or (rows, 1), (1, 32) or (1, 1) that
    broadcasts. Slices of the register file are views; other selections are copies, so all writes go through `put`.
    """

    __slots__ = (
        "_active", "_cta", "_select", "_v", "batch", "frame", "mask", "pc", "rows", "stack", "why",
    )  # fmt: skip

    def __init__(self, batch: Batch, frame: Frame, stack: Stack, pc: int, rows: Array, mask: Array | None) -> None:
        self.batch: Batch = batch
        self.frame: Frame = frame
        self.stack: Stack = stack
        self.pc: int = pc
        self.rows: Array = rows
        self.mask: Array | None = mask
        self.why: Any = None
        self._v: dict[int, Array] | None = None
        self._select: Any = None
        self._cta: Array | None = None
        self._active: Array | None = None

    # --- identity ------------------------------------------------------------------------------

    @property
    def key(self) -> tuple[Stack, str, int]:
        return (self.stack, self.frame.code.name, self.pc)

    @property
    def n(self) -> int:
        return len(self.rows)

    @property
    def select(self) -> Any:
        """Return the rows as a slice if they are evenly spaced, otherwise as an array."""
        if self._select is None:
            self._select = as_slice(self.rows)
        return self._select

    @property
    def v(self) -> dict[int, Array]:
        if self._v is None:
            self._v = self.frame.views(self.select)
        return self._v

    @property
    def cta(self) -> Array:
        """Return the batch-local block number of each row."""
        if self._cta is None:
            self._cta = self.batch.row_cta[self.rows]
        return self._cta

    @property
    def active(self) -> Array:
        """Return the mask as an array, all True if `mask` is None."""
        if self.mask is not None:
            return self.mask
        if self._active is None:
            self._active = np.ones((len(self.rows), 32), np.bool_)
        return self._active

    # --- registers -----------------------------------------------------------------------------

    def put(self, slot: int, value: Array) -> None:
        """Write active lanes of a register; `value` broadcasts to (rows, 32)."""
        select = self.select
        mask = self.mask
        if mask is not None and value.ndim == 3:
            mask = mask[..., None]
        if type(select) is slice:
            if mask is None:
                self.v[slot][...] = value
            else:
                np.copyto(self.v[slot], value, where=mask)
            return
        base = self.frame.base(slot)
        if mask is None:
            base[select] = value
        else:
            held = base[select]
            np.copyto(held, value, where=mask)
            base[select] = held

    # --- splitting -----------------------------------------------------------------------------

    def at(self, pc: int) -> Group:
        """Return the same lanes at another segment."""
        return self.part(pc, self.rows, self.mask)

    def part(self, pc: int, rows: Array, mask: Array | None) -> Group:
        return Group(self.batch, self.frame, self.stack, pc, rows, mask)

    def subset(self, pc: int, chosen: Array) -> Group:
        """Return the rows where `chosen` (rows,) is True, with their masks."""
        mask = None if self.mask is None else self.mask[chosen]
        return self.part(pc, self.rows[chosen], mask)

    def lanes(self, pc: int, lanes: Array) -> Group:
        """Return the lanes where `lanes` (rows, 32) is True, without empty rows."""
        some = lanes.any(axis=1)
        kept = lanes if some.all() else lanes[some]
        rows = self.rows if kept is lanes else self.rows[some]
        return self.part(pc, rows, None if kept.all() else kept)


def as_slice(rows: Array) -> Any:
    n = len(rows)
    first = int(rows[0])
    if n == 1:
        return slice(first, first + 1)
    step = int(rows[1]) - first
    if int(rows[-1]) - first == step * (n - 1) and (n == 2 or bool((np.diff(rows) == step).all())):
        return slice(first, int(rows[-1]) + 1, step)
    return rows


def merge(a: Group, b: Group) -> Group:
    """Merge two groups at the same place."""
    rows = np.union1d(a.rows, b.rows)
    if a.mask is None and b.mask is None:
        return a.part(a.pc, rows, None)
    mask = np.zeros((len(rows), 32), np.bool_)
    for g in (a, b):
        mask[np.searchsorted(rows, g.rows)] |= True if g.mask is None else g.mask
    return a.part(a.pc, rows, None if mask.all() else mask)
