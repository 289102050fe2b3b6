"""Addresses in tiled and swizzled SMEM, right at any index.

If lanes and registers change different bits of the address, the swizzle is linear over XOR: each lane swizzles its part
once, and a register costs one XOR with a constant. Elsewhere (an unaligned dynamic start, odd strides) every address is
computed in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_dsl.compiled import Swizzle
from kernel_dsl.facts import Range
from kernel_dsl.ir import MemorySpace, RefType, Value
from kernel_dsl.layout import Layout
from kernel_dsl.refs import Access, View
from kernel_dsl.storage import storage_of, swizzle_mask, swizzle_period

from ..context import Context
from ..lowered import SmemBuffer
from ..value import V
from .access import AccessPlace, Address

_LOW = 1024  # the span of every pattern (storage.SWIZZLED_ALIGNMENT)


def _power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def swizzle_offset(offset: int, mask: int) -> int:
    """A constant byte offset through the XOR pattern."""
    return offset ^ (offset >> 3 & mask)


@dataclass
class TiledPlace(AccessPlace):
    """`Place` for an SMEM Ref with transforms."""

    def __post_init__(self) -> None:
        self._storage = storage_of(self.type)
        self._mask = swizzle_mask(self.type.swizzle)
        self._item = self.type.dtype.itemsize
        self._names: dict[int, V] = {}
        self._constants: dict[tuple[int, ...], int] = {}
        self._shares = self._lane_shares()
        self._fast = self._is_linear()
        super().__post_init__()

    def _swizzled(self, offset: V) -> V:
        """A byte offset through the XOR pattern."""
        return offset ^ (offset >> 3) & self._mask if self._mask else offset

    def _moving(self, axis: int) -> V:
        """The dynamic part of the start along an axis, i32 (the static part is in every register's coordinate)."""
        return self.ctx.index(self.offsets[self.view.dynamic.index(axis)])

    # --- shares of the address --------------------------------------------------------------------

    def _bytes(self, axis: int, index: int) -> int:
        """The byte offset of an index along one axis."""
        storage = self._storage
        if axis == len(storage.strides) - 1 and storage.paneled:
            return (index // storage.panel * storage.panel_stride + index % storage.panel) * self._item
        return index * storage.strides[axis] * self._item

    def _lane_shares(self) -> list[tuple[int, int, int]]:
        """(bit of the thread number, root axis, step) of each lane and warp bit that changes the index."""
        out: list[tuple[int, int, int]] = []
        for bit, owner in enumerate(self.layout.bits):
            if owner is not None and self.view.dims[owner[0]].axis >= 0:
                d = self.view.dims[owner[0]]
                out.append((bit, d.axis, owner[1] * d.step))
        return out

    def _root_share(self, coord: tuple[int, ...]) -> list[int]:
        """The static index along each root axis: the view's start plus the register's coordinate."""
        index = list(self.view.start)
        for d, c in zip(self.view.dims, coord, strict=True):
            if d.axis >= 0:
                index[d.axis] += c * d.step
        return index

    def _constant(self, coord: tuple[int, ...]) -> int:
        """The static bytes of a register's address."""
        found = self._constants.get(coord)
        return self._keep(coord, self._root_share(coord)) if found is None else found

    def _keep(self, coord: tuple[int, ...], index: list[int]) -> int:
        """The same from the index along each root axis, remembered."""
        self._constants[coord] = total = sum([self._bytes(axis, i) for axis, i in enumerate(index)])
        return total

    def _is_linear(self) -> bool:
        """Whether lanes and registers change different bits of the address."""
        last = len(self._storage.strides) - 1
        if any(index <= 0 for _, _, index in self._shares):
            return False
        weights = [self._bytes(axis, index) for _, axis, index in self._shares]
        if not all(map(_power_of_two, weights)) or len(set(weights)) != len(weights):
            return False
        minor = [index for _, axis, index in self._shares if axis == last]
        if self._storage.paneled and not all(map(_power_of_two, [self._storage.panel, *minor])):
            return False
        lanes, minors = sum(weights), sum(minor)
        for coord in self.layout.register_coords:
            index = self._root_share(coord)
            if min(index) < 0 or self._keep(coord, index) & lanes or index[last] & minors:
                return False
        return all(self._aligned(axis, value.facts) for axis, value in self.view.moving(self.offsets).items())

    def _aligned(self, axis: int, facts: Range | None) -> bool:
        """Whether a dynamic start moves by whole tiles and patterns."""
        if facts is None:
            return False
        storage, divisor = self._storage, facts.divisor
        if axis == len(storage.strides) - 1 and storage.paneled:
            if divisor % storage.panel:
                return False
            unit = divisor // storage.panel * storage.panel_stride * self._item
        else:
            unit = divisor * storage.strides[axis] * self._item
        return unit % max(swizzle_period(self.type.swizzle), 1) == 0

    # --- addresses --------------------------------------------------------------------------------

    def _make_address(self) -> V:
        self.strides: list[int | V] = [0] * len(self.view.dims)
        return self._linear_base() if self._fast else self.buffer.address

    def _linear_base(self) -> V:
        storage = self._storage
        base = self.buffer.address
        for axis in self.view.dynamic:
            start = self._moving(axis)
            step = storage.strides[axis] * self._item
            if axis == len(storage.strides) - 1 and storage.paneled:
                start = start // storage.panel
                step = storage.panel_stride * self._item
            base += start.times(step)
        lane = self.ctx.lane_sum([(bit, self._bytes(axis, index)) for bit, axis, index in self._shares])
        if self._mask and lane != "0":
            lane = lane.once ^ ((lane.once >> 3).once & self._mask)
        self._lane = lane
        return base

    def address(self, coord: tuple[int, ...]) -> Address:
        """(register, constant) whose sum is the byte address of the element at this register's coordinate."""
        if not self._fast:
            return self.indexed(coord, {}), 0
        constant = self._constant(coord)
        low = constant % _LOW if self._mask else 0
        high = constant - low
        tail = low & 15  # bits that no pattern touches
        key = swizzle_offset(low - tail, self._mask)
        if key not in self._names:
            self._names[key] = self._address + (self._lane.once ^ key)
        return self._names[key], high + tail

    def indexed(self, coord: tuple[int, ...], extra: dict[int, V]) -> V:
        """The address with i32 values added to the index along some root axes, computed in full."""
        storage = self._storage
        total = self.ctx.e.i32(0)
        last = len(storage.strides) - 1
        for axis, static in enumerate(self._root_share(coord)):
            index = self.ctx.lane_sum([(bit, share) for bit, a, share in self._shares if a == axis])
            if axis in self.view.dynamic:
                index = index.plus(self._moving(axis))
            if axis in extra:
                index = index.plus(extra[axis])
            if static:
                index = index.plus(static)
            if axis == last and storage.paneled:
                panel = index.written("udiv", storage.panel)
                index = index.written("urem", storage.panel)
                total = total.plus(panel.times(storage.panel_stride))
            total = total.plus(index.times(storage.strides[axis]))
        return self.buffer.address + self._swizzled(total.times(self._item))

    def forget(self) -> None:
        super().forget()
        self._names.clear()

    def width(self, access: Access) -> int:
        width = super().width(access)
        while width > 1 and (self._storage.panel % width or width * self._item > 16):
            width //= 2
        return width


def make_place(
    ctx: Context, type: RefType, buffer: SmemBuffer, view: View, layout: Layout, offsets: Sequence[Value]
) -> AccessPlace:
    """The `Place` for a Ref."""
    plain = type.space is not MemorySpace.SMEM or (type.swizzle is Swizzle.NONE and not storage_of(type).paneled)
    return (AccessPlace if plain else TiledPlace)(ctx, type, buffer, view, layout, offsets)
