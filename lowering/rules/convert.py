"""Layout conversions without SMEM, as `kernel_dsl.conversion` plans them. PTX ISA 9.7.9.6, `shfl.sync`."""

from __future__ import annotations

from kernel_dsl.conversion import ElementBit, Plan
from kernel_dsl.dtypes import DType
from kernel_dsl.layout import LANE_BITS, Layout

from ..context import Context
from ..emit import Regs, literal, llvm_type
from .reduce import shuffle_index, shuffle_xor


class _Registers:
    """Registers by the values of their bits, while bits come and go."""

    def __init__(self, ctx: Context, names: dict[frozenset[ElementBit], str], dtype: DType) -> None:
        self.ctx = ctx
        self.names = names  # by the bits that are set; what is not there is not needed
        self.dtype = dtype

    def split(self, bit: ElementBit) -> list[tuple[frozenset[ElementBit], str | None, str | None]]:
        """(the other bits, the register without the bit, the register with it) for each pair."""
        keys = {k - {bit}: None for k in self.names}
        return [(k, self.names.get(k), self.names.get(k | {bit})) for k in keys]

    def choose(self, predicate: str, yes: str | None, no: str | None) -> str:
        if yes is None or no is None or yes == no:
            name = yes if yes is not None else no
            assert name is not None
            return name
        t = llvm_type(self.dtype)
        return self.ctx.e.v(f"select i1 {predicate}, {t} {yes}, {t} {no}")

    def select(self, bit: ElementBit, position: int) -> None:
        """The bit leaves the registers: each lane keeps those of its own bit `position` of the thread number."""
        mine = lane_bit(self.ctx, position)
        self.names = {k: self.choose(mine, one, zero) for k, zero, one in self.split(bit)}

    def swap(self, gone: ElementBit, come: ElementBit, position: int) -> None:
        """A register bit changes places with a lane bit: one shuffle for two registers."""
        mine = lane_bit(self.ctx, position)
        made: dict[frozenset[ElementBit], str] = {}
        for key, zero, one in self.split(gone):
            got = shuffle_xor(self.ctx, self.choose(mine, zero, one), 1 << position, self.dtype)
            made[key] = self.choose(mine, got, zero)
            made[key | {come}] = self.choose(mine, one, got)
        self.names = made

    def permute(self, found: Plan) -> None:
        """Each lane takes its registers from the lane that has them; bits of that one's number become registers'."""
        fixed = (1 << LANE_BITS) - 1
        for position in found.source:
            fixed &= ~(1 << position)
        for bit in found.to_reg:
            fixed &= ~(1 << found.lanes.index(bit))
        fixed &= ~found.old.idle
        terms = [(i, 1 << i) for i in range(LANE_BITS) if fixed >> i & 1]
        terms += [(new, 1 << old) for old, new in found.source.items()]
        base = self.ctx.lane_sum(sorted(terms)) if len({i for i, _ in terms}) == len(terms) else _sum(self.ctx, terms)
        made: dict[frozenset[ElementBit], str] = {}
        for number in range(1 << len(found.to_reg)):
            chosen = [b for i, b in enumerate(found.to_reg) if number >> i & 1]
            extra = sum(1 << found.lanes.index(b) for b in chosen)
            lane = self.ctx.e.pre(f"or i32 {base}, {extra}") if extra else base
            for key, name in self.names.items():
                made[key | set(chosen)] = shuffle_index(self.ctx, name, lane, self.dtype)
        self.names = made


def _sum(ctx: Context, terms: list[tuple[int, int]]) -> str:
    """`lane_sum` where a bit of the thread number counts twice."""
    total = "0"
    for term in terms:
        part = ctx.lane_sum([term])
        total = part if total == "0" else ctx.e.pre(f"add i32 {total}, {part}")
    return total


def lane_bit(ctx: Context, position: int) -> str:
    """Whether a bit of the thread number within the warpgroup is set."""
    masked = ctx.e.pre(f"and i32 {ctx.local_thread()}, {1 << position}")
    return ctx.e.pre(f"icmp ne i32 {masked}, 0")


def _keys(layout: Layout, shape: tuple[int, ...]) -> list[frozenset[ElementBit] | None]:
    """For each register the element bits that are set in its share of the index; None where it lies past the shape."""
    out: list[frozenset[ElementBit] | None] = []
    for coord in layout.register_coords:
        if any(c >= n for c, n in zip(coord, shape, strict=True)):
            out.append(None)
            continue
        out.append(frozenset((d, 1 << i) for d, c in enumerate(coord) for i in range(c.bit_length()) if c >> i & 1))
    return out


def convert_in_warps(ctx: Context, names: Regs, dtype: DType, shape: tuple[int, ...], found: Plan) -> Regs:
    """Emit a plan. Registers that lie past the shape come out as zeros."""
    held = {k: n for k, n in zip(_keys(found.old_layout, shape), names, strict=True) if k is not None}
    registers = _Registers(ctx, held, dtype)
    for bit, position in found.to_warp:
        registers.select(bit, LANE_BITS + position)
    for gone, come, position in found.swaps:
        registers.swap(gone, come, position)
    if found.permutes:
        registers.permute(found)
    for bit, position in found.to_lane:
        registers.select(bit, position)
    return [
        literal(0, dtype) if key is None or key not in registers.names else registers.names[key]
        for key in _keys(found.new_layout, shape)
    ]
