"""Running reductions: the digits of an index along the axis are scanned from the least to the greatest.

A digit lives in the registers, in a bit of the lane number or in a bit of the warp number. After the digits below some
stride are done, each lane knows the totals of its blocks of that size, and the next digit adds the totals of the blocks
before. Before the first digit of a lane or a warp, this total is added to each register at once. From there on, one total is
kept for each run of registers and added at the end, so a digit costs a few instructions for each run, not for each register.
All operations commute, so both lanes of a pair may add in their own order.
"""

from __future__ import annotations

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.layout import LANE_BITS, Layout
from kernel_dsl.ops.scan import Scan

from ..context import Context, Rules
from ..value import Regs, V
from .reduce import Combiner, gather_warps, masked, shuffle


def lower_scan(ctx: Context, op: Scan) -> None:
    layout = layout_of(op.x)
    dtype: DType = op.x.type.dtype
    shape: tuple[int, ...] = op.x.type.shape
    combine = Combiner(ctx, op.kind, dtype)
    start = masked(ctx, ctx.regs(op.x), layout, shape, (op.axis,), combine.identity)
    scan = _Running(ctx, op, combine, layout, dtype, start)
    digits: list[tuple[int, str, int]] = [(s, "reg", n) for d, n, s in layout.regs if d == op.axis]
    for i, bit in enumerate(layout.bits):
        if bit is not None and bit[0] == op.axis:
            digits.append((bit[1], "lane" if i < LANE_BITS else "warp", i))
    for stride, where, which in sorted(digits):
        if where == "reg":
            scan.registers(stride, which)
        elif where == "lane":
            scan.lane(which)
        else:
            scan.warp(which - LANE_BITS)
    ctx.values[op.result] = scan.finish()


class _Running:
    """The state between digits: `values` by register; `totals` by register coordinate with scanned digits at zero.

    In an exclusive scan, a value is None while no element precedes it.
    """

    def __init__(self, ctx: Context, op: Scan, combine: Combiner, layout: Layout, dtype: DType, names: Regs) -> None:
        self.ctx = ctx
        self.combine = combine
        self.dtype = dtype
        self.layout = layout
        self.axis = op.axis
        self.reverse = op.reverse
        self.values: list[V | None] = [None if op.exclusive else name for name in names]
        self.scanned = 1  # digits of a smaller stride are done
        self.run = 0  # the size of the runs that `before` describes; 0 while there are none
        self.before: dict[tuple[int, ...], V] = {}  # the total before each run, by its coordinate
        self.totals = dict(zip(layout.register_coords, names, strict=True))

    def block(self, coord: tuple[int, ...], size: int) -> tuple[int, ...]:
        """The coordinate of the block of this size that a register is in."""
        share = coord[self.axis]
        rest = share - share % size
        return tuple(rest if d == self.axis else c for d, c in enumerate(coord))

    def add(self, before: dict[tuple[int, ...], V], predicate: V | None = None) -> None:
        """Combine all elements of a block with the total before it, by coordinate, if the predicate holds."""
        if not self.run and predicate is None:
            for i, coord in enumerate(self.layout.register_coords):
                earlier = before.get(self.block(coord, self.scanned))
                if earlier is not None:
                    self.values[i] = self._joined(earlier, self.values[i])
            return
        self.run = self.run or self.scanned
        for run in dict.fromkeys(self.block(c, self.run) for c in self.layout.register_coords):
            earlier = before.get(self.block(run, self.scanned))
            if earlier is not None:
                self.before[run] = self._in_front(earlier, self.before.get(run), predicate)

    def _joined(self, earlier: V, value: V | None) -> V:
        return earlier if value is None else self.combine.pair(earlier, value)

    def _later(self, bit: int) -> V:
        """Whether the lane's block is the later one of two that differ in a bit of the thread number."""
        field = self.ctx.bit_field(bit, 1).once
        return field.equal(0) if self.reverse else field.differs(0)

    def _in_front(self, earlier: V, before: V | None, predicate: V | None) -> V:
        """`earlier` combined with `before` if the predicate holds, else `before` alone."""
        joined = self._joined(earlier, before)
        if predicate is None:
            return joined
        return predicate.where(joined, self.combine.identity if before is None else before)

    def finish(self) -> Regs:
        """Every register's running value."""
        out: Regs = []
        for name, coord in zip(self.values, self.layout.register_coords, strict=True):
            earlier = self.before.get(self.block(coord, self.run)) if self.run else None
            if earlier is None:
                out.append(self.combine.identity if name is None else name)
            else:
                out.append(self._joined(earlier, name))
        return out

    def registers(self, stride: int, size: int) -> None:
        self.scanned = stride
        before: dict[tuple[int, ...], V] = {}
        totals: dict[tuple[int, ...], V] = {}
        for coord, total in sorted(self.totals.items(), reverse=self.reverse):
            digit = coord[self.axis] // stride % size
            outer = tuple(c - digit * stride if d == self.axis else c for d, c in enumerate(coord))
            if outer not in totals:
                totals[outer] = total
            else:
                before[coord] = totals[outer]
                totals[outer] = self.combine.pair(totals[outer], total)
        self.add(before)
        self.totals = totals
        self.scanned = stride * size

    def lane(self, bit: int) -> None:
        ctx = self.ctx
        later = self._later(bit)
        stride = self.layout.bits[bit]
        assert stride is not None
        self.scanned = stride[1]
        others = {coord: shuffle(ctx, total, "bfly", 1 << bit) for coord, total in self.totals.items()}
        self.add(others, later)
        self.totals = {coord: self.combine.pair(total, others[coord]) for coord, total in self.totals.items()}
        self.scanned = stride[1] * 2

    def warp(self, bit: int) -> None:
        stride = self.layout.warps[bit]
        assert stride is not None
        self.scanned = stride[1]
        kept = self._others(bit)
        coords = list(self.totals)
        later = self._later(LANE_BITS + bit)
        totals: dict[tuple[int, ...], V] = {}
        earlier: dict[tuple[int, ...], V] = {}
        parts = gather_warps(self.ctx, [self.totals[c] for c in coords], self.dtype, kept, [bit])
        for coord, (first, second) in zip(coords, parts, strict=True):
            earlier[coord] = second if self.reverse else first
            totals[coord] = self.combine.pair(first, second)
        self.add(earlier, later)
        self.totals = totals
        self.scanned = stride[1] * 2

    def _others(self, bit: int) -> Layout:
        """The bits by which lanes and warps hold different totals: all except those of finished digits and this one."""

        def keep(b: tuple[int, int] | None, number: int) -> tuple[int, int] | None:
            if b is None or number == LANE_BITS + bit:
                return None
            return None if b[0] == self.axis and b[1] < self.scanned else b

        bits = [keep(b, i) for i, b in enumerate(self.layout.bits)]
        return Layout(self.layout.rank, (), tuple(bits[:LANE_BITS]), tuple(bits[LANE_BITS:]))


RULES: Rules = {Scan: lower_scan}
