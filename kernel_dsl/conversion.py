"""Plans of layout conversions without SMEM: register renames, selects, and shuffles within a warp.

Every needed bit of an element's index lies in a register bit, a lane bit or a warp bit, in the old layout and in the
new one. Where no bit has to cross warps, the plan is: selects for what goes from registers to warp bits, exchanges of
a register bit with a lane bit (one shuffle for two registers), one permutation of lanes, and selects for what goes
from registers to lane bits. A register factor whose size is no power of two counts as one of the next power of two;
the registers past it hold nothing that is needed.
"""

from __future__ import annotations

from dataclasses import field
from math import prod
from typing import cast

from .dataclass import dataclass
from .dtypes import DType
from .layout import LANE_BITS, Layout, pow2_ceil

ElementBit = tuple[int, int]  # (dimension, a power of two: the bit's weight in the index)

# The cost of a conversion through SMEM beside one access a register: a barrier, and the addresses.
BARRIER_COST = 16


@dataclass(frozen=True)
class Bits:
    """Where the needed element bits of a layout lie. `regs`: the element bit of each register bit, lowest first."""

    regs: tuple[ElementBit, ...]
    lanes: tuple[ElementBit | None, ...]
    warps: tuple[ElementBit | None, ...]
    idle: int  # bits of the thread number (a mask) where only threads with 0 hold anything needed

    def place(self, bit: ElementBit) -> tuple[str, int] | None:
        """(kind, position) of an element bit."""
        for kind, held in (("reg", self.regs), ("lane", self.lanes), ("warp", self.warps)):
            if bit in held:
                return kind, held.index(bit)
        return None


def bits_of(layout: Layout, shape: tuple[int, ...]) -> Bits | None:
    """The bits of a layout; None where a factor is no power of two and not its dimension's largest."""
    regs: list[ElementBit] = []
    reach = layout.padded
    for dim, size, stride in reversed(layout.regs):
        if stride & (stride - 1) or (size & (size - 1) and size * stride != reach[dim]):
            return None
        bit = stride
        while bit < stride * pow2_ceil(size):
            if bit < shape[dim]:
                regs.append((dim, bit))
            bit *= 2
    idle = 0
    held: list[ElementBit | None] = []
    for position, bit in enumerate(layout.bits):
        if bit is None:
            held.append(None)
            continue
        dim, stride = bit
        if stride & (stride - 1):
            return None
        needed = stride < shape[dim]
        held.append((dim, stride) if needed else None)
        if not needed:
            idle |= 1 << position
    return Bits(tuple(regs), tuple(held[:LANE_BITS]), tuple(held[LANE_BITS:]), idle)


@dataclass
class ConversionPlan:
    """The steps of a conversion, in the order of the fields. `lanes`: what lane bits hold before they permute."""

    old_layout: Layout
    new_layout: Layout
    old: Bits
    new: Bits
    to_warp: list[tuple[ElementBit, int]] = field(default_factory=lambda: cast("list[tuple[ElementBit, int]]", []))
    swaps: list[tuple[ElementBit, ElementBit, int]] = field(
        default_factory=lambda: cast("list[tuple[ElementBit, ElementBit, int]]", [])
    )  # (leaves the registers, comes into them, the lane bit where they change places)
    to_lane: list[tuple[ElementBit, int]] = field(default_factory=lambda: cast("list[tuple[ElementBit, int]]", []))
    to_reg: list[ElementBit] = field(default_factory=lambda: cast("list[ElementBit]", []))
    lanes: list[ElementBit | None] = field(default_factory=lambda: cast("list[ElementBit | None]", []))

    @property
    def source(self) -> dict[int, int]:
        """For the lane permutation: each source lane bit that is not the lane's own, and the lane's bit that it is."""
        out: dict[int, int] = {}
        for position, bit in enumerate(self.lanes):
            if bit is None:
                continue
            place = self.new.place(bit)
            if place is not None and place[0] == "lane" and place[1] != position:
                out[position] = place[1]
        return out

    @property
    def permutes(self) -> bool:
        return bool(self.source or self.to_reg or self.old.idle & self._asked())

    def _asked(self) -> int:
        """Lane bits that the new layout uses or replicates. If they are idle in the old one, shuffles fetch their data."""
        return (1 << LANE_BITS) - 1 & ~self.new.idle

    def shuffles(self, wide: bool) -> int:
        """How many 32-bit shuffles a lane takes part in."""
        count = 1 << len(self.old.regs) - len(self.to_warp)
        total = len(self.swaps) * count // 2
        if self.permutes:
            total += count << len(self.to_reg)
        return total * (2 if wide else 1)


def plan_in_warps(old: Layout, new: Layout, shape: tuple[int, ...]) -> ConversionPlan | None:
    """How to convert within warps, or None if data must move between warps."""
    a, b = bits_of(old, shape), bits_of(new, shape)
    if a is None or b is None:
        return None
    if a.idle >> LANE_BITS & ~(b.idle >> LANE_BITS):
        return None  # a warp without data would need another warp's
    found = ConversionPlan(old, new, a, b, lanes=list(a.lanes))
    leaving: list[tuple[ElementBit, int]] = []
    for bit in a.regs:
        place = b.place(bit)
        if place is None:
            return None
        if place[0] == "warp":
            found.to_warp.append((bit, place[1]))
        elif place[0] == "lane":
            leaving.append((bit, place[1]))
    for position, bit in enumerate(a.warps):
        if bit is not None and b.place(bit) != ("warp", position):
            return None
    for position, bit in enumerate(a.lanes):
        place = b.place(bit) if bit is not None else None
        if bit is None:
            continue
        if place is None or place[0] == "warp":
            return None
        if place[0] == "reg":
            if leaving:
                gone, _ = leaving.pop()
                found.swaps.append((gone, bit, position))
                found.lanes[position] = gone
            else:
                found.to_reg.append(bit)
    found.to_lane = leaving
    return found


def shared_out(old: Layout, shape: tuple[int, ...]) -> ConversionPlan | None:
    """How lanes with copies of the same elements keep a share each, by selects alone; None if there are no copies."""
    regs, bits = list(old.regs), list(old.bits)
    for position in [i for i, bit in enumerate(bits) if bit is None]:
        even = [i for i, (dim, size, stride) in enumerate(regs) if size % 2 == 0 and size * stride <= shape[dim]]
        if not even:
            break
        chosen = max(even, key=lambda i: (regs[i][0], -regs[i][2]))  # neighbours go to neighbouring lanes
        dim, size, stride = regs[chosen]
        regs[chosen], bits[position] = (dim, size // 2, 2 * stride), (dim, stride)
    new = Layout(old.rank, tuple(regs), tuple(bits[:LANE_BITS]), tuple(bits[LANE_BITS:]))
    found = plan_in_warps(old, new, shape) if new != old else None
    return found if found is not None and not found.shuffles(False) else None


def cheaper(found: ConversionPlan, old: Layout, new: Layout, dtype: DType) -> bool:
    """Whether shuffles cost less than a store and a load a register and a barrier."""
    return found.shuffles(dtype.bits == 64) <= old.registers + new.registers + BARRIER_COST


def cost(old: Layout, new: Layout, shape: tuple[int, ...], wide: bool) -> int:
    """The cost of a conversion in shuffles: 0 if it only renames registers. `wide`: elements of 64 bits."""
    if old == new:
        return 0
    found = plan_in_warps(old, new, shape)
    through = old.registers + new.registers + BARRIER_COST
    return through if found is None else min(found.shuffles(wide), through)


def described(old: Layout, new: Layout, shape: tuple[int, ...], dtype: DType) -> str:
    """A description of a conversion and its cost."""
    found = plan_in_warps(old, new, shape)
    if found is None or not cheaper(found, old, new, dtype):
        size = prod(shape) * dtype.itemsize
        return f"through SMEM: {size} bytes written and read, and a barrier"
    count = found.shuffles(dtype.bits == 64)
    return f"{count} shuffles a lane" if count else "registers alone"
