"""Effects of asynchronous copies on memory, shadow memory and barriers; `copies.py` has the instructions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernel_dsl.compiled import Swizzle
from kernel_dsl.tma import COPY_RULES, BoxCopy, CopyRule

from ...checks.kinds import HazardKind
from ...checks.lane_copies import LaneSource
from ...checks.shadow import row_of
from ...checks.shadow_access import ShadowAccess
from ...ptx.module import Instruction
from ..memory import SHARED_RESERVED
from ..tensor_map import swizzled

if TYPE_CHECKING:
    from ..batch import Batch
    from ..group import Group
    from ..launch import Run

Array = npt.NDArray[Any]


class Issuer:
    """One lane that issues an asynchronous operation: its warp, block, cluster, and the clocks that its warp knows."""

    def __init__(self, c: Group, row: int, lane: int, ins: Instruction) -> None:
        self.batch: Batch = c.batch
        self.run: Run = c.batch.run
        self.ins = ins
        self.lane = lane
        self.warp: int = int(c.rows[row])
        self.cta: int = int(self.batch.row_cta[self.warp])
        self.team: int = int(self.batch.row_team[self.warp])
        self.agent: int = int(self.batch.row_agent[self.warp])
        self.group: Group = c.part(c.pc, c.rows[row : row + 1], None)

    @property
    def clocks(self) -> Any:
        return self.batch.clocks

    def issue(self, key: tuple[Any, ...]) -> tuple[int, int]:
        """Begin a new operation of a queue. Returns (queue, clock), or (0, 0) if nothing is tracked."""
        if self.clocks is None:
            return 0, 0
        queue = self.clocks.queue(key)
        self.clocks.issued[self.team, queue] += 1
        self.clocks.last[queue] = self.ins
        clock = int(self.clocks.issued[self.team, queue])
        if self.run.order is not None:
            self.run.order.issued(self.batch, self.team, self.agent, queue, clock)
        return queue, clock

    def access(self, queue: int, clock: int) -> ShadowAccess:
        """Return the operation's access: through the async proxy, and ordered after what its issuer knows."""
        self.clocks.performed(self.group.rows)
        known = self.clocks.known[self.team, self.agent][None]
        key = self.clocks.queues[queue - self.clocks.agents]
        if key[0] == "bulkw":
            # If the source of a lane's store has been read (wait_group.read), the store is assumed to write before a
            # later one: the ISA does not promise it, but GPUs do it and compilers rely on it.
            known = known.copy()
            reads = self.clocks.queue(("bulk", *key[1:]))
            known[0, 0, queue] = max(known[0, 0, queue], known[0, 0, reads])
        one = np.array([clock], np.int64)
        return ShadowAccess(self.group, known, np.array([self.team]), np.array([queue]), one, self.ins, False, True)

    def hazard(self, kind: HazardKind, what: str, fix: str = "") -> None:
        b = self.batch
        who = self.run.reporter.who(b.coordinates[self.cta], int(b.row_warp[self.warp]), self.lane)
        self.run.reporter.hazard(kind, what, self.ins, (who,), fix)


# --- stretches of shared memory -----------------------------------------------------------------------


def shared_span(i: Issuer, offset: int, size: int, align: int, what: str) -> bool:
    """Check a stretch of shared memory that a copy reads or writes."""
    limit = i.batch.shared.limit
    if offset < SHARED_RESERVED or offset + size > limit:
        i.hazard(
            HazardKind.OUT_OF_BOUNDS,
            f"{what} of {size} bytes at shared address {offset}, outside of the block's "
            f"{limit - SHARED_RESERVED} bytes at {SHARED_RESERVED}",
        )
        return False
    if offset % align:
        name = i.run.reporter.shared_name(offset, i.run.program.dynamic_offset, i.run.program.shared_offsets)
        i.hazard(
            HazardKind.MISALIGNED,
            f"{what} at shared address {offset} ({name}), which is not a multiple of {align}",
        )
        return False
    return True


def shared_granules(batch: Batch, cta: int, offset: int, size: int) -> slice:
    """Return the granules of a stretch of a block's shared memory."""
    shadow = batch.shared.shadow
    shadow.fit(16)
    start = (cta * batch.shared.stride + offset) // shadow.granule
    return slice(start, start + -(-size // shadow.granule))


ROW = np.zeros((1, 1), np.int64)


def note_shared(
    i: Issuer, cta: int, offset: int, size: int, queue: int, clock: int, write: bool,
    put: Callable[[], None] | None = None, generic: bool = False, atomic: bool = False,
) -> None:  # fmt: skip
    """Record that an operation reads or writes a stretch of shared memory, through the async proxy or not.

    `atomic`: it changes the values atomically, and two such operations do not race. `put()` writes the operation's
    result now; its changes are undone.
    """
    batch, shadow = i.batch, i.batch.shared.shadow
    if shadow is None:
        return
    span = shared_granules(batch, cta, offset, size)
    access = i.access(queue, clock)
    access.proxy, access.strong = not generic, atomic
    if not write:
        shadow.on_read(access, row_of(span), ROW)
        if i.clocks.queues[queue - i.clocks.agents][0] == "bulk":
            source = LaneSource(i.lane, queue, clock, cta * batch.shared.stride + offset, size, i.ins)
            i.clocks.lane_copies.issue_source(i.warp, source)
        return
    if atomic:
        shadow.check_initialised(access, row_of(span), ROW)
    at = cta * batch.shared.stride + offset

    def same() -> Array:
        low = cta * batch.shared.stride + (offset & ~1023)  # swizzles stay within 1024 bytes
        region = batch.shared.data[low : at + size + 1024]
        held = region.copy()
        assert put is not None
        put()
        equal = region == held
        region[...] = held
        unit = shadow.granule
        return equal[at // unit * unit - low :][: (span.stop - span.start) * unit].reshape(1, -1, unit).all(axis=2)

    if put is not None:
        access.same = same
    shadow.write_span(access, span)


@lru_cache(1 << 14)
def copy_broken(itemsize: int, coords: tuple[int, ...], store: bool) -> tuple[CopyRule, str] | None:
    """Return the rule of TMA that a copy breaks, and how; None if it breaks none."""
    copy = BoxCopy(itemsize, coords, store=store)  # `shared_span` checks the SMEM side, whose name it knows
    return next(((rule, wrong) for rule in COPY_RULES if (wrong := rule.broken(copy)) is not None), None)


@cache
def tile_chunks(start: int, size: int, swizzle: Swizzle) -> Array:
    """Return the numbers of a tile's 16-byte chunks, in order, relative to the start's multiple of 1024."""
    at = np.arange(start, start + size, 16)
    return swizzled(at, swizzle) // 16


def put_tile(batch: Batch, cta: int, offset: int, data: Array, swizzle: Swizzle) -> None:
    """Write a tile's bytes (contiguous, row-major) to shared memory through a swizzle."""
    at = cta * batch.shared.stride + offset
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    if swizzle is Swizzle.NONE:
        batch.shared.data[at : at + len(raw)] = raw
        return
    chunks = batch.shared.data.view(np.complex128)  # 16 bytes at once
    base = cta * batch.shared.stride + (offset & ~1023)
    chunks[base // 16 + tile_chunks(offset & 1023, len(raw), swizzle)] = raw.view(np.complex128)


def get_tile(batch: Batch, cta: int, offset: int, m: Any) -> Array:
    """Return a tile's elements from shared memory, outermost first, as unsigned words."""
    size = m.bytes
    base = cta * batch.shared.stride + (offset & ~1023)
    chunks = batch.shared.data.view(np.complex128)
    raw = chunks[base // 16 + tile_chunks(offset & 1023, size, m.swizzle)]
    return raw.reshape(-1).view(f"u{m.dtype.itemsize}").reshape(m.tile[::-1])


# --- global memory -----------------------------------------------------------------------------------


def note_global(
    i: Issuer, shadow: Any, g: Array, queue: int, clock: int, write: bool, same: Callable[[], Array] | None = None
) -> None:
    """Record granules (1, k) that an operation reads or writes in a buffer's shadow.

    `same()` returns the granules, (1, k), that a write does not change. A write without `same` is a reduction: relaxed
    atomics on each element (PTX ISA 9.7.9.27.3).
    """
    access = i.access(queue, clock)
    access.strong, access.same = write and same is None, same
    if write:
        shadow.on_write(access, g, ROW)
    else:
        shadow.on_read(access, g, ROW)


# --- completion ---------------------------------------------------------------------------------------


def complete(batch: Batch, cta: int, offset: int, size: int, queue: int, clock: int, ins: Instruction) -> None:
    """Execute complete_tx of a copy on the barrier at (block, offset)."""
    m = batch.mbarriers.get(offset)
    if batch.run.recorder is not None:
        batch.run.recorder.completed(batch, offset)
    if batch.run.order is not None:
        batch.run.order.completed(batch, cta, offset, int(m.phase[cta]), queue, clock)
    if m.clock is not None:
        m.clock.fit()
        held = m.clock.gathering[cta, :, queue]
        m.clock.gathering[cta, :, queue] = np.maximum(held, clock)
    batch.mbarriers.deliver(offset, cta, size, ins)


def complete_all(
    batch: Batch, ctas: Array, offset: int, size: int, queues: Array, clocks: Array, ins: Instruction
) -> None:
    """Execute complete_tx of copies of `size` bytes each on the barriers at `offset` of blocks, one after the other.

    The blocks (n,) may be named more than once; each has one queue.
    """
    m = batch.mbarriers.get(offset)
    left = m.bytes - size * np.bincount(ctas, minlength=batch.blocks)
    if not m.valid[ctas].all() or (left[ctas][m.pending[ctas] == 0] < 0).any():
        for cta, queue, clock in zip(ctas.tolist(), queues.tolist(), clocks.tolist(), strict=True):
            complete(batch, cta, offset, size, queue, clock, ins)
        return
    if m.clock is not None:
        m.clock.fit()
        for queue in np.unique(queues).tolist():
            here = queues == queue
            latest = np.zeros(batch.blocks, np.uint32)
            np.maximum.at(latest, ctas[here], clocks[here].astype(np.uint32))
            some = np.flatnonzero(latest)
            m.clock.gathering[some, :, queue] = np.maximum(m.clock.gathering[some, :, queue], latest[some, None])
    m.ever[ctas] = True
    m.last = m.last or ins
    m.bytes = left
    if ((left[ctas] <= 0) & (m.pending[ctas] == 0)).any():
        batch.mbarriers.settle(offset, m, ins)
