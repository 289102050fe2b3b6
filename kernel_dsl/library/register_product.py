"""The inner loop of a product whose left side goes from SMEM through registers to the tensor cores.

Lanes widen it in registers (int8 times bfloat16), or transpose it: wgmma reads operands of 32 bits from SMEM only along
K, but registers may hold its left side in any order.

A step's K has two parts or more. While the tensor cores multiply one part, this warpgroup loads the next. One product
is always in flight, across steps too. So a part's registers are written again only when its product is done, and a
stage is released when the first part of the next stage is in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernel_dsl as kd

from .stage_product import following_slot


def register_product(
    acc: Any,
    slot: Any,
    steps: int,
    stages: int,
    left_of: Callable[[Any, int, Any], Any],
    right_of: Callable[[Any], Any],
    loaded: Any,
    consumed: Any,
    factors_of: Callable[[Any], tuple[Any, ...]] = lambda slot: (),
    parts: int = 2,
) -> tuple[Any, Any]:
    """acc += the product over `steps` stages of SMEM from `slot` on; returns its value and the slot that follows.

    `left_of(slot, part, factors)` is a part (rows, tile_k / parts) of this warpgroup's A, as a value; `right_of(slot)` a Ref to
    B (tile_k, tile_n); `factors_of(slot)` are values that all parts use.
    """

    def multiply(slot: Any, index: int, left: Any) -> None:
        right = right_of(slot)
        depth = right.shape[0] // parts
        kd.wgmma(acc, left, right.at[index * depth : (index + 1) * depth])

    def products(slot: Any, left: Any, factors: Any, before: Any, step: Any) -> None:
        multiply(slot, 0, left)
        kd.wgmma_wait(1)  # the last part of the previous step is done
        kd.barrier_arrive(consumed.at[before], predicate=step > 0)
        multiply(slot, 1, left_of(slot, 1, factors))
        for index in range(2, parts):
            kd.wgmma_wait(1)
            multiply(slot, index, left_of(slot, index, factors))

    kd.barrier_wait(loaded.at[slot])

    factors = factors_of(slot)

    @kd.loop(0, steps - 1, init_carry=(slot, slot, left_of(slot, 0, factors), *factors))
    def end(step: Any, carry: Any) -> Any:
        slot, before, left, *factors = carry
        products(slot, left, factors, before, step)
        kd.wgmma_wait(1)  # the part before the last is done, so its registers are free
        after = following_slot(slot, stages)
        kd.barrier_wait(loaded.at[after])
        factors = factors_of(after)
        return after, slot, left_of(after, 0, factors), *factors

    last, before, left, *factors = end
    products(last, left, factors, before, steps - 1)
    value = acc[...]
    kd.barrier_arrive(consumed.at[last])
    return value, following_slot(last, stages)
