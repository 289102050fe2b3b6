"""The number of times that each of the 256 values of a byte occurs in an array of any length.

If all blocks added to 256 counters in GMEM, their lanes would wait for each other. So each block counts in SMEM, and
adds its counts to GMEM once, at its end. In SMEM, lanes wait for each other if they use the same counter or the same
bank. So a block has one counter for each value and each lane of a warp, and all counters of lane l are in bank l. Lanes
of one warp then never wait for each other, whatever the data: a constant picture takes as long as noise. Lanes of
different warps may use the same counter, so they add by atomics.

Run it: `python -m examples.05_histogram`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd

BINS = 256
LANES = 32


def layout(size: int, vector: int = 16) -> Any:
    """`size` bytes over a warpgroup: 16 neighbours a lane, so that a load is 16 bytes."""
    lanes = tuple((0, vector << i) for i in range(5))
    warps = ((0, vector << 5), (0, vector << 6))
    return kd.Layout(1, ((0, size // (vector << 7), vector << 7), (0, vector, 1)), lanes, warps)


@functools.cache
def histogram_kernel(piece: int = 4096, pieces: int = 16, warpgroups: int = 2) -> Any:
    """A block of `warpgroups`, each of which takes `pieces` times `piece` bytes."""
    span = piece * pieces

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((BINS,), kd.uint32, init=0),
        grid=lambda x: (kd.cdiv(x.shape[0], span * warpgroups),),
        grid_names=("block",),
        num_threads=warpgroups,
        thread_name="wg",
        scratch_types={
            "counts": kd.SMEM((BINS, LANES), kd.uint32),
            "ready": kd.Barrier(num_arrivals=warpgroups),
        },
        name=f"histogram_{piece}x{pieces}x{warpgroups}",
    )
    def histogram(x: Any, out: Any, *, counts: Any, ready: Any) -> None:
        wg = kd.axis_index("wg")
        share = BINS // warpgroups
        mine = kd.ds(wg * share, share)
        counts[mine] = kd.zeros((share, LANES), kd.uint32)
        kd.barrier_arrive_and_wait(ready)
        first = (kd.axis_index("block") * warpgroups + wg) * span
        spread = layout(piece)
        place = kd.broadcasted_iota(kd.int32, (piece,), 0, layout=spread)
        whole = x.shape[0] % (span * warpgroups) == 0  # no mask is needed
        lane = place // 16 % LANES  # the lane's number in its warp, by the layout

        @kd.loop(0, pieces)
        def _(step: Any) -> None:
            start = first + step * piece
            part = kd.ds(start, piece)
            value = kd.load(x, part, layout=spread).astype(kd.int32)
            inside = None if whole else place < x.shape[0] - start
            kd.atomic_add(counts.at[value, lane], kd.uint32(1), mask=inside, scope="cta")

        kd.barrier_arrive_and_wait(ready)
        kd.atomic_add(out.at[mine], kd.sum(counts[mine], axis=1))

    return histogram


def histogram(x: Any, **options: Any) -> Any:
    """The counts of 0 to 255 in a 1-D array of uint8, as uint32."""
    return histogram_kernel()(x, **options)


def main() -> None:
    """Check lengths and skewed data against NumPy."""
    rng = np.random.default_rng(0)
    kernel = histogram_kernel(piece=2048, pieces=2)
    for length in (0, 1, 5000, 20_000):
        for high in (1, 256):
            x = rng.integers(0, high, length).astype(np.uint8)
            assert np.array_equal(kernel(x), np.bincount(x, minlength=BINS))
        print(f"histogram of {length} bytes: exact")


if __name__ == "__main__":
    main()
