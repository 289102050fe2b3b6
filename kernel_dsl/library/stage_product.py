"""The inner loop of a product of two operands in SMEM: stage after stage, with one product always in flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernel_dsl as kd


def following_slot(slot: Any, stages: int) -> Any:
    """The slot of the stage after the one in `slot`."""
    return kd.where(slot == stages - 1, 0, slot + 1)


def stage_product(
    acc: Any,
    slot: Any,
    steps: Any,
    stages: int,
    left_of: Callable[[Any], Any],
    right_of: Callable[[Any], Any],
    loaded_of: Callable[[Any], Any],
    consumed: Any,
) -> tuple[Any, Any]:
    """acc += the product over `steps` stages, at least one, from `slot` on; returns its value and the slot that follows.

    `left_of(slot)`, `right_of(slot)`: Refs to this warpgroup's A (rows, tile_k) and to B (tile_k, tile_n);
    `loaded_of(slot)`: the barrier of both loads.
    """

    @kd.loop(0, steps, init_carry=(slot, slot))
    def end(step: Any, carry: Any) -> Any:
        slot, before = carry
        kd.barrier_wait(loaded_of(slot))
        kd.wgmma(acc, left_of(slot), right_of(slot))
        kd.wgmma_wait(1)
        kd.barrier_arrive(consumed.at[before], predicate=step > 0)
        return following_slot(slot, stages), slot

    slot_after, last = end
    value = acc[...]
    kd.barrier_arrive(consumed.at[last])
    return value, slot_after
