"""What pipelined kernels share: a ring of stages in SMEM, its barriers, the loop that fills it, and the buffers of stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import kernel_dsl as kd

from .products.matmul_config import MatmulConfig
from .stage_product import following_slot


def swizzled(rows: int, columns: int, dtype: Any, stages: int) -> Any:
    """Stages of a tile whose rows are contiguous, in the widest swizzle."""
    swizzle = kd.find_swizzle(columns * dtype.bits)
    tile = (8, swizzle // dtype.itemsize)
    return kd.SMEM((stages, rows, columns), dtype, transforms=(kd.TilingTransform(tile), kd.SwizzleTransform(swizzle)))


def registers_of(t: MatmulConfig, fed: bool) -> tuple[int, int]:
    """Registers of a lane of the warpgroup that loads, and of those that multiply. `fed`: factors come with the stages."""
    if t.consumers > 2:
        warpgroups = t.consumers + 1
        return 56, (65536 // (128 * warpgroups) // 8 * 8 * warpgroups - 56) // t.consumers // 8 * 8
    if fed and t.consumers == 2:
        return (24, 240) if t.ping_pong else (56, 224)
    return 24 if t.ping_pong else 40, 232 if t.consumers == 2 and not t.ping_pong else 240


def released(axes: tuple[str, ...], arrivals: int, stages: int) -> Any:
    """The barriers by which `arrivals` consumers of each block release stages, which blocks share along the cluster's `axes`."""
    if axes:
        return kd.ClusterBarrier(collective_axes=axes, num_arrivals=arrivals, num_barriers=stages)
    return kd.Barrier(num_arrivals=arrivals, num_barriers=stages)


@dataclass(frozen=True)
class StageRing:
    """Refs of a ring of stages: both sides, the barriers of their loads and of their release, and factors that come along."""

    a_smem: Any
    b_smem: Any
    loaded: Any
    consumed: Any
    factors_smem: Any = None

    def left(self, slot: Any, rows: Any, transposed: bool) -> Any:
        """Some rows of a stage's left side (M, K), which lies as (K, M) if `transposed`."""
        return self.a_smem.at[slot, :, rows].T if transposed else self.a_smem.at[slot, rows]

    def right(self, slot: Any, transposed: bool) -> Any:
        """A stage's right side (K, N), which lies as (N, K) if `transposed`."""
        return self.b_smem.at[slot].T if transposed else self.b_smem.at[slot]

    def is_loaded(self, slot: Any) -> Any:
        """The barrier of a stage's loads."""
        return self.loaded.at[slot]


def fill_stages(steps: Any, stages: int, carry: Any, fill: Callable[..., tuple[Any, ...] | None]) -> Any:
    """For the producer: call `fill(step, slot, filled, *state)` for each step of a tile, slot after slot.

    `filled`: how many slots were filled before, at most `stages`. `fill` returns the next step's `state`, if there is one.
    `carry` is (slot, filled, *state) of the first step, and the result that of the next tile.
    """

    @kd.loop(0, steps, init_carry=carry)
    def end(step: Any, carry: Any) -> Any:
        slot, filled, *state = carry
        state = fill(step, slot, filled, *state)
        return following_slot(slot, stages), kd.minimum(filled + 1, stages), *(state or ())

    return end


def await_release(consumed: Any, slot: Any, again: Any) -> None:
    """For the producer: wait until consumers released a slot, if this is not its first time."""

    @kd.when(again)
    def _() -> None:
        kd.barrier_wait(consumed.at[slot])


def copy_rights(
    tiles: Sequence[Any], place: Any, full: Any, transposed: bool, axes: str | None, hint: str | None = None
) -> None:
    """Load the right sides of a stage, which lie side by side in `place`: (K, N), or (N, K) if `transposed`."""
    width = place.shape[0 if transposed else 1] // len(tiles)
    for number, tile in enumerate(tiles):
        own = place
        if len(tiles) > 1:
            half = slice(number * width, (number + 1) * width)
            own = place.at[half] if transposed else place.at[:, half]
        kd.copy_gmem_to_smem(tile, own, full, collective_axes=axes, l2_hint=hint)


def await_buffer(number: int, count: int, ring: int) -> None:
    """For a consumer: wait until the buffer of part `number` of `count` of a tile is free; `ring` buffers are used in turn."""
    # a tile starts with the first buffer, which the tile before may have used last
    kd.wait_smem_to_gmem(0 if number == 0 and count % ring else ring - 1, wait_read_only=True)
