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
    `loaded_of(slot)`: the barrier of both loads. With a tuple of accumulators there are as many Bs and values.
    """

    @kd.loop(0, steps, init_carry=(slot, slot))
    def end(step: Any, carry: Any) -> Any:
        slot, before = carry
        kd.barrier_wait(loaded_of(slot))
        _multiply(acc, left_of(slot), right_of(slot))
        kd.barrier_arrive(consumed.at[before], predicate=step > 0)
        return following_slot(slot, stages), slot

    return _ended(acc, end, consumed)


def _multiply(acc: Any, left: Any, right: Any) -> None:
    """Begin a stage's products, and wait for those of the stage before."""
    pairs = list(zip(acc, right, strict=True)) if isinstance(acc, tuple) else [(acc, right)]
    for own, b in pairs:
        kd.wgmma(own, left, b)
    kd.wgmma_wait(len(pairs))


def _ended(acc: Any, end: tuple[Any, Any], consumed: Any) -> tuple[Any, Any]:
    """The values of the accumulators, which release the last stage, and the slot that follows."""
    slot_after, last = end
    value = tuple(own[...] for own in acc) if isinstance(acc, tuple) else acc[...]
    kd.barrier_arrive(consumed.at[last])
    return value, slot_after


def ragged_product(
    acc: Any,
    slot: Any,
    runs: int,
    steps: int,
    tail: int,
    stages: int,
    left_of: Callable[[Any], Any],
    right_of: Callable[[Any], Any],
    loaded_of: Callable[[Any], Any],
    consumed: Any,
) -> tuple[Any, Any]:
    """`stage_product` over `runs` times `steps` stages, the last of which hold only `tail` slices of K that are not zero."""

    def multiply(carry: Any, again: Any, depth: int | None) -> tuple[Any, Any]:
        slot, before = carry
        kd.barrier_wait(loaded_of(slot))
        _multiply(acc, left_of(slot).at[:, :depth], right_of(slot).at[:depth])
        kd.barrier_arrive(consumed.at[before], predicate=again)
        return following_slot(slot, stages), slot

    @kd.loop(0, runs, init_carry=(slot, slot))
    def end(run: Any, carry: Any) -> Any:
        if steps > 1:

            @kd.loop(0, steps - 1, init_carry=carry)
            def whole(step: Any, carry: Any) -> Any:
                return multiply(carry, (run > 0) | (step > 0), None)

            carry = whole
        return multiply(carry, run > 0 if steps == 1 else None, tail)

    return _ended(acc, end, consumed)
