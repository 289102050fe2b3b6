"""Shared memory as an array: a block's own, and in a cluster that of its peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks.kinds import HazardKind
from ..ptx.module import Instruction
from .memory import RANK_SHIFT, SHARED_RESERVED
from .spaces import Array, Part, bad_lanes, masked_off, misaligned

if TYPE_CHECKING:
    from .batch import Batch
    from .group import Group


class SharedSpace:
    """Shared memory of a batch's blocks: `data` is (blocks * stride,) bytes, block after block."""

    def __init__(self, batch: Batch, size: int) -> None:
        self.batch = batch
        self.limit = size
        # the system's bytes before the block's own; they are zero, and code that takes their address may use them
        self.reserved = SHARED_RESERVED if batch.run.program.uses_reserved else 0
        self.first = SHARED_RESERVED - self.reserved
        self.stride: int = -(-size // 128) * 128
        self.data: Array = np.zeros(batch.blocks * self.stride, np.uint8)
        self.views: dict[int, Array] = {}
        self.shadow: Any = None

    def view(self, size: int) -> Array:
        found = self.views.get(size)
        if found is None:
            found = self.views[size] = self.data.view(f"u{size}")
        return found

    def block_view(self) -> Array:
        """Return the bytes as (blocks, stride)."""
        return self.data.reshape(self.batch.blocks, self.stride)

    def place(self, c: Group, address: Array) -> tuple[Array, Array]:
        """Return (block, offset) of shared addresses, of this block or of a peer. An unknown rank gives this block."""
        offset = address.astype(np.int64) & 0xFFFFFFFF
        cta, cluster = c.cta[:, None], self.batch.cluster
        if cluster == 1:
            return cta, offset
        rank = offset >> RANK_SHIFT
        offset = np.where(rank < cluster, offset & ((1 << RANK_SHIFT) - 1), offset)
        return cta - cta % cluster + np.minimum(rank, cluster - 1), offset

    def locate(self, c: Group, address: Array, size: int, width: int, ins: Instruction, write: bool) -> list[Part]:
        cta, offset = self.place(c, address)
        part = self.at(c, cta, offset, size, width, ins)
        if self.batch.peers is not None:
            other: Array = np.broadcast_to(cta != c.cta[:, None], (c.n, 32)) & (
                c.active if part.mask is None else part.mask
            )
            if other.any():
                row, lane = np.nonzero(other)
                self.batch.peers.accessed(c, row, np.broadcast_to(cta, (c.n, 32))[row, lane], ins)
        return [part]

    def at(self, c: Group, cta: Array, offset: Array, size: int, width: int, ins: Instruction) -> Part:
        """Check and return the part at offsets in blocks."""
        mask = c.mask
        low = offset - self.first
        last = self.limit - self.first - width
        wrong = low.view(np.uint64) > np.uint64(last) if last >= 0 else np.ones(low.shape, np.bool_)
        bad = bad_lanes(c, wrong, mask)
        if bad is not None:
            self._outside(c, bad, offset, width, ins)
            mask = masked_off(mask, bad)
        bad = bad_lanes(c, (offset & (width - 1)) != 0, mask)
        if bad is not None:
            misaligned(c, bad, offset, width, ins, "shared memory")
            mask = masked_off(mask, bad)
        spans = self.batch.run.smem_spans.get(ins.line)
        if spans is not None:
            bad = bad_lanes(c, self._elsewhere(c, offset, width, spans), mask)
            if bad is not None:
                self._left(c, bad, offset, width, spans, ins)
                mask = masked_off(mask, bad)
        index = cta * self.stride + offset
        if index.shape != (c.n, 32):
            index = np.broadcast_to(index, (c.n, 32))
        if mask is not None:
            index = np.where(mask, index, 0)
        return Part(self.view(size), index // size if size > 1 else index, mask, self.shadow)

    def _elsewhere(self, c: Group, offset: Array, width: int, spans: Sequence[tuple[int, int]]) -> Array:
        """Report accesses outside all spans of the dynamic shared memory."""
        at = offset - self.batch.run.program.dynamic_offset
        inside = np.zeros(at.shape, np.bool_)
        for low, high in spans:
            inside |= (at >= low) & (at <= high - width)
        return ~inside

    def _left(
        self, c: Group, bad: Array, offset: Array, width: int, spans: Sequence[tuple[int, int]], ins: Instruction
    ) -> None:  # fmt: skip
        run = self.batch.run
        row, lane, who = run.reporter.group(c, bad)
        at = int(np.broadcast_to(offset, (c.n, 32))[row, lane])
        name = run.reporter.shared_name(at, run.program.dynamic_offset, run.program.shared_offsets)
        own = [r for r in run.reporter.names.smem if (r.offset, r.offset + r.bytes) in spans and r.kind == "ref"]
        names = " and ".join(f"'{r.name}' of shape {r.shape}" for r in own) or "a buffer"
        what = f"an access of {width} bytes leaves {names}: it lies at {name}"
        run.reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,), "correct the index")

    def _outside(self, c: Group, bad: Array, offset: Array, width: int, ins: Instruction) -> None:
        reporter = self.batch.run.reporter
        row, lane, who = reporter.group(c, bad)
        at = int(np.broadcast_to(offset, (c.n, 32))[row, lane])
        if report_peer(c, row, at, who, ins):
            return
        what = (
            f"shared memory access of {width} bytes at address {at}, outside of the block's "
            f"{self.limit - SHARED_RESERVED} bytes at {SHARED_RESERVED}"
        )
        reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,))


class OwnShared:
    """The .shared::cta window of blocks in clusters; it does not contain peers' memory (PTX ISA 5.1.7)."""

    def __init__(self, shared: SharedSpace) -> None:
        self.shared = shared

    @staticmethod
    def offset(c: Group, address: Array) -> Array:
        """Return shared addresses relative to the block's own first one. Addresses of a peer differ in bits
        24 and up.
        """
        start = c.batch.row_rank[c.rows].astype(np.int64) << RANK_SHIFT
        return (address.astype(np.int64) & 0xFFFFFFFF) - start[:, None]

    def locate(self, c: Group, address: Array, size: int, width: int, ins: Instruction, write: bool) -> list[Part]:
        return [self.shared.at(c, c.cta[:, None], self.offset(c, address), size, width, ins)]


def own_only(address: Callable[[Group], Array], ins: Instruction) -> Callable[[Group], Array]:
    """Return a function that gives the addresses of a .shared::cta operand, and reports addresses of peers."""

    def read(c: Group) -> Array:
        found = address(c)
        if c.batch.cluster > 1:
            offset = np.broadcast_to(OwnShared.offset(c, found), (c.n, 32))
            bad = bad_lanes(c, offset >> RANK_SHIFT != 0, c.mask)
            if bad is not None:
                row, lane, who = c.batch.run.reporter.group(c, bad)
                report_peer(c, row, int(offset[row, lane]), who, ins)
        return found

    return read


def report_peer(c: Group, row: int, offset: int, who: str, ins: Instruction) -> bool:
    """Report an offset, from the block's own first address, that belongs to a peer. Returns False if no peer has it."""
    rank = int(c.batch.row_rank[c.rows[row]])
    peer = rank + (offset >> RANK_SHIFT)
    if peer == rank or not 0 <= peer < c.batch.cluster:
        return False
    what = (
        f"the shared address {offset + (rank << RANK_SHIFT):#x} is of rank {peer} of the cluster, and the block has "
        f"rank {rank}: .shared and .shared::cta reach the block's own memory alone"
    )
    fix = "access a peer's memory as .shared::cluster, and map addresses by mapa"
    c.batch.run.reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,), fix)
    return True
