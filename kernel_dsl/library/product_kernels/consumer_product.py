"""The products of a consumer of Hopper's fast product: one tile over its stages, by the inner loop that the problem needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernel_dsl as kd
from kernel_dsl.layouts import meta_layout, meta_step

from ..products.int4_numbers import HALF, bytes_of, factors_of, floats_widened, widened
from ..products.matmul_config import MatmulConfig
from ..products.problem import Problem
from ..stage_product import stage_product
from ..stage_ring import StageRing
from .fed_scales import FedScales, fed_product
from .promoted_product import RUN, promoted_product
from .register_product import register_product
from .scaled_product import Scales, scaled_product
from .sparse_product import sparse_product


def from_registers(p: Problem) -> bool:
    """Whether the left side goes through registers.

    They widen it, or transpose it, because wgmma reads 32-bit elements only along K.
    """
    return p.dtype.itemsize != p.b_dtype.itemsize or (p.dtype.itemsize == 4 and p.a_transposed)


class ConsumerProduct:
    """The products of the consumer that has part `share` of a tile's rows, and turn `turn` of the tiles.

    `steps`: the stages of a part of K; `scales`: the operands with scales by blocks of K; `feed`: such scales in SMEM.
    """

    def __init__(
        self, p: Problem, t: MatmulConfig, steps: Any, share: Any, turn: Any, ring: StageRing, scales: Any,
        feed: FedScales | None,
    ) -> None:  # fmt: skip
        self.p, self.t, self.steps, self.share, self.turn = p, t, steps, share, turn
        self.ring, self.scales, self.feed = ring, scales, feed

    def of(self, item: Any, place: Any, slot: Any, gathered: Callable[[Any], Any]) -> Callable[..., Any]:
        """The function of accumulators that multiplies an item, and returns its sums and the slot after it.

        `place`: (first row, first column, part of K, batch indices); `slot`: the item's first stage; `gathered`: adds the sums of
        other blocks.
        """
        p, t, steps, share = self.p, self.t, self.steps, self.share
        loaded, consumed = self.ring.loaded, self.ring.consumed
        m, n, part, batch = place
        rows = t.rows

        def multiply(acc: Any) -> Any:
            return stage_product(
                acc, slot, item.count, t.stages, self._turned_left, self._right, self._loaded_of, consumed
            )

        def multiply_from_registers(acc: Any) -> Any:
            parts = t.tile_k // HALF if p.int4 else 2
            return register_product(
                acc, slot, item.count, t.stages, self._widened, self._right, loaded, consumed, self._held, parts
            )

        def multiply_scaled(acc: Any, other: Any = None) -> Any:
            if self.feed is not None:
                value = fed_product(
                    acc, item.count, t.stages, self._left, self._right, self._loaded_of, consumed, self.feed,
                    self.ring.factors_smem, share * rows, n, gathered,
                )  # fmt: skip
                return value, slot
            own = Scales(p, self.scales[0], self.scales[1], m + share * rows, n, rows, batch)
            first = 0 if p.parts == 1 else part * steps
            return scaled_product(
                acc, slot, steps, t.stages, self._left, self._right, loaded, consumed, own, first, other
            )

        def multiply_sparse(acc: Any) -> Any:
            return sparse_product(acc, slot, steps, t.stages, self._left, self._right, self._meta, self._wait, consumed)

        def multiply_promoted(acc: Any) -> Any:
            run = RUN // t.tile_k
            return promoted_product(acc, slot, steps, run, self._wait, self._left, self._right, t.stages, consumed)

        if p.sparse:
            return multiply_sparse
        if p.promoted and steps * t.tile_k > RUN:
            return multiply_promoted
        return multiply_scaled if p.scaled else multiply_from_registers if from_registers(p) else multiply

    @property
    def own_rows(self) -> Any:
        return kd.ds(self.share * self.t.rows, self.t.rows)

    def _left(self, slot: Any) -> Any:
        return self.ring.left(slot, self.own_rows, False)

    def _turned_left(self, slot: Any) -> Any:
        """The left side of a stage, which may lie across K."""
        return self.ring.left(slot, self.own_rows, self.p.a_transposed)

    def _right(self, slot: Any) -> Any:
        return self.ring.right(slot, self.p.b_transposed)

    def _loaded_of(self, slot: Any) -> Any:
        return self.ring.loaded.at[self.turn * self.t.stages + slot]

    def _wait(self, slot: Any) -> None:
        kd.barrier_wait(self._loaded_of(slot))

    def _held(self, slot: Any) -> tuple[Any, ...]:
        """The bytes of a stage's 4-bit numbers, part by part, and scales and zeros of its rows, or scales for each part."""
        p = self.p
        if not p.int4:
            return ()
        own = self.own_rows
        parts = range(self.t.tile_k // HALF)
        held = tuple(bytes_of(self.ring.a_smem.at[slot, own], part) for part in parts)
        if p.mxfp4:
            return *held, *(kd.load(self.ring.factors_smem.at[slot, i, own], layout=kd.Layout.WGMMA_ROW) for i in parts)
        count = 1 + p.int4_zeros
        pair = [kd.load(self.ring.factors_smem.at[i, slot, own], layout=kd.Layout.WGMMA_ROW) for i in range(count)]
        return *held, *factors_of(pair[0], pair[1] if count > 1 else None, p.b_dtype)

    def _widened(self, slot: Any, part: int, held: Any) -> Any:
        """A part of a stage's left side, in registers for wgmma: half of it, or 32 elements of K for 4-bit numbers."""
        p, t = self.p, self.t
        if p.int4:
            bytes_, factors = held[part], held[t.tile_k // HALF :]
            if p.mxfp4:
                return floats_widened(bytes_, factors[part], p.b_dtype)
            return widened(bytes_, factors, p.b_dtype)
        k = slice(part * t.tile_k // 2, (part + 1) * t.tile_k // 2)
        if p.a_transposed:
            return kd.load(self.ring.a_smem.at[slot, k, self.own_rows].T, layout=kd.Layout.WGMMA_TF32)
        return kd.load(self.ring.a_smem.at[slot, self.own_rows, k], layout=kd.Layout.WGMMA).astype(p.b_dtype)

    def _meta(self, slot: Any) -> Any:
        """A stage's metadata of a sparse left side."""
        marks, rows = self.t.tile_k // meta_step(self.p.dtype), self.t.rows
        words = self.ring.factors_smem.at[slot, :, kd.ds(self.share * 2 * rows, 2 * rows)]
        return kd.load(words, layout=meta_layout((marks, 2 * rows)))
