"""The inner loop of a product whose left side goes from SMEM through registers to the tensor cores.

Lanes widen it in registers (int8 times bfloat16), or transpose it: wgmma reads operands of 32 bits from SMEM only along
K, but registers may hold its left side in any order.

A step's K has two parts or more. While the tensor cores multiply one part, this warpgroup loads the next. One product
is always in flight, across steps too. So a part's registers are written again only when its product is done, and a
stage is released when the first part of the next stage is in flight.

Lanes may also hold a stage's elements before they widen them. They load those of the next stage before they widen the last part
of a stage, so no part waits for SMEM: a warpgroup with few products has nothing else to do meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernel_dsl as kd

from ..stage_product import following_slot


def register_product(
    acc: Any,
    slot: Any,
    steps: int,
    stages: int,
    left_of: Callable[[Any, int, Any], Any],
    right_of: Callable[[Any], Any],
    loaded: Any,
    consumed: Any,
    held_of: Callable[[Any], tuple[Any, ...]] = lambda slot: (),
    parts: int = 2,
) -> tuple[Any, Any]:
    """acc += the product over `steps` stages of SMEM from `slot` on; returns its value and the slot that follows.

    `left_of(slot, part, held)` is a part (rows, tile_k / parts) of this warpgroup's A, as a value; `right_of(slot)` a Ref to
    B (tile_k, tile_n); `held_of(slot)` are values that all parts use, loaded a part ahead.
    """

    def multiply(slot: Any, index: int, left: Any) -> None:
        right = right_of(slot)
        depth = right.shape[0] // parts
        kd.wgmma(acc, left, right.at[index * depth : (index + 1) * depth])

    def follow(slot: Any) -> tuple[Any, tuple[Any, ...]]:
        after = following_slot(slot, stages)
        kd.barrier_wait(loaded.at[after])
        return after, held_of(after)

    def products(slot: Any, left: Any, held: Any, before: Any, step: Any, last: bool) -> Any:
        """Multiply all parts of a stage; returns the next slot and its values, unless it is the last."""
        found: Any = None
        multiply(slot, 0, left)
        kd.wgmma_wait(1)  # the last part of the previous step is done
        kd.barrier_arrive(consumed.at[before], predicate=step > 0)
        for index in range(1, parts):
            if held and not last and index == parts - 1:
                found = follow(slot)
            if index > 1:
                kd.wgmma_wait(1)
            multiply(slot, index, left_of(slot, index, held))
        return found

    kd.barrier_wait(loaded.at[slot])

    held = held_of(slot)

    @kd.loop(0, steps - 1, init_carry=(slot, slot, left_of(slot, 0, held), *held))
    def end(step: Any, carry: Any) -> Any:
        slot, before, left, *held = carry
        found = products(slot, left, held, before, step, False)
        kd.wgmma_wait(1)  # the part before the last is done, so its registers are free
        after, held = follow(slot) if found is None else found
        return after, slot, left_of(after, 0, held), *held

    last, before, left, *held = end
    products(last, left, held, before, steps - 1, True)
    value = acc[...]
    kd.barrier_arrive(consumed.at[last])
    return value, following_slot(last, stages)
