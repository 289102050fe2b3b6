"""The common layout of values that span different dimensions of a shape. The layouts of these values are its reductions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .conversion import cost
from .dataclass import dataclass
from .layout import LANE_BITS, WARP_BITS, Bit, Layout, blocked

BITS = LANE_BITS + WARP_BITS
FEW = 32  # the most registers of copies that a lane may hold
HELD = 8  # with at most so many registers of a value that all lanes hold, each lane selects its own elements


@dataclass(frozen=True)
class MetPart:
    """A value's layout, of the full rank, its shape, in which some extents are 1, and whether its elements have 64 bits."""

    layout: Layout
    shape: tuple[int, ...]
    wide: bool = False

    def stretched(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The dimensions in which it is smaller than the full shape."""
        return tuple(d for d, (a, b) in enumerate(zip(self.shape, shape, strict=True)) if a != b)

    def spread(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The dimensions that its layout spreads."""
        return tuple(d for d, (a, b) in enumerate(zip(self.shape, shape, strict=True)) if a == b and a > 1)


def union(parts: Sequence[MetPart], shape: tuple[int, ...]) -> Layout:
    """The cheapest common layout of `shape` for the parts: a part is the union's reduction, or it is converted.

    Bits of the thread number that no part uses go to dimensions that no part has. Parts that all lanes hold need no
    layout: if all parts are so, the layout is that of coalesced access, and each lane does a share of the work.
    """
    if all(p.layout.bits == (None,) * BITS for p in parts) and prod(p.layout.registers for p in parts) <= HELD:
        return blocked(shape)

    def loss(made: Layout) -> int:
        return sum(cost(p.layout, made.reduce(p.stretched(shape)), p.shape, p.wide) for p in parts)

    candidates = [_union((p, *parts[:i], *parts[i + 1 :]), shape) for i, p in enumerate(parts)]
    return min(candidates, key=loss)  # the first of equally cheap ones


def agree(parts: Sequence[MetPart], whole: Layout, shape: tuple[int, ...]) -> bool:
    """Whether the parts have the layouts of their elements in `whole`, the layout of all of `shape`, so that none moves."""
    return all(not cost(p.layout, whole.reduce(p.stretched(shape)), p.shape, p.wide) for p in parts)


def _union(parts: Sequence[MetPart], shape: tuple[int, ...]) -> Layout:
    """The union of the parts; an earlier part decides before a later one."""
    bits: list[Bit] = [None] * BITS
    regs: list[tuple[int, int, int]] = []
    taken: set[int] = set()
    for part in parts:
        own = part.spread(shape)
        layout = part.layout.reduce(set(range(len(shape))) - set(own))
        clash = any(a is not None and b is not None for a, b in zip(bits, layout.bits, strict=True))
        if clash or not taken.isdisjoint(own):
            continue
        bits = [a or b for a, b in zip(bits, layout.bits, strict=True)]
        regs += layout.regs
        taken.update(own)
    rest = {d: n for d, n in enumerate(shape) if d not in taken}
    held = prod(n for _, n, _ in regs) * prod(rest.values()) >> bits[:LANE_BITS].count(None)
    # data that every warp holds stays so if a lane has room for it: then no warp needs another
    free = BITS if any(bits[LANE_BITS:]) or held > FEW else LANE_BITS
    for dim in reversed(rest):
        reach = 1
        for place in range(free):
            if bits[place] is None and reach < shape[dim]:
                bits[place] = (dim, reach)
                reach *= 2
        regs.append((dim, -(-shape[dim] // reach), reach))
    _share_out(bits, regs, shape)
    return Layout(len(shape), tuple(regs), tuple(bits[:LANE_BITS]), tuple(bits[LANE_BITS:]))


def _share_out(bits: list[Bit], regs: list[tuple[int, int, int]], shape: tuple[int, ...]) -> None:
    """If copies in all lanes take too many registers of a lane, bits that replicate take some of the elements."""
    most = max(FEW, prod(shape) >> BITS)
    for place, held in enumerate(bits):
        halves = [i for i, (_, size, _) in enumerate(regs) if size % 2 == 0]
        if held is None and halves and prod(n for _, n, _ in regs) > most:
            last = max(halves, key=lambda i: (regs[i][0], -regs[i][2]))
            dim, size, stride = regs[last]
            regs[last] = (dim, size // 2, stride * 2)
            bits[place] = (dim, stride)
