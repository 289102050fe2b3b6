"""The heap of device code: malloc and free (CUDA C++ Programming Guide, 'Dynamic Global Memory Allocation and Operations').

Freed memory counts as unwritten. So reads of it are reported, and its next owner has no race with the previous one.
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
        self._free: dict[int, list[int]] = {}  # free addresses, by size

    def malloc(self, size: int) -> int:
        size = max(-(-size // _UNIT), 1) * _UNIT
        again = self._free.get(size)
        address = again.pop() if again else self._fresh(size)
        if address:
            self._sizes[address] = size
            self._forget(address, size)
        return address

    def free(self, address: int) -> bool:
        """Free an allocation. Returns whether it existed."""
        size = self._sizes.pop(address, 0)
        if size:
            self._forget(address, size)
            self._free.setdefault(size, []).append(address)
        return bool(size)

    def _fresh(self, size: int) -> int:
        if size > self.left:
            return 0
        if self._at + size > self._end:
            room = min(max(size, _CHUNK), self.left)
            data = np.zeros(room, np.uint8)
            self._at = self.run.memory.allocate(data, f"heap {len(self.addresses)}", False, True, kind="heap")
            self._end = self._at + room
            self.addresses.append(self._at)
            buffer = self._buffer(self._at)
            if self.run.detect:
                buffer.shadow = GlobalShadow(self.run, buffer)
        self._at += size
        self.left -= size
        return self._at - size

    def _buffer(self, address: int) -> Buffer:
        found = self.run.memory.find(address)
        assert found is not None
        return found

    def _forget(self, address: int, size: int) -> None:
        buffer = self._buffer(address)
        if buffer.shadow is not None:
            buffer.shadow.forget(address - buffer.address, size)


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
