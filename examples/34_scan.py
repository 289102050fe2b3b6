"""The running sum of a whole array of float32 in one launch, which reads each element once and writes each sum once.

A block's sums start at the sum of all earlier blocks, so blocks depend on each other. These rules make them wait
little:

- Persistent blocks take tiles by a ticket (an atomic counter), so every tile before one's own has a block that runs. So
  no block waits for a block that has not started, even if other kernels occupy the GPU.
- A block takes tiles two ahead of the one that it computes, and starts the copy of each into a ring of three in its
  SMEM: some bytes are always in flight. A whole tile is one bulk copy. The last tile may be shorter: it is a tensor
  copy, which adds zeros.
- As soon as a tile is in SMEM, the block publishes its sum in one 64-bit word with a flag. A reader that sees the flag
  also sees the sum, so no fence is needed. Later tiles wait only for these words: a block adds up the sums since its
  own last tile, many at a time. No block waits for a neighbour's *running* sum, so there is no chain through all tiles.
- A block publishes the sum of its next tile before it looks for the sums before its present one. Other blocks published
  these about one tile's time ago, so the block seldom waits.

The kernel carries the sum before a tile in float64, so errors do not grow with the length.

Run it: `python -m examples.34_scan`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd

THERE = 1 << 32  # the flag of a word whose lower half is a sum
# A word that another block writes at the same time, 0 where it is not wanted. Repeated loads see the store in the end.
PUBLISHED = "{ .reg .b64 a; mad.wide.s32 a, $2, 8, $1; mov.b64 $0, 0; @$3 ld.relaxed.gpu.global.u64 $0, [a]; }"


def spread(tile: int) -> Any:
    """A tile over a warpgroup: a contiguous quarter a warp, so warps exchange sums once; 4 neighbours a lane."""
    lanes = tuple((0, 4 << bit) for bit in range(5))
    return kd.Layout(1, ((0, tile // 512, 128), (0, 4, 1)), lanes, ((0, tile // 4), (0, tile // 2)))


@functools.cache
def scan_kernel(tile: int = 8192, window: int = 512, blocks: int = 264) -> Any:
    """Tiles of `tile` elements, `window` words read together, at most `blocks` blocks (2 a multiprocessor)."""

    @kd.kernel(
        out_type=lambda x: (x, kd.ShapeDtypeStruct((kd.cdiv(x.shape[0], tile),), kd.uint64, init=0)),
        grid=lambda x: (min(kd.cdiv(x.shape[0], tile), blocks),),
        grid_names=("block",),
        scratch_types={"ring": kd.SMEM((3, tile), kd.float32), "full": kd.Barrier(num_barriers=3)},
        name=f"scan_{tile}",
    )
    def scan(x: Any, out: Any, words: Any, *, ring: Any, full: Any) -> None:
        tickets = kd.get_global(kd.SemaphoreType.REGULAR)
        tiles = kd.cdiv(x.shape[0], tile)

        def draw(slot: Any) -> Any:
            """Take the next free tile, and start its copy into the ring."""
            ticket = kd.atomic_add(tickets, 1)
            part, place, barrier = x.at[kd.ds(ticket * tile, tile)], ring.at[slot], full.at[slot]
            whole = (ticket + 1) * tile <= x.shape[0]
            inside = kd.OOBFillMode.PROMISE_IN_BOUNDS
            kd.copy_gmem_to_smem(part, place, barrier, predicate=whole, oob_mode=inside)
            kd.copy_gmem_to_smem(part, place, barrier, predicate=(ticket < tiles) & ~whole)
            return ticket

        def publish(number: Any, slot: Any) -> None:
            """Wait for a tile, and publish its sum."""

            @kd.when(number < tiles)
            def _() -> None:
                kd.barrier_wait(full.at[slot])
                own = kd.bitcast_convert_type(kd.sum(kd.load(ring.at[slot], layout=spread(tile))), kd.uint32)
                kd.atomic_xchg(words.at[number], own.astype(kd.uint64) | kd.uint64(THERE))

        def sum_before(number: Any, known: Any, total: Any) -> Any:
            """The sum of all tiles before tile `number`; `total` is the sum of the first `known` tiles."""

            def look(state: Any) -> Any:
                known, total = state
                index = known + kd.arange(window)
                wanted = index < number
                word = kd.inline_ptx(PUBLISHED, words, index, wanted, out_type=kd.uint64)
                sums = kd.bitcast_convert_type(word.astype(kd.uint32), kd.float32).astype(kd.float64)
                there = kd.all((word >= THERE) | ~wanted)
                return kd.where(there, known + window, known), total + kd.where(there, kd.sum(sums), 0.0)

            return kd.while_loop(lambda state: state[0] < number, look, (known, total))[1]

        def work(state: Any) -> Any:
            number, following, slot, known, total = state
            after = kd.where(slot == 2, 0, slot + 1)
            third = draw(kd.where(after == 2, 0, after + 1))
            publish(following, after)
            running = kd.cumsum(kd.load(ring.at[slot], layout=spread(tile)))
            total = sum_before(number, known, total)
            out[kd.ds(number * tile, tile)] = running + total.astype(kd.float32)
            return following, third, after, number, total

        first, second = draw(0), draw(1)
        publish(first, 0)
        start = (first, second, kd.int32(0), kd.int32(0), kd.float64(0))
        kd.while_loop(lambda state: state[0] < tiles, work, start)

    return scan


def prefix_sum(x: Any, **options: Any) -> Any:
    """The running sum of a 1-D array of float32."""
    return scan_kernel()(x, **options)[0]


def main() -> None:
    """Check lengths around tiles, windows and blocks against float64."""
    rng = np.random.default_rng(0)
    kernel = scan_kernel(512, 128, 3)
    for length in (1, 4096, 5001):
        x = rng.random(length).astype(np.float32)
        expected = np.cumsum(x.astype(np.float64))
        error = np.max(np.abs(kernel(x)[0] - expected)) / expected[-1]
        print(f"prefix sum of {length} floats: worst error {error:.1e} of the total")
        assert error < 3e-7


if __name__ == "__main__":
    main()
