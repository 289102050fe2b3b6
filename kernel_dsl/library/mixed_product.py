"""The inner loop of a product whose left side is widened in registers, on its way from SMEM to the tensor cores.

A step's K is cut in two parts. While the tensor cores work on one, this warpgroup loads and widens the next. One product
is always in flight, across steps too: a part's registers are written again only when its product is done, and a stage is
given back once the first part of the next one is under way.
"""

from __future__ import annotations

from typing import Any

import kernel_dsl as kd


def widened_product(
    acc: Any, slot: Any, steps: int, stages: int, left_of: Any, right_of: Any, loaded: Any, consumed: Any
) -> tuple[Any, Any]:
    """acc += the product over `steps` stages of SMEM from `slot` on; returns its value and the slot that follows.

    `left_of(slot)` is a Ref to this warpgroup's (rows, tile_k) of A, `right_of(slot)` to B (tile_k, tile_n).
    """

    def part(ref: Any, index: int, axis: int) -> Any:
        half = ref.shape[axis] // 2
        columns = slice(index * half, (index + 1) * half)
        return ref.at[columns] if axis == 0 else ref.at[:, columns]

    def widened(slot: Any, index: int) -> Any:
        right = right_of(slot)
        return kd.load(part(left_of(slot), index, 1), layout=kd.Layout.WGMMA).astype(right.dtype)

    def multiply(slot: Any, index: int, left: Any) -> None:
        kd.wgmma(acc, left, part(right_of(slot), index, 0))

    def following(slot: Any) -> Any:
        return kd.where(slot == stages - 1, 0, slot + 1)

    def products(slot: Any, left: Any, before: Any, step: Any) -> None:
        multiply(slot, 0, left)
        kd.wgmma_wait(1)  # the second half of the step before is done
        kd.barrier_arrive(consumed.at[before], predicate=step > 0)
        multiply(slot, 1, widened(slot, 1))

    kd.barrier_wait(loaded.at[slot])

    @kd.loop(0, steps - 1, init_carry=(slot, slot, widened(slot, 0)))
    def end(step: Any, carry: Any) -> Any:
        slot, before, left = carry
        products(slot, left, before, step)
        kd.wgmma_wait(1)  # the first half is done, and its registers are free
        after = following(slot)
        kd.barrier_wait(loaded.at[after])
        return after, slot, widened(after, 0)

    last, before, left = end
    products(last, left, before, steps - 1)
    value = acc[...]
    kd.barrier_arrive(consumed.at[last])
    return value, following(last)
