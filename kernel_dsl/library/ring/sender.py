"""The order in which a producer of `ring_attention_kernel.py` sends its block's share of the keys, half a unit at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernel_dsl as kd

from .general import RingProblem


def sender(
    p: RingProblem, units: int, load: Callable[[Any], None], store: Callable[[Any], None], tell: Callable[[Any], None]
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """(the function that sends half a unit of this block's share of `units`, the function that sends all remaining halves).

    Both take the number of halves sent before, and return the new number. `load(unit)` brings a unit to SMEM, `store(unit)`
    copies it from there to the peers, and `tell(unit)` signals its arrival.
    """
    block, blocks = kd.axis_index("block"), kd.axis_size("block")
    count = kd.div(units - block + blocks - 1, blocks)
    if p.causal:  # no device needs the keys of the last one
        count = kd.where(kd.axis_index(p.mesh.names) == p.mesh.size - 1, 0, count)
    halves = kd.where(count > 0, 2 * count + 1, 0)

    def unit_of(half: Any) -> Any:
        return kd.div(half, 2) * blocks + block

    def send(half: Any) -> Any:
        odd = kd.rem(half, 2) == 1
        kd.when((half < halves) & odd)(lambda: store(unit_of(half)))

        @kd.when((half < halves) & ~odd)
        def _() -> None:
            @kd.when(half > 0)
            def _() -> None:
                kd.wait_smem_to_gmem(0)
                tell(unit_of(half - 2))

            kd.when(half < halves - 1)(lambda: load(unit_of(half)))

        return kd.minimum(half + 1, halves)

    def send_all(half: Any) -> Any:
        return kd.while_loop(lambda half: half < halves, send, half)

    return send, send_all
