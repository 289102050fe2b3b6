"""Addresses in tiled and swizzled SMEM, right at any index.

Where every lane's and register's share of the address has its own bits, the swizzle is linear over XOR: each lane
swizzles its share once, and a register costs one XOR with a constant. Elsewhere (an unaligned dynamic start, odd
strides) every address is computed in full.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_dsl.ir import MemorySpace
from kernel_dsl.transforms import storage_of, swizzle_mask, swizzle_period

from ..context import Context
from ..emit import Emitter
from .access import Place

_LOW = 1024  # no pattern reaches beyond (transforms.SWIZZLED_ALIGNMENT)


def _power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def swizzle_offset(offset: int, mask: int) -> int:
    """A constant byte offset through the XOR pattern."""
    return offset ^ (offset >> 3 & mask)


def swizzle_register(e: Emitter, address: str, mask: int, prelude: bool = False) -> str:
    """A register's byte address through the XOR pattern."""
    put = e.pre if prelude else e.v
    if not mask or address == "0":
        return address
    moved = put(f"and i32 {put(f'lshr i32 {address}, 3')}, {mask}")
    return put(f"xor i32 {address}, {moved}")


@dataclass
class TiledPlace(Place):
    """`Place` for an SMEM Ref with transforms."""

    def __post_init__(self) -> None:
        self._storage = storage_of(self.type)
        self._mask = swizzle_mask(self.type.swizzle)
        self._item = self.type.dtype.itemsize
        self._names: dict[int, str] = {}
        self._constants: dict[tuple[int, ...], int] = {}
        self._shares = self._lane_shares()
        self._fast = self._is_linear()
        super().__post_init__()

    # --- shares of the address --------------------------------------------------------------------

    def _bytes(self, axis: int, index: int) -> int:
        """Bytes that an index along an axis stands for, on its own."""
        storage = self._storage
        if axis == len(storage.strides) - 1 and storage.paneled:
            return (index // storage.panel * storage.panel_stride + index % storage.panel) * self._item
        return index * storage.strides[axis] * self._item

    def _lane_shares(self) -> list[tuple[int, int, int]]:
        """(bit of the thread number, root axis, index share) of each lane and warp bit that moves."""
        out: list[tuple[int, int, int]] = []
        for bit, owner in enumerate(self.layout.bits):
            if owner is not None and self.view.dims[owner[0]].axis >= 0:
                d = self.view.dims[owner[0]]
                out.append((bit, d.axis, owner[1] * d.step))
        return out

    def _root_share(self, coord: tuple[int, ...]) -> list[int]:
        """The static index along each root axis: the view's start and the register's share."""
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
        """Whether lanes' and registers' shares of the address have their own bits."""
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

    def _aligned(self, axis: int, facts: object) -> bool:
        """Whether a dynamic start leaves tile and pattern where they are."""
        from kernel_dsl.facts import Range

        if not isinstance(facts, Range):
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

    def _index32(self, axis: int) -> str:
        """The dynamic part of the start along an axis (the static part is in every register's share)."""
        place = self.view.dynamic.index(axis)
        value = self.offsets[place]
        name, bits = self.ctx.scalar(value), value.type.dtype.bits
        if bits == 32:
            return name
        word = "trunc" if bits > 32 else ("sext" if value.type.dtype.is_signed else "zext")
        return self.ctx.e.v(f"{word} i{bits} {name} to i32")

    def _make_address(self) -> str:
        self.strides: list[int | str] = [0] * len(self.view.dims)
        return self._linear_base() if self._fast else self.buffer.address

    def _linear_base(self) -> str:
        e, storage = self.ctx.e, self._storage
        base = self.buffer.address
        for axis in self.view.dynamic:
            start = self._index32(axis)
            step = storage.strides[axis] * self._item
            if axis == len(storage.strides) - 1 and storage.paneled:
                start = e.v(f"udiv i32 {start}, {storage.panel}")
                step = storage.panel_stride * self._item
            base = e.v(f"add i32 {base}, {e.v(f'mul i32 {start}, {step}')}")
        terms = [(bit, self._bytes(axis, index)) for bit, axis, index in self._shares]
        self._lane = swizzle_register(e, self.ctx.lane_sum(terms), self._mask, prelude=True)
        return base

    def address(self, coord: tuple[int, ...]) -> tuple[str, int]:
        """(register, constant) whose sum is the byte address of the element with this register share."""
        e = self.ctx.e
        if not self._fast:
            return self._full_address(coord), 0
        constant = self._constant(coord)
        low = constant % _LOW if self._mask else 0
        high = constant - low
        tail = low & 15  # bits that no pattern touches
        key = swizzle_offset(low - tail, self._mask)
        if key not in self._names:
            mixed = (
                self._lane if key == 0 else (e.pre(f"xor i32 {self._lane}, {key}") if self._lane != "0" else str(key))
            )
            self._names[key] = self._address if mixed == "0" else e.v(f"add i32 {self._address}, {mixed}")
        return self._names[key], high + tail

    def _full_address(self, coord: tuple[int, ...]) -> str:
        return self.indexed(coord, {})

    def indexed(self, coord: tuple[int, ...], extra: dict[int, str]) -> str:
        """The address with i32 values added to the index along some root axes, computed in full."""
        e, storage = self.ctx.e, self._storage
        total = "0"
        last = len(storage.strides) - 1
        for axis, static in enumerate(self._root_share(coord)):
            index = self.ctx.lane_sum([(bit, share) for bit, a, share in self._shares if a == axis])
            if axis in self.view.dynamic:
                index = e.v(f"add i32 {index}, {self._index32(axis)}")
            if axis in extra:
                index = e.v(f"add i32 {index}, {extra[axis]}")
            if static:
                index = e.v(f"add i32 {index}, {static}")
            if axis == last and storage.paneled:
                panel = e.v(f"udiv i32 {index}, {storage.panel}")
                index = e.v(f"urem i32 {index}, {storage.panel}")
                total = e.v(f"add i32 {total}, {e.v(f'mul i32 {panel}, {storage.panel_stride}')}")
            scaled = e.v(f"mul i32 {index}, {storage.strides[axis]}")
            total = e.v(f"add i32 {total}, {scaled}")
        offset = e.v(f"mul i32 {total}, {self._item}")
        return e.v(f"add i32 {self.buffer.address}, {swizzle_register(e, offset, self._mask)}")

    def forget(self) -> None:
        super().forget()
        self._names.clear()

    def width(self, access: object) -> int:
        from kernel_dsl.refs import Access

        assert isinstance(access, Access)
        width = super().width(access)
        while width > 1 and (self._storage.panel % width or width * self._item > 16):
            width //= 2
        return width


def make_place(ctx: Context, *args: object) -> Place:
    """The `Place` for a Ref: (type, buffer, view, layout, offsets)."""
    from kernel_dsl.compiled import Swizzle
    from kernel_dsl.ir import RefType

    type = args[0]
    assert isinstance(type, RefType)
    plain = type.space is not MemorySpace.SMEM or (type.swizzle is Swizzle.NONE and not storage_of(type).paneled)
    return (Place if plain else TiledPlace)(ctx, *args)  # type: ignore[arg-type]
