"""Scans by a function: the digits of an index along the axis are scanned from the least to the greatest, as in `scan.py`.

The function need not commute or have a neutral element. So the earlier element is always the first argument, and the rule
computes from a lane's position whether there is an earlier element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from kernel_dsl.dtypes import DType
from kernel_dsl.ir import layout_of
from kernel_dsl.layout import LANE_BITS, Bit, Layout
from kernel_dsl.ops.associative import AssociativeScan, digits, of_block

from ..context import Context, Rules
from ..value import Regs, V
from .reduce import gather_warps, shuffle

_T = TypeVar("_T")


@dataclass(frozen=True)
class ScanBlock:
    """The registers of each value that a lane holds at one place along the axis, in the order of the block's layout."""

    parts: tuple[tuple[V, ...], ...]


def lower_associative_scan(ctx: Context, op: AssociativeScan) -> None:
    scan = _Scan(ctx, op)
    for stride, where, which in scan.digits:
        if where == "reg":
            scan.registers(stride, which)
        else:
            scan.bit(stride, which)
    scan.finish()
    for leaf, (result, axis) in enumerate(zip(op.results, op.axes, strict=True)):
        layout = layout_of(result)
        found: dict[int, V] = {}
        for share, block in scan.values.items():
            for place, name in zip(_places(layout, axis, share), block.parts[leaf], strict=True):
                found[place] = name
        ctx.values[result] = [found[place] for place in range(layout.registers)]


def _places(layout: Layout, axis: int, share: int) -> list[int]:
    """The registers at one register coordinate along the axis, in the order of a block's."""
    coords = of_block(layout, axis).register_coords
    return [layout.register_of[tuple(share if d == axis else c for d, c in enumerate(coord))] for coord in coords]


class _Scan:
    """The state between digits, by a register's coordinate ("share") along the axis.

    `values`: each combined with the earlier elements of its run; `totals`: totals of blocks, by their least share;
    `before`: for each run, the combination of all earlier elements within the block of the finished digits, if it has
    any (`_exists`). Runs begin at the first digit of a lane or warp; at the end each takes in its `before`.
    """

    def __init__(self, ctx: Context, op: AssociativeScan) -> None:
        self.ctx = ctx
        self.op = op
        self.layout, self.axis = layout_of(op.xs[0]), op.axes[0]
        self.extent: int = op.xs[0].type.shape[self.axis]
        self.never = ctx.e.value("false", "i1")
        self.dtypes: list[DType] = [x.type.dtype for x in op.xs]
        self.digits = digits(self.layout, self.axis)
        shares = sorted({coord[self.axis] for coord in self.layout.register_coords})
        self.values = {share: self._block(share) for share in shares}
        self.totals = dict(self.values)
        self.run = 0
        self.before: dict[int, ScanBlock] = {}

    def _block(self, share: int) -> ScanBlock:
        parts: list[tuple[V, ...]] = []
        for x, axis in zip(self.op.xs, self.op.axes, strict=True):
            names = self.ctx.regs(x)
            parts.append(tuple(names[place] for place in _places(layout_of(x), axis, share)))
        return ScanBlock(tuple(parts))

    # --- where a lane is --------------------------------------------------------------------------

    def _lane(self, low: int, high: int) -> tuple[V, int]:
        """The lane's part of the index in digits with strides from `low` to below `high`, and its largest value."""
        bits = [(i, s) for s, where, i in self.digits if where == "bit" and low <= s < high]
        return self.ctx.lane_sum(bits), sum(s for _, s in bits)

    def _below(self, share: int, low: int, high: int, limit: int) -> V | None:
        """Whether `share` plus the lane's part is below a limit. None: always."""
        lane, reach = self._lane(low, high)
        if share + reach < limit:
            return None
        return self.never if share >= limit else lane.once.lt(limit - share)

    def _holds(self, share: int, stride: int) -> V | None:
        """Whether a block that begins at this share has elements of the shape, which come first in it."""
        return self._below(share, stride, self.layout.padded[self.axis], self.extent)

    def _exists(self, run: int, size: int) -> V | None:
        """Whether elements precede a run within its block of this size."""
        share = run % size
        if self.op.reverse:
            within = self._below(share + self.run, self.run, size, size)
            return within if within == "false" else self._and(within, self._holds(run + self.run, self.run))
        if share:
            return None
        lane, reach = self._lane(self.run, size)
        return lane.once.differs(0) if reach else self.never

    def _and(self, a: V | None, b: V | None) -> V | None:
        return self.never if "false" in (a, b) else self.ctx.e.both(a, b)

    # --- combining --------------------------------------------------------------------------------

    def _pair(self, earlier: ScanBlock, later: ScanBlock, exists: V | None = None) -> ScanBlock:
        """`fn(earlier, later)`; `later` alone if the earlier one does not exist."""
        if exists == "false":
            return later
        ctx, combine = self.ctx, self.op.combine
        for arg, names in zip(combine.args, (*earlier.parts, *later.parts), strict=True):
            ctx.values[arg] = list(names)
        made = ScanBlock(tuple(tuple(ctx.regs(v)) for v in ctx.region(combine)))
        return made if exists is None else self._choose(exists, made, later)

    def _choose(self, predicate: V, a: ScanBlock, b: ScanBlock) -> ScanBlock:
        columns = zip(a.parts, b.parts, strict=True)
        return ScanBlock(
            tuple(tuple(predicate.where(x, y) for x, y in zip(*column, strict=True)) for column in columns)
        )

    def _ordered(self, items: list[_T]) -> list[_T]:
        return items[::-1] if self.op.reverse else items

    # --- digits -----------------------------------------------------------------------------------

    def registers(self, stride: int, size: int) -> None:
        """Scan blocks that lie in one lane."""
        fresh = stride == 1 and not self.run  # the total of one element is its own result
        before: dict[int, ScanBlock] = {}
        totals: dict[int, ScanBlock] = {}
        for outer in [share for share in self.totals if share // stride % size == 0]:
            total: ScanBlock | None = None
            last = 0
            for share in self._ordered([outer + digit * stride for digit in range(size)]):
                own = self.totals[share]
                if total is not None:
                    holds = self._holds(last, stride) if self.op.reverse else None
                    before[share] = total
                    own = self._pair(total, own, holds)
                    if fresh:
                        self.values[share] = own
                total, last = own, share
            assert total is not None
            totals[outer] = total
        if self.run:
            self._put_before(before, stride, None)
        elif not fresh:
            for share, value in self.values.items():
                block = share - share % stride
                if block in before:
                    self.values[share] = self._pair(before[block], value, self._holds_next(block, stride))
        self.totals = totals

    def _holds_next(self, block: int, stride: int) -> V | None:
        """Whether the block before this one, in the scan's order, has elements."""
        return self._holds(block + stride, stride) if self.op.reverse else None

    def bit(self, stride: int, number: int) -> None:
        """Scan two blocks that lie in two lanes or two warps."""
        self.run = self.run or stride
        field = self.ctx.bit_field(number, 1).once
        later = field.equal(0) if self.op.reverse else field.differs(0)
        pairs = self._lanes(number, later) if number < LANE_BITS else self._warps(stride, number)
        earlier = {share: first for share, (first, _) in pairs.items()}
        self._put_before(earlier, stride, later)
        if any(s > stride for s, _, _ in self.digits):
            totals: dict[int, ScanBlock] = {}
            for share, (first, second) in pairs.items():
                holds = None
                if self.op.reverse:  # the first place of the upper block: the lane's, with the bit set
                    holds = self._below(share + stride, stride * 2, self.layout.padded[self.axis], self.extent)
                totals[share] = self._pair(first, second, holds)
            self.totals = totals

    def _lanes(self, number: int, later: V) -> dict[int, tuple[ScanBlock, ScanBlock]]:
        """(the earlier total, the later one) of the two lanes."""
        out: dict[int, tuple[ScanBlock, ScanBlock]] = {}
        for share, own in self.totals.items():
            other = ScanBlock(
                tuple(tuple(shuffle(self.ctx, x, "bfly", 1 << number) for x in part) for part in own.parts)
            )
            out[share] = self._choose(later, other, own), self._choose(later, own, other)
        return out

    def _warps(self, stride: int, number: int) -> dict[int, tuple[ScanBlock, ScanBlock]]:
        """(the earlier total, the later one) of two warps, through SMEM."""
        shares = list(self.totals)
        halves: list[list[list[tuple[V, ...]]]] = [[[], []] for _ in shares]
        for leaf, (x, axis, dtype) in enumerate(zip(self.op.xs, self.op.axes, self.dtypes, strict=True)):
            kept = self._others(layout_of(x), axis, stride, number)
            flat: Regs = [name for share in shares for name in self.totals[share].parts[leaf]]
            parts = iter(gather_warps(self.ctx, flat, dtype, kept, [number - LANE_BITS]))
            for place, share in enumerate(shares):
                found = [next(parts) for _ in self.totals[share].parts[leaf]]
                for half in (0, 1):
                    halves[place][half].append(tuple(pair[half] for pair in found))
        order = self._ordered([0, 1])
        return {
            share: (ScanBlock(tuple(both[order[0]])), ScanBlock(tuple(both[order[1]])))
            for share, both in zip(shares, halves, strict=True)
        }

    def _others(self, layout: Layout, axis: int, stride: int, number: int) -> Layout:
        """The bits by which lanes and warps hold different totals: all except those of finished digits and this one."""

        def keep(bit: Bit, i: int) -> Bit:
            done = bit is not None and bit[0] == axis and bit[1] < stride
            return None if done or i == number else bit

        bits = [keep(b, i) for i, b in enumerate(layout.bits)]
        return Layout(layout.rank, (), tuple(bits[:LANE_BITS]), tuple(bits[LANE_BITS:]))

    def _put_before(self, earlier: dict[int, ScanBlock], stride: int, later: V | None) -> None:
        """Combine `earlier` with all runs in blocks of this stride, in the lanes whose block is the later one."""
        for run in sorted({share - share % self.run for share in self.values}):
            block = run - run % stride
            first = earlier.get(block)
            if first is None:
                continue
            had = self.before.get(run)
            if had is None:  # no earlier elements in smaller blocks; `_exists` says where this value counts
                self.before[run] = first
                continue
            within = self._exists(run, stride)
            joined = first if within == "false" else self._pair(first, had)
            if within not in (None, "false"):
                joined = self._choose(within, joined, first)
            predicate = later
            if self.op.reverse and later is not None:
                there = self._below(block + stride, stride * 2, self.layout.padded[self.axis], self.extent)
                predicate = self._and(later, there)
            elif self.op.reverse:
                predicate = self._holds(block + stride, stride)
            if predicate == "false":
                continue
            self.before[run] = joined if predicate is None else self._choose(predicate, joined, had)

    def finish(self) -> None:
        """Combine every run with the elements before it."""
        if not self.run:
            return
        for share, value in self.values.items():
            run = share - share % self.run
            had = self.before.get(run)
            if had is not None:
                self.values[share] = self._pair(had, value, self._exists(run, self.layout.padded[self.axis]))


RULES: Rules = {AssociativeScan: lower_associative_scan}
