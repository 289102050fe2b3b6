"""Where a lane is: its numbers in the warp, warpgroup, block and cluster, as values."""

from __future__ import annotations

from typing import Any

from kernel_dsl.ir import KernelIR
from kernel_dsl.layout import LANE_BITS, WARP_BITS, Layout

from .value import V
from .writer import Writer

WARPGROUP = 128  # lanes (PTX ISA 9.7.15, 'warpgroup': four contiguous warps)


class Position:
    """The numbers of the lane that runs the code. The prelude computes each of them once."""

    def __init__(self, ir: KernelIR, writer: Writer) -> None:
        self.ir = ir
        self.e = writer
        self.warp_level = False  # inside warp_map: each warp is on its own
        self._numbers: dict[Any, V] = {}  # values computed from the lane's number, by their key

    def special(self, register: str) -> V:
        """A special register of PTX, such as `tid.x`."""
        return self.e.pre(f"call i32 @llvm.nvvm.read.ptx.sreg.{register}()", "i32")

    def thread(self) -> V:
        """The CUDA thread number within the block."""
        return self.special("tid.x")

    def first_lanes(self, x: V) -> V:
        """The i32 of the warp's first lane, in a form that the assembler knows to be uniform over a warp."""
        return self.e.pre(f"call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 {x}, i32 0, i32 31) #0", "i32")

    def warpgroup(self) -> V:
        """The warpgroup's number, uniform over a warp."""
        if self.ir.threads == 1:
            return self.e.i32(0)
        return self.first_lanes(self.thread().once >> 7)

    def local_thread(self) -> V:
        """The thread number within the warpgroup, 0 to 127."""
        if self.ir.threads == 1:
            return self.thread()
        return self.thread().once & WARPGROUP - 1

    def bit_field(self, low: int, count: int) -> V:
        """Bits of the thread number within the warpgroup."""
        found = self._numbers.get((low, count))
        if found is None:
            found = self._numbers[low, count] = self._bits(low, count)
        return found

    def _bits(self, low: int, count: int) -> V:
        shifted = self.local_thread() if low == 0 else self.local_thread().once >> low
        if low + count == LANE_BITS + WARP_BITS:
            return shifted
        return shifted.once & (1 << count) - 1

    def lane_sum(self, terms: list[tuple[int, int]]) -> V:
        """The sum of `weight` over all (bit, weight) whose bit of the thread number is set; in the prelude."""
        key = tuple(sorted(terms))
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._lane_sum(key)
        return found

    def _lane_sum(self, terms: tuple[tuple[int, int], ...]) -> V:
        runs: list[list[int]] = []  # [low bit, count, weight of the low bit]
        for bit, weight in terms:
            if weight == 0:
                continue
            if runs and runs[-1][0] + runs[-1][1] == bit and runs[-1][2] << runs[-1][1] == weight:
                runs[-1][1] += 1
            else:
                runs.append([bit, 1, weight])
        total = self.e.i32(0)
        for low, count, weight in runs:
            total = total.once + self.bit_field(low, count).once * weight
        return total

    def wide_lane_sum(self, terms: list[tuple[int, int]]) -> V:
        """`lane_sum` as i64, bit by bit, for sums that may exceed 31 bits."""
        total = self.e.i64(0)
        for bit, weight in terms:
            total = total.once + self.bit_field(bit, 1).once.zext("i64").once * weight
        return total

    def lane_coord(self, layout: Layout, dim: int) -> V:
        """The lane's share of the index along a dimension, i32."""
        return self.lane_sum([(i, b[1]) for i, b in enumerate(layout.bits) if b is not None and b[0] == dim])

    def owner(self, layout: Layout) -> V | None:
        """A predicate that holds in one of the lanes that replicate a value; None if no lanes replicate it."""
        mask = layout.replicated_mask
        if not mask:
            return None
        if self.warp_level:  # each warp has its own values
            mask &= (1 << LANE_BITS) - 1
            if not mask:
                return None
            if mask == (1 << LANE_BITS) - 1:
                return self.warp_leader()
        return self.none_of(mask)

    def none_of(self, mask: int) -> V:
        """Whether the thread number within the warpgroup has none of these bits."""
        found = self._numbers.get(mask)
        if found is None:
            number = self.local_thread()
            found = (number if mask == WARPGROUP - 1 else number.once & mask).once.equal(0)
            self._numbers[mask] = found
        return found

    def first_lane(self) -> V:
        """Whether this is the warpgroup's first lane; inside `warp_map`, the warp's."""
        return self.warp_leader() if self.warp_level else self.none_of(WARPGROUP - 1)

    def warp_leader(self) -> V:
        """Whether this is its warp's first lane."""
        return self.bit_field(0, LANE_BITS).once.equal(0)

    # --- in the cluster -----------------------------------------------------------------------------

    def cluster_index(self, position: int) -> V:
        """This block's index along a cluster axis."""
        if self.ir.cluster[position].size == 1:
            return self.e.i32(0)
        return self.special(f"cluster.ctaid.{'xyz'[len(self.ir.cluster) - 1 - position]}")

    def cluster_linear(self, axes: tuple[int, ...]) -> V:
        """This block's number among the blocks along some cluster axes, row-major."""
        total = self.e.i32(0)
        for p in axes:
            total = (total.once * self.ir.cluster[p].size).once + self.cluster_index(p)
        return total

    def _rank_weights(self) -> list[int]:
        """The number that one step along each cluster axis adds to the block's rank (%cluster_ctarank: x runs fastest)."""
        weights, step = [0] * len(self.ir.cluster), 1
        for p in reversed(range(len(self.ir.cluster))):
            weights[p] = step
            step *= self.ir.cluster[p].size
        return weights

    def rank_of(self, indices: dict[int, V]) -> V:
        """The rank of the block with these indices along some axes, and this block's own along the others."""
        total = self.e.i32(0)
        for p, weight in enumerate(self._rank_weights()):
            total += (indices.get(p) or self.cluster_index(p)) * weight
        return total

    def cluster_peer(self, axes: tuple[int, ...], number: V) -> V:
        """The rank of block `number` among the blocks along some axes."""
        indices: dict[int, V] = {}
        for p in reversed(axes):
            size = self.ir.cluster[p].size
            indices[p] = number % size
            number = number // size
        return self.rank_of(indices)

    def cluster_mask(self, axes: tuple[int, ...]) -> V:
        """The 16-bit mask of the blocks along some axes, this one included."""
        weights = self._rank_weights()
        mask = 1
        for p in axes:
            mask = sum(mask << i * weights[p] for i in range(self.ir.cluster[p].size))
        others = {p: self.cluster_index(p) for p in range(len(weights)) if p not in axes}
        base = self.rank_of({**others, **dict.fromkeys(axes, self.e.i32(0))})
        return (self.e.i32(mask) << base).trunc("i16")
