"""Running sums along each row of a matrix, and over a whole array of any length.

If a warpgroup can hold a row, its running sum is one `kd.cumsum`. The loop takes a longer row in pieces, and carries
the sum of the earlier pieces. Over a whole array, blocks would have to wait for each other. So there are three
launches: the sum of each block; the running sum of these sums; and the running sum of each block, which starts at the
sum of the blocks before it.

Sums of 16-bit rows accumulate in float32. Run it: `python -m examples.06_prefix_sum`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd


@functools.cache
def row_kernel(piece: int = 2048, rows: int = 1) -> Any:
    """Running sums of `rows` rows a warpgroup, `piece` elements of each row at a time.

    The kernel loads the next piece before it computes this one, so a load is always in flight.
    """

    @kd.kernel(
        out_type=lambda x: x,
        grid=lambda x: (kd.cdiv(x.shape[0], rows),),
        grid_names=("row",),
        name=f"row_cumsum_{rows}x{piece}",
    )
    def cumsum(x: Any, out: Any) -> None:
        block = kd.ds(kd.axis_index("row") * rows, rows)
        last = kd.cdiv(x.shape[1], piece) - 1

        def load(step: Any) -> Any:
            return kd.load(x, (block, kd.ds(step * piece, piece)), fill=0)

        def finish(step: Any, loaded: Any, before: Any) -> Any:
            """Store this piece's running sums; the row's sum so far."""
            value = loaded.astype(kd.float32)
            out[block, kd.ds(step * piece, piece)] = (kd.cumsum(value, axis=1) + before).astype(x.dtype)
            return before + kd.sum(value, axis=1, keepdims=True)

        @kd.loop(0, last, init_carry=(load(0), kd.zeros((rows, 1), kd.float32)))
        def at_last(step: Any, carry: Any) -> Any:
            following = load(step + 1)
            return following, finish(step, *carry)

        finish(last, *at_last)

    return cumsum


SETTINGS = {"4x512": (512, 4), "4x1024": (1024, 4), "4x256": (256, 4), "1x2048": (2048, 1), "1x1024": (1024, 1)}


def row_kernel_for(columns: int) -> Any:
    """The kernel for rows of this length: one row a warp, so warps exchange nothing."""
    piece = min(512, 1 << max(3, (columns - 1).bit_length()))
    return row_kernel(piece, max(4, 2048 // piece))


def row_cumsum(x: Any, **options: Any) -> Any:
    """Running sums along the rows of a 2-D float array."""
    return row_kernel_for(x.shape[1])(x, **options)


BLOCK = 4096


@functools.cache
def block_sums() -> Any:
    """First launch: the sum of each block of the array."""

    @kd.kernel(
        out_type=lambda x: kd.ShapeDtypeStruct((kd.cdiv(x.shape[0], BLOCK),), x.dtype),
        grid=lambda x: (kd.cdiv(x.shape[0], BLOCK),),
        grid_names=("block",),
    )
    def sums(x: Any, total: Any) -> None:
        block = kd.axis_index("block")
        total[block] = kd.sum(kd.load(x, kd.ds(block * BLOCK, BLOCK), fill=0))

    return sums


@functools.cache
def running_sums() -> Any:
    """Second launch, one block: the sum of all blocks before each."""

    @kd.kernel(out_type=lambda totals: totals)
    def running(totals: Any, before: Any) -> None:
        @kd.loop(0, kd.cdiv(totals.shape[0], BLOCK), init_carry=totals.dtype(0))
        def _(step: Any, carry: Any) -> Any:
            part = kd.ds(step * BLOCK, BLOCK)
            value = kd.load(totals, part, fill=0)
            before[part] = kd.cumsum(value) - value + carry
            return carry + kd.sum(value)

    return running


@functools.cache
def finish() -> Any:
    """Third launch: the running sum of each block, added to the sum of the blocks before it."""

    @kd.kernel(
        out_type=lambda x, before: x,
        grid=lambda x, before: (kd.cdiv(x.shape[0], BLOCK),),
        grid_names=("block",),
    )
    def last(x: Any, before: Any, out: Any) -> None:
        block = kd.axis_index("block")
        part = kd.ds(block * BLOCK, BLOCK)
        out[part] = kd.cumsum(kd.load(x, part, fill=0)) + before[block]

    return last


def prefix_sum(x: Any) -> Any:
    """The running sum of a 1-D array of 32- or 64-bit numbers."""
    return finish()(x, running_sums()(block_sums()(x)))


def main() -> None:
    """Check both against NumPy: integers exactly, floats against float64."""
    rng = np.random.default_rng(0)
    for length in (1, 4096, 50_001):
        x = rng.integers(-1000, 1000, length).astype(np.int32)
        assert np.array_equal(prefix_sum(x), np.cumsum(x, dtype=np.int32))
        print(f"prefix sum of {length} integers: exact")
    for shape in [(5, 100), (3, 5000), (2, 4096)]:
        for dtype, tolerance in [(np.dtype(np.float32), 1e-6), (kd.bfloat16.numpy, 4e-3)]:
            x = rng.random(shape).astype(dtype)
            expected = np.cumsum(x.astype(np.float64), axis=1)
            error = np.max(np.abs(row_cumsum(x).astype(np.float64) - expected) / expected[:, -1:])
            print(f"row sums of {shape} {dtype.name}: worst error {error:.1e} of the row's total")
            assert error < tolerance


if __name__ == "__main__":
    main()
