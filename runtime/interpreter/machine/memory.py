"""Fake global memory: host arrays at addresses so far apart that an access past an end is always found.

The generic address space (PTX ISA, 'Generic Addressing') is laid out as

    0 .. 2^48               global and const: one slot of 2^36 bytes a buffer, the data in the slot's middle
    SHARED_WINDOW + a       shared memory: a is the 32-bit shared address: bits 24 and up are the block's rank in its cluster
    LOCAL_WINDOW + a        this lane's local memory
    PARAM_WINDOW + a        the entry's parameters
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SLOT_BITS = 36
SLOT_MIDDLE = 1 << (SLOT_BITS - 1)
SLOT_MASK = (1 << SLOT_BITS) - 1
WINDOW_BITS = 56
SHARED_WINDOW = 1 << WINDOW_BITS
LOCAL_WINDOW = 2 << WINDOW_BITS
PARAM_WINDOW = 3 << WINDOW_BITS
WINDOW_MASK = (1 << WINDOW_BITS) - 1
RANK_SHIFT = 24  # on one NVIDIA H200, a block's own addresses have its rank there too, as with mapa
# The first kilobyte of a block's shared memory belongs to the system on sm_90; address 0 is never data.
SHARED_RESERVED = 1024


class Buffer:
    """A global allocation.

    `bytes`: a flat uint8 view of the host memory that the array spans; `address`: the address of its first byte;
    `origin`: the byte of element [0, ..., 0] in it (negative strides put it past the first). `shape`, `dtype` and
    `strides` (bytes) are for reports.
    """

    __slots__ = (
        "address", "bytes", "called", "dtype", "initialised", "keep", "kind", "live", "name", "origin", "shadow",
        "shape", "strides", "views", "writable",
    )  # fmt: skip

    def __init__(self, data: Array, name: str, initialised: bool, writable: bool, kind: str = "array") -> None:
        low, high = np.lib.array_utils.byte_bounds(data) if data.size else (0, 0)
        self.keep: Array = data
        self.origin = data.__array_interface__["data"][0] - low if data.size else 0
        if data.size and data.flags.c_contiguous:
            self.bytes: Array = data.reshape(-1).view(np.uint8)
        else:
            span = (ctypes.c_uint8 * (high - low)).from_address(low)
            self.bytes = np.ctypeslib.as_array(span) if high > low else np.zeros(0, np.uint8)
        self.name: str = name
        self.called: Callable[[int], str] | None = None  # what reports call the element at an offset in bytes
        self.shape: tuple[int, ...] = data.shape
        self.dtype: np.dtype[Any] = data.dtype
        self.strides: tuple[int, ...] = data.strides
        self.initialised: bool = initialised
        self.writable: bool = writable
        self.kind: str = kind
        self.address: int = 0
        self.shadow: Any = None
        self.live: Array | None = None  # of the heap: which bytes an allocation holds
        self.views: dict[int, Array] = {}

    def view(self, size: int) -> Array:
        """Return the buffer as unsigned words of `size` bytes, without an incomplete last word."""
        found = self.views.get(size)
        if found is None:
            usable = len(self.bytes) // size * size
            found = self.views[size] = self.bytes[:usable].view(f"u{size}")
        return found

    def element(self, offset: int) -> str:
        """Return the name and the index of the byte at `offset`, for reports."""
        return self.called(offset) if self.called is not None else f"'{self.name}'{self.index_of(offset)}"

    def index_of(self, offset: int) -> str:
        """Return the logical index of the byte at `offset`, as `[i, j]`; empty for an array without elements."""
        if not self.shape or not self.keep.size:
            return ""
        left, index = offset - self.origin, [0] * len(self.shape)
        order = sorted(range(len(self.shape)), key=lambda a: -abs(self.strides[a]))
        for axis in order:
            stride = self.strides[axis]
            if stride and self.shape[axis] > 1:
                step = left // stride if stride > 0 else -(left // -stride)
                index[axis] = min(max(step, 0), self.shape[axis] - 1)
                left -= index[axis] * stride
        return "[" + ", ".join(map(str, index)) + "]"


class GlobalMemory:
    """All buffers of a device. Not thread-safe: one launch at a time."""

    def __init__(self) -> None:
        self.buffers: dict[int, Buffer] = {}
        self.multicast: dict[int, tuple[int, ...]] = {}  # the slots of a multicast address's buffers, by its slot
        self.peers: dict[int, tuple[int, ...]] = {}  # the same array's slots on all devices, by each slot
        self.near: list[tuple[int, ...]] = []  # if there are several devices, the groups that map each other's memory
        self.next = 1

    @property
    def writable_bytes(self) -> int:
        """The bytes of writable buffers."""
        return sum(b.bytes.nbytes for b in self.buffers.values() if b.writable)

    def allocate(
        self,
        data: Array,
        name: str = "",
        initialised: bool = True,
        writable: bool = True,
        kind: str = "array",
    ) -> int:
        """Give `data` an address and return it: that of element [0, ..., 0].

        The interpreter reads and writes the array's own memory. `initialised=False` makes reads before the first
        write a hazard, `writable=False` makes stores one.
        """
        buffer = Buffer(data, name, initialised, writable, kind)
        slot = self.next
        self.next += 1
        buffer.address = (slot << SLOT_BITS) | SLOT_MIDDLE
        self.buffers[slot] = buffer
        return buffer.address + buffer.origin

    def join(self, addresses: Sequence[int]) -> int:
        """Return a multicast address for several buffers, one for each device.

        No plain access may use it (PTX ISA, 'multimem'): no buffer has it.
        """
        slot = self.next
        self.next += 1
        members = tuple(address >> SLOT_BITS for address in addresses)
        self.multicast[slot] = members
        self.peers |= dict.fromkeys(members, members)
        return (slot << SLOT_BITS) | (addresses[0] & SLOT_MASK)

    def free(self, address: int) -> None:
        """Forget the buffer at `address`; raises KeyError if there is none."""
        del self.buffers[address >> SLOT_BITS]

    def find(self, address: int) -> Buffer | None:
        """Return the buffer whose slot contains `address`, in bounds or not; None if there is none."""
        return self.buffers.get(address >> SLOT_BITS)

    def bytes_at(self, address: int, size: int) -> Array | None:
        """Return a uint8 view of `size` bytes at `address`, or None if they are not all in one buffer."""
        buffer = self.find(address)
        if buffer is None:
            return None
        start = address - buffer.address
        if start < 0 or start + size > len(buffer.bytes):
            return None
        return buffer.bytes[start : start + size]
