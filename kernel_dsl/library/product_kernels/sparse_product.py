"""The inner loop of a product with a sparse left side, whose metadata is in registers.

A product in flight still reads these registers, so an iteration has two stages: the previous iteration loads the
metadata of the first, and the metadata of the second are loaded while the first is multiplied. One product is always in
flight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernel_dsl as kd

from ..stage_product import following_slot

FIRST_TWO = 0x44444444  # metadata beyond the end: TMA writes zeros there, which are not valid metadata


def sparse_product(
    acc: Any,
    slot: Any,
    steps: int,
    stages: int,
    left_of: Callable[[Any], Any],
    right_of: Callable[[Any], Any],
    meta_of: Callable[[Any], Any],
    wait: Callable[[Any], None],
    consumed: Any,
) -> tuple[Any, Any]:
    """acc += the product over `steps` stages of SMEM from `slot` on; returns its value and the slot that follows.

    `left_of(slot)`, `right_of(slot)`: Refs to this warpgroup's A (rows, tile_k / 2) and to B (tile_k, tile_n); `meta_of(slot)`:
    the metadata of A, a value; `wait(slot)` waits for all three.
    """

    def loaded(slot: Any) -> Any:
        wait(slot)
        meta = meta_of(slot)
        return kd.where(meta == 0, kd.uint32(FIRST_TWO), meta)

    def multiply(slot: Any, meta: Any, before: Any, first: Any) -> None:
        kd.wgmma(acc, left_of(slot), right_of(slot), sparse_meta=meta)
        kd.wgmma_wait(1)  # the previous stage is done
        kd.barrier_arrive(consumed.at[before], predicate=first)

    @kd.loop(0, (steps - 1) // 2, init_carry=(slot, slot, loaded(slot)))
    def end(pair: Any, carry: Any) -> Any:
        slot, before, meta = carry
        multiply(slot, meta, before, pair > 0)
        after = following_slot(slot, stages)
        multiply(after, loaded(after), slot, True)
        next_slot = following_slot(after, stages)
        return next_slot, after, loaded(next_slot)

    last, before, meta = end
    multiply(last, meta, before, steps > 2)
    if steps % 2 == 0:
        after = following_slot(last, stages)
        multiply(after, loaded(after), last, True)
        last = after
    value = acc[...]
    kd.barrier_arrive(consumed.at[last])
    return value, following_slot(last, stages)
