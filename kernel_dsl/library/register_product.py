"""The inner loop of a product whose left side comes from registers, on its way from SMEM to the tensor cores.

It is widened there (int8 times bfloat16), or turned: wgmma reads operands of 32 bits in SMEM along K only, but the
registers of its left side come from anywhere.

A step's K is cut in two parts. While the tensor cores work on one, this warpgroup loads the next. One product is always in
flight, across steps too: a part's registers are written again only when its product is done, and a stage is given back once
the first part of the next one is under way.
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
    left_of: Callable[[Any, int], Any],
    right_of: Callable[[Any], Any],
    loaded: Any,
    consumed: Any,
) -> tuple[Any, Any]:
    """acc += the product over `steps` stages of SMEM from `slot` on; returns its value and the slot that follows.

    `left_of(slot, half)` is a half (rows, tile_k / 2) of this warpgroup's A, as a value; `right_of(slot)` a Ref to B
    (tile_k, tile_n).
    """

    def multiply(slot: Any, index: int, left: Any) -> None:
        right = right_of(slot)
        half = right.shape[0] // 2
        kd.wgmma(acc, left, right.at[index * half : (index + 1) * half])

    def products(slot: Any, left: Any, before: Any, step: Any) -> None:
        multiply(slot, 0, left)
        kd.wgmma_wait(1)  # the second half of the step before is done
        kd.barrier_arrive(consumed.at[before], predicate=step > 0)
        multiply(slot, 1, left_of(slot, 1))

    kd.barrier_wait(loaded.at[slot])

    @kd.loop(0, steps - 1, init_carry=(slot, slot, left_of(slot, 0)))
    def end(step: Any, carry: Any) -> Any:
        slot, before, left = carry
        products(slot, left, before, step)
        kd.wgmma_wait(1)  # the first half is done, and its registers are free
        after = following_slot(slot, stages)
        kd.barrier_wait(loaded.at[after])
        return after, slot, left_of(after, 0)

    last, before, left = end
    products(last, left, before, steps - 1)
    value = acc[...]
    kd.barrier_arrive(consumed.at[last])
    return value, following_slot(last, stages)
