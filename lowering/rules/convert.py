"""Layout conversions without SMEM, as `kernel_dsl.conversion` plans them. PTX ISA 9.7.9.6, `shfl.sync`."""

from __future__ import annotations

from kernel_dsl.conversion import ConversionPlan, ElementBit
from kernel_dsl.dtypes import DType
from kernel_dsl.layout import LANE_BITS, Layout

from ..context import Context
from ..value import Regs, V
from .reduce import shuffle


class _Registers:
    """Registers by the values of their bits, while the plan adds and removes bits."""

    def __init__(self, ctx: Context, names: dict[frozenset[ElementBit], V]) -> None:
        self.ctx = ctx
        self.names = names  # by the set bits; missing registers are not needed

    def split(self, bit: ElementBit) -> list[tuple[frozenset[ElementBit], V | None, V | None]]:
        """(the other bits, the register without the bit, the register with it) for each pair."""
        keys = {k - {bit}: None for k in self.names}
        return [(k, self.names.get(k), self.names.get(k | {bit})) for k in keys]

    def choose(self, predicate: V, yes: V | None, no: V | None) -> V:
        if yes is None or no is None or yes == no:
            name = yes if yes is not None else no
            assert name is not None
            return name
        return predicate.where(yes, no)

    def select(self, bit: ElementBit, position: int) -> None:
        """Remove a register bit: each lane keeps the registers for its own bit `position` of the thread number."""
        mine = lane_bit(self.ctx, position)
        self.names = {k: self.choose(mine, one, zero) for k, zero, one in self.split(bit)}

    def swap(self, gone: ElementBit, come: ElementBit, position: int) -> None:
        """Exchange a register bit with a lane bit: one shuffle for two registers."""
        mine = lane_bit(self.ctx, position)
        made: dict[frozenset[ElementBit], V] = {}
        for key, zero, one in self.split(gone):
            got = shuffle(self.ctx, self.choose(mine, zero, one), "bfly", 1 << position)
            made[key] = self.choose(mine, got, zero)
            made[key | {come}] = self.choose(mine, one, got)
        self.names = made

    def permute(self, found: ConversionPlan) -> None:
        """Each lane takes its registers from the lane that holds them.

        Some bits of that lane's number become register bits.
        """
        fixed = (1 << LANE_BITS) - 1
        for position in found.source:
            fixed &= ~(1 << position)
        for bit in found.to_reg:
            fixed &= ~(1 << found.lanes.index(bit))
        fixed &= ~found.old.idle
        terms = [(i, 1 << i) for i in range(LANE_BITS) if fixed >> i & 1]
        terms += [(new, 1 << old) for old, new in found.source.items()]
        if len({i for i, _ in terms}) == len(terms):
            base = self.ctx.lane_sum(terms)
        else:  # a bit of the thread number counts twice
            base = self.ctx.e.i32(0)
            for term in terms:
                base = base.once + self.ctx.lane_sum([term])
        made: dict[frozenset[ElementBit], V] = {}
        for number in range(1 << len(found.to_reg)):
            chosen = [b for i, b in enumerate(found.to_reg) if number >> i & 1]
            extra = sum(1 << found.lanes.index(b) for b in chosen)
            lane = base.once | extra if extra else base
            for key, name in self.names.items():
                made[key | set(chosen)] = shuffle(self.ctx, name, "idx", lane)
        self.names = made


def lane_bit(ctx: Context, position: int) -> V:
    """Whether a bit of the thread number within the warpgroup is set."""
    return (ctx.local_thread().once & 1 << position).once.differs(0)


def _keys(layout: Layout, shape: tuple[int, ...]) -> list[frozenset[ElementBit] | None]:
    """For each register, the element bits set in its part of the index; None if it is past the shape."""
    out: list[frozenset[ElementBit] | None] = []
    for coord in layout.register_coords:
        if any(c >= n for c, n in zip(coord, shape, strict=True)):
            out.append(None)
            continue
        out.append(frozenset((d, 1 << i) for d, c in enumerate(coord) for i in range(c.bit_length()) if c >> i & 1))
    return out


def convert_in_warps(ctx: Context, names: Regs, dtype: DType, shape: tuple[int, ...], found: ConversionPlan) -> Regs:
    """Emit a plan. Registers past the shape become zeros."""
    held = {k: n for k, n in zip(_keys(found.old_layout, shape), names, strict=True) if k is not None}
    registers = _Registers(ctx, held)
    for bit, position in found.to_warp:
        registers.select(bit, LANE_BITS + position)
    for gone, come, position in found.swaps:
        registers.swap(gone, come, position)
    if found.permutes:
        registers.permute(found)
    for bit, position in found.to_lane:
        registers.select(bit, position)
    return [
        ctx.e.literal(0, dtype) if key is None or key not in registers.names else registers.names[key]
        for key in _keys(found.new_layout, shape)
    ]
