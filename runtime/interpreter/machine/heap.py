"""The heap of device code: malloc and free (CUDA C++ Programming Guide, 'Dynamic Global Memory Allocation and Operations').

Freed memory counts as unwritten, so its next owner has no race with the previous one. At least 16 bytes between two
allocations belong to none: accesses that run past the end of one, or to freed memory, are reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks.global_shadow import GlobalShadow
from ..checks.kinds import HazardKind

if TYPE_CHECKING:
    from ..ptx.module import Instruction
    from .group import Group
    from .launch import Run
    from .memory import Buffer

LIMIT = 8 << 20  # bytes, the default of cudaLimitMallocHeapSize
_CHUNK = 256 << 10
_UNIT = 16


class Heap:
    """The allocations of one run, in buffers. `malloc` gives 0 if the heap is full, as on a GPU."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.addresses: list[int] = []  # the addresses of the buffers
        self.left: int = LIMIT
        self._at = self._end = 0  # the free part of the last buffer
        self._sizes: dict[int, int] = {}  # bytes of each allocation, by address
        self._freed: dict[int, int] = {}  # the same of allocations that were freed
        self._free: dict[int, list[int]] = {}  # free addresses, by size

    def malloc(self, size: int) -> int:
        room = _rounded(size)
        again = self._free.get(room)
        address = again.pop() if again else self._fresh(room)
        if address:
            self._sizes[address] = size
            self._freed.pop(address, None)
            self._forget(address, size, True)
        return address

    def free(self, address: int) -> bool:
        """Free an allocation. Returns whether it existed."""
        size = self._sizes.pop(address, None)
        if size is None:
            return False
        self._forget(address, size, False)
        self._freed[address] = size
        self._free.setdefault(_rounded(size), []).append(address)
        return True

    def describe(self, address: int) -> str:
        """Return what reports say of a byte that no allocation holds."""
        buffer = self._buffer(address)
        name = f"'{buffer.name}'{buffer.index_of(address - buffer.address)}"
        below = [(at, size) for sizes in (self._sizes, self._freed) for at, size in sizes.items() if at <= address]
        if not below:
            return f"{name}, which malloc did not give"
        at, size = max(below)
        if address < at + size:
            return f"{name}, byte {address - at} of {size} bytes that were freed"
        return f"{name}, byte {address - at} of an allocation of {size} bytes"

    def _fresh(self, size: int) -> int:
        if size > self.left:
            return 0
        if self._at + size + _UNIT > self._end:
            room = max(size + _UNIT, min(_CHUNK, self.left))
            data = np.zeros(room, np.uint8)
            self._at = self.run.memory.allocate(data, f"heap {len(self.addresses)}", False, True, kind="heap")
            self._end = self._at + room
            self.addresses.append(self._at)
            buffer = self._buffer(self._at)
            buffer.live = np.zeros(room, np.bool_)
            if self.run.detect:
                buffer.shadow = GlobalShadow(self.run, buffer)
        at = self._at
        self._at += size + _UNIT
        self.left -= size
        return at

    def _buffer(self, address: int) -> Buffer:
        found = self.run.memory.find(address)
        assert found is not None
        return found

    def _forget(self, address: int, size: int, live: bool) -> None:
        """Make an allocation's data undefined, and note whether it lives."""
        buffer = self._buffer(address)
        assert buffer.live is not None
        buffer.live[address - buffer.address : address - buffer.address + size] = live
        size = _rounded(size)
        if buffer.shadow is not None:
            buffer.shadow.forget(address - buffer.address, size)


def _rounded(size: int) -> int:
    return max(-(-size // _UNIT), 1) * _UNIT


def malloc(c: Group, ins: Instruction, sizes: Any) -> Any:
    """Return an address for each active lane: (rows, 32)."""
    heap = c.batch.run.heap
    found = np.zeros((c.n, 32), np.uint64)
    for row, lane in np.argwhere(c.active):
        found[row, lane] = heap.malloc(int(sizes[row, lane]))
    return found


def free(c: Group, ins: Instruction, addresses: Any) -> None:
    """Free memory; ignore null pointers."""
    run = c.batch.run
    bad = np.zeros((c.n, 32), np.bool_)
    for row, lane in np.argwhere(c.active):
        address = int(addresses[row, lane])
        bad[row, lane] = address != 0 and not run.heap.free(address)
    if bad.any():
        _, _, who = run.reporter.group(c, bad)
        what = "free is given an address that malloc did not give, or that was freed before"
        run.reporter.hazard(HazardKind.OUT_OF_BOUNDS, what, ins, (who,), "free each allocation once")
