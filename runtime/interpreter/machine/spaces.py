"""State spaces as arrays; `shared_space.py` has shared memory. They turn lane addresses into element indices, and check
bounds and alignment.

Each space offers `locate(c, address, size, ins, write)`, which gives [(view, index, mask, shadow)]: one part a buffer,
`view` is the memory as words of `size` bytes, `index` (rows, 32) is 0 where `mask` is False, and `shadow` is the shadow
memory that records the access. Lanes that may not access are reported and masked off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..checks.kinds import HazardKind
from ..checks.poison import LOADS, fresh
from ..ptx.module import Instruction
from .memory import LOCAL_WINDOW, SLOT_BITS, WINDOW_BITS, WINDOW_MASK, Buffer

if TYPE_CHECKING:
    from .batch import Batch
    from .group import Group

Array = npt.NDArray[Any]


@dataclass(slots=True)
class Part:
    """The memory that some lanes access; the module's docstring explains the fields."""

    view: Array
    index: Array
    mask: Array | None
    shadow: Any


def masked_off(mask: Array | None, bad: Array) -> Array:
    return ~bad if mask is None else mask & ~bad


def bad_lanes(c: Group, bad: Array, mask: Array | None) -> Array | None:
    """Return the lanes in `mask` that `bad` has, (rows, 32); None without any. Axes of `bad` may have one element for all."""
    if not bad.any():  # nearly always
        return None
    bad = np.broadcast_to(bad, (c.n, 32))
    if mask is None:
        return bad
    bad = bad & mask
    return bad if bad.any() else None


class LocalSpace:
    """Local memory: (warps, 32, bytes), with the same bytes for every lane; a new frame reserves its part."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.size: int = 16
        self.used: int = 16
        self.data: Array = np.zeros((0,), np.uint8)
        self.written: Array = np.zeros((0,), np.bool_)

    def reserve(self, size: int, align: int) -> int:
        start = -(-self.used // align) * align
        self.used = start + size
        return start

    def ready(self) -> None:
        """Make memory of what is reserved."""
        if self.data.ndim == 1 or self.size < self.used:
            self._grow()

    def _grow(self) -> None:
        size = -(-self.used // 16) * 16
        if self.data.ndim == 3:
            size = max(size, 2 * self.size)  # doubling suits calls that nest ever deeper
        data = np.zeros((self.batch.warps, 32, size), np.uint8)
        written = np.zeros((self.batch.warps, 32, size), np.bool_)
        if self.data.ndim == 3:
            data[..., : self.size] = self.data
            written[..., : self.size] = self.written
        self.data = data
        self.written = written
        self.size = size

    def locate(self, c: Group, address: Array, size: int, width: int, ins: Instruction, write: bool) -> list[Part]:
        self.ready()
        run = self.batch.run
        offset = np.broadcast_to(address.astype(np.int64) & 0xFFFFFFFF, (c.n, 32))
        mask = c.mask
        bad = bad_lanes(c, (offset < 16) | (offset > self.used - width), mask)
        if bad is not None:
            row, lane, who = run.reporter.group(c, bad)
            what = f"local memory access of {width} bytes at offset {int(offset[row, lane]) - 16} of {self.used - 16}"
            run.reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,))
            mask = masked_off(mask, bad)
        bad = bad_lanes(c, (offset & (width - 1)) != 0, mask)
        if bad is not None:
            misaligned(c, bad, offset, width, ins, "local memory")
            mask = masked_off(mask, bad)
        lane_base = (c.rows[:, None] * 32 + np.arange(32)) * self.size
        flat = lane_base + offset
        if mask is not None:
            flat = np.where(mask, flat, lane_base)
        if run.detect:
            self._track(c, flat, width, mask, ins, write)
        return [Part(self.data.reshape(-1).view(f"u{size}"), flat // size, mask, None)]

    def _track(self, c: Group, flat: Array, width: int, mask: Array | None, ins: Instruction, write: bool) -> None:
        words = self.written.reshape(-1).view(f"u{width}" if width <= 8 else "u8").reshape(-1)
        at = flat // min(width, 8)
        full = np.uint64(0x0101010101010101).astype(words.dtype)
        more = range(max(width // 8, 1))
        if write:
            for i in more:
                words[(at + i) if mask is None else (at + i)[mask]] = full
            return
        for i in more:
            bad = bad_lanes(c, words[at + i] != full, mask)
            if bad is None:
                continue
            if ins.opcode[0] in LOADS:
                fresh(c, bad)
                continue
            _, _, who = self.batch.run.reporter.group(c, bad)
            what = "local memory is read before it was written"
            self.batch.run.reporter.hazard(HazardKind.UNINITIALISED, what, ins, (who,))
            return


class GlobalSpace:
    """Global and const memory, over the buffers of a `GlobalMemory`."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.buffers: dict[int, Buffer] = run.memory.buffers
        self.multicast: dict[int, tuple[int, ...]] = run.memory.multicast

    def locate(self, c: Group, address: Array, size: int, width: int, ins: Instruction, write: bool) -> list[Part]:
        if address.shape != (c.n, 32):
            address = np.broadcast_to(address, (c.n, 32))
        slot = address >> np.uint64(SLOT_BITS)
        mask = c.mask
        first = slot.flat[0] if mask is None else slot[mask][0] if mask.any() else None
        if first is None:
            return []
        same = slot == first
        if mask is not None:
            same |= ~mask
        if same.all():
            return [self._part(c, address, int(first), mask, size, width, ins, write)]
        parts: list[Part] = []
        active = c.active
        for one in np.unique(slot[active]):
            lanes = active & (slot == one)
            parts.append(self._part(c, address, int(one), lanes, size, width, ins, write))
        return parts

    def _part(
        self, c: Group, address: Array, slot: int, mask: Array | None, size: int, width: int,
        ins: Instruction, write: bool,
    ) -> Part:  # fmt: skip
        buffer = self.buffers.get(slot)
        if buffer is None:
            self._nowhere(c, address, mask, width, ins)
            nothing = np.zeros((c.n, 32), np.bool_)
            return Part(np.zeros(1, f"u{size}"), np.zeros((c.n, 32), np.int64), nothing, None)
        offset = address - np.uint64(buffer.address)
        limit = len(buffer.bytes) - width
        wrong = offset > np.uint64(max(limit, 0)) if limit >= 0 else np.ones((c.n, 32), np.bool_)
        bad = bad_lanes(c, wrong, mask)
        if bad is not None:
            self._outside(c, bad, offset, buffer, width, ins, write)
            mask = masked_off(mask, bad)
        if buffer.live is not None:
            first, last = (np.minimum(offset + np.uint64(n), np.uint64(len(buffer.live) - 1)) for n in (0, width - 1))
            bad = bad_lanes(c, ~(buffer.live[first] & buffer.live[last]), mask)
            if bad is not None:
                row, lane, who = self.run.reporter.group(c, bad)
                at = int(address[row, lane]) + (width - 1 if buffer.live[int(first[row, lane])] else 0)
                what = f"{'store to' if write else 'load from'} {self.run.heap.describe(at)}"
                self.run.reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,))
                mask = masked_off(mask, bad)
        bad = bad_lanes(c, (address & np.uint64(width - 1)) != 0, mask) if width > 1 else None
        if bad is not None:
            misaligned(c, bad, offset, width, ins, f"'{buffer.name}'")
            mask = masked_off(mask, bad)
        if write and not buffer.writable:
            active = c.active if mask is None else mask
            if active.any():
                row, lane, who = self.run.reporter.group(c, active)
                index = buffer.index_of(int(offset[row, lane]))
                what = f"a store to '{buffer.name}'{index}, which the kernel may only read"
                self.run.reporter.hazard(HazardKind.READ_ONLY, what, ins, (who,))
                mask = np.zeros((c.n, 32), np.bool_)
        index = offset.astype(np.int64)
        if mask is not None:
            index = np.where(mask, index, 0)
        view = buffer.view(size)
        if not len(view):
            view = np.zeros(1, f"u{size}")
        return Part(view, index // size, mask, buffer.shadow)

    def _nowhere(self, c: Group, address: Array, mask: Array | None, width: int, ins: Instruction) -> None:
        row, lane, who = self.run.reporter.group(c, c.active if mask is None else mask)
        at = int(address[row, lane])
        what = f"access of {width} bytes at {at:#x}, where no array lies"
        fix = ""
        if at >> SLOT_BITS == 0 and self.multicast:  # on a mesh
            fix = "the address 0 is that of a device id out of range, or of a peer that is not mapped"
        self.run.reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,), fix)

    def _outside(
        self, c: Group, bad: Array, offset: Array, buffer: Buffer, width: int, ins: Instruction,
        write: bool,
    ) -> None:  # fmt: skip
        row, lane, who = self.run.reporter.group(c, bad)
        at = int(offset[row, lane].astype(np.int64)) - buffer.origin
        element = buffer.dtype.itemsize
        where = f"byte {at}, element {at // element}" if at % element == 0 else f"byte {at}"
        what = (
            f"{'store to' if write else 'load from'} '{buffer.name}' at {where}; the array has shape "
            f"{tuple(buffer.shape)} of {buffer.dtype.name}, {len(buffer.bytes)} bytes"
        )
        fix = "mask the access, or correct the index"
        self.run.reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,), fix)


def misaligned(c: Group, bad: Array, offset: Array, width: int, ins: Instruction, space: str) -> None:
    reporter = c.batch.run.reporter
    row, lane, who = reporter.group(c, bad)
    at = int(np.broadcast_to(offset, (c.n, 32))[row, lane].astype(np.int64))
    what = f"access of {width} bytes at byte {at} of {space}, where the address is not a multiple of {width}"
    reporter.hazard(HazardKind.MISALIGNED, what, ins, (who,))


class GenericSpace:
    """Generic addresses: the window that contains an address decides its space."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def locate(self, c: Group, address: Array, size: int, width: int, ins: Instruction, write: bool) -> list[Part]:
        window = address >> np.uint64(WINDOW_BITS)
        active = c.active
        window = np.broadcast_to(window, (c.n, 32))
        address = np.broadcast_to(address, (c.n, 32))
        kinds = np.unique(window[active])
        if len(kinds) == 1:
            return self._space(c, int(kinds[0])).locate(c, _within(address), size, width, ins, write)
        parts: list[Part] = []
        held = c.mask
        for kind in kinds:
            c.mask = active & (window == kind)
            parts += self._space(c, int(kind)).locate(c, _within(address), size, width, ins, write)
        c.mask = held
        return parts

    def _space(self, c: Group, window: int) -> Any:
        if window == 1:
            return c.batch.shared
        if window == LOCAL_WINDOW >> WINDOW_BITS:
            return c.batch.local
        return c.batch.parameters if window == 3 else self.run.globals


def _within(address: Array) -> Array:
    return address & np.uint64(WINDOW_MASK)


class ParamSpace:
    """The entry's parameters, read-only, at generic addresses (`cvta.param`)."""

    def __init__(self, data: bytes) -> None:
        self.data: Array = np.frombuffer(data.ljust(-(-len(data) // 16) * 16 + 16, b"\0"), np.uint8)

    def locate(self, c: Group, address: Array, size: int, width: int, ins: Instruction, write: bool) -> list[Part]:
        offset = np.broadcast_to(address.astype(np.int64), (c.n, 32))
        bad = bad_lanes(c, (offset < 0) | (offset > len(self.data) - width), c.mask)
        mask = c.mask
        if bad is not None:
            _, _, who = c.batch.run.reporter.group(c, bad)
            what = "access outside of the kernel's parameters"
            c.batch.run.reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,))
            mask = masked_off(mask, bad)
        data = self.data
        if write:
            _, _, who = c.batch.run.reporter.group(c, c.active)
            c.batch.run.reporter.hazard(HazardKind.READ_ONLY, "a store to the kernel's parameters", ins, (who,))
            mask, data = np.zeros((c.n, 32), np.bool_), data.copy()
        index = offset if mask is None else np.where(mask, offset, 0)
        return [Part(data.view(f"u{size}"), index // size, mask, None)]
