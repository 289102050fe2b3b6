"""The warpgroup of Hopper's fast product that loads: the stages of each tile, and what comes with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import kernel_dsl as kd

from ..blocks import own, start_of
from ..stage_ring import StageRing, await_release, copy_rights, fill_stages
from .fed_scales import fed_loads
from .persistent_plan import ProductPlan
from .streamed_tiles import Item


@dataclass(frozen=True)
class ProductOperands:
    """Refs of a product's operands: the left side, the right ones, what is packed with the left one, and scales of both sides."""

    left: Any
    rights: Sequence[Any]
    packs: Sequence[Any] = ()
    scales: tuple[Any, Any] = (None, None)


def produce(plan: ProductPlan, operands: ProductOperands, ring: StageRing) -> None:
    """Load the stages of all tiles of this block."""
    kd.set_max_registers(plan.registers[0], action="decrease")
    p, turns, work = plan.p, plan.turns, plan.work_of()

    @work.loop((0, 0, 0))
    def _(number: Any, carry: Any) -> Any:
        item = work.item(number)
        place = plan.place_of(item.tile)
        batch = place[3]
        sides = operands.left.at[own(batch, p.a_batch)], [b.at[own(batch, p.b_batch)] for b in operands.rights]
        *carry, turn = carry
        tile = _LoadedTile(plan, ProductOperands(*sides, operands.packs, operands.scales), ring, item, place, turn)
        if plan.feed is not None:
            filled = fed_loads(item.count, plan.t.stages, carry[1], tile.scales_at, tile.fill)
            return carry[0], filled, _following(turn, turns)

        def fill(step: Any, slot: Any, filled: Any) -> None:
            tile.fill(step, slot, filled >= plan.t.stages, [])

        return *fill_stages(item.count, plan.t.stages, tuple(carry), fill), _following(turn, turns)


def _following(turn: Any, turns: int) -> Any:
    return kd.where(turn == turns - 1, 0, turn + 1) if turns > 1 else turn


@dataclass(frozen=True)
class _LoadedTile:
    """A tile whose stages are loaded: its operands without batch axes, the steps of an `item` of work, its place and its turn."""

    plan: ProductPlan
    operands: ProductOperands
    ring: StageRing
    item: Item
    place: tuple[Any, Any, Any, tuple[Any, ...]]
    turn: Any

    def scales_at(self, step: Any) -> list[Any]:
        """The scales of a step."""
        plan, (m, n, part, batch) = self.plan, self.place
        assert plan.feed is not None
        first = part * plan.steps if plan.p.parts > 1 else self.item.first
        return plan.feed.loaded(self.operands.scales, m, n, batch, kd.minimum(step, self.item.count - 1) + first)

    def fill(self, step: Any, slot: Any, again: Any, found: list[Any]) -> None:
        """Load a step into a slot, with the scales `found`; `again`: whether consumers must release the slot first."""
        plan, t, ring = self.plan, self.plan.t, self.ring
        await_release(ring.consumed, slot, again)
        part = self.place[2]
        at = self.item.first + step if t.streamed else step if plan.p.parts == 1 else part * plan.steps + step
        left, rights = self._tiles(at)
        full = ring.loaded.at[self.turn * t.stages + slot]
        self._copy_left(left, ring.a_smem.at[slot], full)
        self._copy_packs(at, slot, full)
        axes = "cluster" if t.cluster > 1 else None
        copy_rights(rights, ring.b_smem.at[slot], full, plan.p.b_transposed, axes, t.b_hint)
        if plan.feed is not None:
            plan.feed.store(found, ring.factors_smem.at[slot])
            kd.barrier_arrive(full)

    def _tiles(self, at: Any) -> tuple[Any, list[Any]]:
        """The left and the right sides of a step."""
        plan, (m, n, *_) = self.plan, self.place
        p, t, held = plan.p, plan.t, plan.held
        k = kd.ds(start_of(p, at, t.tile_k, 0), t.tile_k)
        b_k = kd.ds(start_of(p, at, t.tile_k, 1), t.tile_k) if p.thrice else k
        m_slice, n_slice = kd.ds(m, t.tile_m), kd.ds(n, plan.width)
        a_k = kd.ds(at * (t.tile_k // held), t.tile_k // held) if held > 1 else k
        left = self.operands.left.at[(k, m_slice) if p.a_transposed else (m_slice, a_k)]
        return left, [b.at[(n_slice, b_k) if p.b_transposed else (b_k, n_slice)] for b in self.operands.rights]

    def _copy_left(self, tile: Any, place: Any, full: Any) -> None:
        t, low = self.plan.t, self.plan.low
        axes = "cluster_n" if t.cluster_n > 1 else None

        def copy(tile: Any, place: Any) -> None:
            kd.copy_gmem_to_smem(tile, place, full, collective_axes=axes, l2_hint=t.a_hint)

        copy(tile, place) if low is None else low.copy(self.place[0], tile, place, copy)

    def _copy_packs(self, at: Any, slot: Any, full: Any) -> None:
        """Load the scales and zeros of 4-bit numbers, or metadata."""
        p, t, m, marks = self.plan.p, self.plan.t, self.place[0], self.plan.marks
        for number, pack in enumerate(self.operands.packs):
            if p.sparse:
                source, place = pack.at[kd.ds(at * marks, marks), kd.ds(m * 2, 2 * t.tile_m)], (slot,)
            elif p.mxfp4:
                source, place = pack.at[kd.ds(at * 2, 2), kd.ds(m, t.tile_m)], (slot,)
            else:
                source, place = pack.at[kd.div(at, p.int4 // t.tile_k), kd.ds(m, t.tile_m)], (number, slot)
            kd.copy_gmem_to_smem(source, self.ring.factors_smem.at[place], full)
