"""Products whose sums move from the tensor cores to float32 registers after every `RUN` terms.

The tensor cores truncate bits that an accumulator can't hold, always towards zero, so the error of a sum grows with the
number of its terms. A sum of `RUN` terms has a small error, and float32 additions round to nearest. A run's products
are in flight while the previous run releases its stage, as in a product without runs. Between two runs the other
warpgroup's products continue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernel_dsl as kd

from ..stage_product import following_slot

RUN = 256  # elements of K that the tensor cores add up in one sum


def promoted_product(
    acc: Any,
    slot: Any,
    steps: int,
    run: int,
    wait: Callable[[Any], None],
    left_of: Callable[[Any], Any],
    right_of: Callable[[Any], Any],
    stages: int,
    consumed: Any,
) -> tuple[Any, Any]:
    """The sums over `steps` stages of SMEM from `slot` on, as a value, with `run` of them in `acc` at a time; and the
    next slot.

    `wait(slot)` waits until a stage is loaded; `left_of(slot)` and `right_of(slot)` are Refs to this warpgroup's A and
    B.
    """
    start = kd.layout_cast(kd.zeros(acc.shape, kd.float32), kd.Layout.WGMMA)

    @kd.loop(0, steps, step=run, init_carry=(slot, start))
    def end(first: Any, carry: Any) -> Any:
        slot, total = carry
        wait(slot)
        kd.wgmma(acc, left_of(slot), right_of(slot), accumulate=False)

        @kd.loop(
            1,
            run if steps % run == 0 else kd.minimum(run, steps - first),
            init_carry=(following_slot(slot, stages), slot),
        )
        def ends(step: Any, carry: Any) -> Any:
            slot, before = carry
            wait(slot)
            kd.wgmma(acc, left_of(slot), right_of(slot))
            kd.wgmma_wait(1)
            kd.barrier_arrive(consumed.at[before])
            return following_slot(slot, stages), slot

        slot_after, last = ends
        kd.wgmma_wait(0)
        kd.barrier_arrive(consumed.at[last])
        return slot_after, total + acc[...]

    slot_after, total = end
    return total, slot_after
