"""Stream compaction by three launches: the elements above a threshold, side by side and in their order.

First, each block counts the elements that it keeps. Second, one block makes running sums of the counts, so each block
knows the place of its first element. Third, an exclusive running sum of a block's mask gives each element's place, and
a masked scatter stores it there. Only the GPU knows the number of kept elements, so the result has room for all, and
the count is a second output.

Run it: `python -m examples.32_compaction`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

BLOCK = 4096


def _blocks(x: Any, *_: Any) -> int:
    return kd.cdiv(x.shape[0], BLOCK)


@kd.kernel(
    out_type=lambda x, threshold: kd.ShapeDtypeStruct((_blocks(x),), kd.int32),
    grid=lambda x, threshold: (_blocks(x),),
    grid_names=("block",),
)
def count_kept(x: Any, threshold: Any, counts: Any) -> None:
    """The number of elements of each block above the threshold."""
    block = kd.axis_index("block")
    value = kd.load(x, kd.ds(block * BLOCK, BLOCK), fill=-np.inf)
    counts[block] = kd.sum((value > threshold).astype(kd.int32))


@kd.kernel(out_type=lambda counts: (counts, kd.ShapeDtypeStruct((), kd.int32)))
def starts_of(counts: Any, starts: Any, total: Any) -> None:
    """The sum of the counts before each, and of all."""

    @kd.loop(0, _blocks(counts), init_carry=kd.int32(0))
    def kept(step: Any, before: Any) -> Any:
        part = kd.ds(step * BLOCK, BLOCK)
        value = counts[part]
        starts[part] = kd.cumsum(value, exclusive=True) + before
        return before + kd.sum(value)

    total[...] = kept


@kd.kernel(out_type=lambda x, threshold, starts: x, grid=lambda x, *_: (_blocks(x),), grid_names=("block",))
def gather_kept(x: Any, threshold: Any, starts: Any, out: Any) -> None:
    """Store each block's kept elements, from the block's first place on."""
    block = kd.axis_index("block")
    value = kd.load(x, kd.ds(block * BLOCK, BLOCK), fill=-np.inf)
    keep = value > threshold
    place = kd.cumsum(keep.astype(kd.int32), exclusive=True) + starts[block]
    kd.store(out, place, value, mask=keep)


def compact(x: Any, threshold: float) -> tuple[Any, Any]:
    """(elements of the 1-D float32 array above `threshold`, with room for all; their number, int32 ())."""
    limit = np.float32(threshold)
    starts, total = starts_of(count_kept(x, limit))
    return gather_kept(x, limit, starts), total


def main() -> None:
    """Check against NumPy, exactly."""
    rng = np.random.default_rng(0)
    for length in (1, 9001):
        x = rng.standard_normal(length).astype(np.float32)
        for threshold in (0.5, 9.0):
            kept, total = compact(x, threshold)
            expected = x[x > np.float32(threshold)]
            assert int(total) == len(expected) and np.array_equal(kept[: len(expected)], expected)
        print(f"compaction of {length} elements: exact")


if __name__ == "__main__":
    main()
