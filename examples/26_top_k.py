"""The k largest elements of each row, for rows that are too long to sort: two launches read each element once.

`kd.top_k` sorts, which is right for a few thousand elements. For a long row, each block takes a part and looks for a
limit that k to 2k of its elements reach. It compares floats as integers. From the largest element, the limit goes down
in growing steps until k elements reach it. Then the block halves the last step until at most 2k elements reach the
limit. The part stays in registers, so each of these six or so rounds is cheap. The block sorts the few elements that
reach the limit. The second launch does the same with the results of all parts of a row.

NaN counts as the least, and of equal elements the lower index comes first, as in `kd.top_k`.

Run it: `python -m examples.26_top_k`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd

LEAST, MOST = -(2**31), 2**31 - 1


def ordered(value: Any) -> Any:
    """int32 keys in the order of float32 values: zeros are equal, and NaN is the least."""
    bits = kd.bitcast_convert_type(kd.where(value == 0, 0.0, value), kd.int32)
    return kd.where(kd.isnan(value), LEAST, bits ^ ((bits >> 31) & MOST))


def bar(key: Any, k: int) -> tuple[Any, Any]:
    """A limit, and the number of keys that reach it: k to 2k, or more if many are equal to the k-th largest."""

    def halve(state: Any) -> Any:
        low, high, reached, step = state
        middle = (low & high) + ((low ^ high) >> 1)  # which does not overflow
        # go down from the largest key in growing steps, as the k largest keys seldom differ much
        middle = kd.maximum(middle, kd.where(high < LEAST + step, LEAST, high - step))
        number = kd.sum((key >= middle).astype(kd.int32))
        enough = number >= k
        step = kd.where(enough, step, kd.minimum(step, 1 << 28) * 4)
        return kd.where(enough, middle, low), kd.where(enough, high, middle), kd.where(enough, number, reached), step

    def going(state: Any) -> Any:
        low, high, reached, _ = state
        return (reached > 2 * k) & (low + 1 != high)

    largest = kd.minimum(kd.max(key), MOST - 1)
    start = (kd.int32(LEAST), largest + 1, kd.int32(key.size), kd.int32(1 << 21))
    limit, _, reached, _ = kd.while_loop(going, halve, start)
    return limit, reached


def largest(value: Any, k: int, kept: Any, load: Any) -> tuple[Any, Any]:
    """The k largest of a 1-D value, and their places. `kept`: SMEM of 2k int32; `load(places)` gives elements."""
    size = value.size
    key = ordered(value)
    limit, reached = bar(key, k)

    def some() -> Any:
        """The elements above the limit, and the first of those that are equal to it."""
        above, equal = key > limit, key == limit
        room = 2 * k - kd.sum(above.astype(kd.int32))
        return above | (equal & (kd.cumsum(equal.astype(kd.int32), exclusive=True) < room))

    kept[...] = kd.full((2 * k,), size, kd.int32)
    keep = kd.cond(reached <= 2 * k, lambda: key >= limit, some)
    place = kd.cumsum(keep.astype(kd.int32), exclusive=True)
    kd.store(kept, place, kd.arange(size), mask=keep)
    found = kept[...]
    value, found = kd.sort(kd.where(found < size, load(found), np.nan), found, descending=True)
    return value[:k], found[:k]


@functools.cache
def part_kernel(k: int, part: int = 16384) -> Any:
    """The k largest of each `part` elements of each row, and their indices: (rows, parts, k)."""

    def parts(x: Any, dtype: Any) -> Any:
        return kd.ShapeDtypeStruct((x.shape[0], kd.cdiv(x.shape[1], part), k), dtype)

    @kd.kernel(
        out_type=lambda x: (parts(x, kd.float32), parts(x, kd.int32)),
        grid=lambda x: (x.shape[0], kd.cdiv(x.shape[1], part)),
        grid_names=("row", "part"),
        scratch_types={"kept": kd.SMEM((2 * k,), kd.int32)},
        name=f"top_{k}_of_parts",
    )
    def pick(x: Any, values: Any, indices: Any, *, kept: Any) -> None:
        row, number = kd.axis_index("row"), kd.axis_index("part")
        first = number * part
        value = kd.load(x, (row, kd.ds(first, part)), fill=np.nan)
        columns = kd.specialise(x.shape[1])
        best, place = largest(
            value, k, kept, lambda i: kd.load(x, (row, first + i), mask=first + i < columns, fill=np.nan)
        )
        values[row, number] = best
        indices[row, number] = first + place

    return pick


@functools.cache
def merge_kernel(k: int) -> Any:
    """The k largest of the results of all parts of each row."""

    def rows(values: Any, dtype: Any) -> Any:
        return kd.ShapeDtypeStruct((values.shape[0], k), dtype)

    @kd.kernel(
        out_type=lambda values, indices: (rows(values, kd.float32), rows(values, kd.int32)),
        grid=lambda values, indices: (values.shape[0],),
        grid_names=("row",),
        scratch_types={"kept": kd.SMEM((2 * k,), kd.int32)},
        name=f"top_{k}_merged",
    )
    def merge(values: Any, indices: Any, best: Any, where: Any, *, kept: Any) -> None:
        row = kd.axis_index("row")
        found, place = largest(values[row].reshape(-1), k, kept, lambda i: values[row, i // k, i % k])
        best[row] = found
        where[row] = indices[row, place // k, place % k]

    return merge


def top_k(x: Any, k: int, part: int = 16384) -> tuple[Any, Any]:
    """(values, int32 indices) of the k largest of each row of float32 (rows, columns), largest first; k <= `part`, columns."""
    return merge_kernel(k)(*part_kernel(k, part)(x))


def main() -> None:
    """Check random rows, rows with many equal elements, and NaN, against NumPy's stable sort."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3000)).astype(np.float32)
    x[1] = np.round(x[1])
    x[2] = -0.0
    x[3, 10:] = np.nan
    values, indices = top_k(x, 16, 1024)
    expected = np.argsort(-x, axis=1, kind="stable")[:, :16]  # NaN sorts last
    assert np.array_equal(indices, expected)
    assert np.array_equal(values, np.take_along_axis(x, expected, axis=1), equal_nan=True)
    print(f"top 16 of {x.shape[0]} rows of {x.shape[1]}: exact")


if __name__ == "__main__":
    main()
