"""The sum of a whole array of float32, the same in every run: two launches, no atomics.

Every block adds up a span of the array, a piece at a time. Each lane has its own running sum in registers; the block
adds these together at the end of the span. Then one block adds the sums of all blocks in the same way.

Run it: `python -m examples.16_sum`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd


@functools.cache
def span_sums(piece: int = 4096, pieces: int = 8) -> Any:
    """The sum of each `pieces` times `piece` elements, one block for each sum."""
    span = piece * pieces

    @kd.kernel(
        out_type=lambda x: kd.ShapeDtypeStruct((kd.cdiv(x.shape[0], span),), x.dtype),
        grid=lambda x: (kd.cdiv(x.shape[0], span),),
        grid_names=("block",),
        name=f"sum_{piece}x{pieces}",
    )
    def sums(x: Any, out: Any) -> None:
        block = kd.axis_index("block")

        @kd.loop(0, pieces, init_carry=kd.zeros((piece,), kd.float32))
        def running(step: Any, carry: Any) -> Any:
            return carry + kd.load(x, kd.ds(block * span + step * piece, piece), fill=0)

        out[block] = kd.sum(running)

    return sums


def total(x: Any, piece: int = 4096, pieces: int = 8) -> Any:
    """The sum of a 1-D array of float32, as an array of one element."""
    partial = span_sums(piece, pieces)(x)
    count = partial.shape[0]
    last = min(4096, 1 << max(7, (count - 1).bit_length()))
    return span_sums(last, max(1, kd.cdiv(count, last)))(partial)


def main() -> None:
    """Check against NumPy's float64 sum."""
    rng = np.random.default_rng(0)
    for length in (1, 32_768, 300_001):
        x = rng.random(length).astype(np.float32)
        expected = np.sum(x, dtype=np.float64)
        error = abs(float(total(x)[0]) - expected) / expected
        print(f"sum of {length} floats: relative error {error:.1e}")
        assert error < 1e-6


if __name__ == "__main__":
    main()
