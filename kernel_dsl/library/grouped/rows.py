"""Kernels that gather rows before a grouped product, and add up rows at their places after it.

Rows of one place are added up in the order of the product, so each call gives the same bits. `listed` makes a list for
each place: each block searches all rows for those of its few places.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..first_sizes import is_open

PLACES, CHUNK = 8, 1024  # places of a block, rows that it searches at a time
WIDTH = 2048  # the most columns that a block moves


def width_of(columns: int) -> int:
    """The number of columns that a block moves, a power of two."""
    return min(1 << max(columns - 1, 127).bit_length(), WIDTH)


@cache
def gather_kernel(rows: Any, shapes: tuple[tuple[Any, int], ...], dtypes: tuple[Any, ...], flat: bool = False) -> Any:
    """The kernel `(indices, *arrays) -> arrays`: row i of each result is row `indices[i]`, or zeros if there is no such
    row.

    `flat`: the last array has one axis. Each call gives the extents that are Dims.
    """
    opened, last = is_open(rows), len(shapes) - 1

    def body(indices: Any, *refs: Any) -> None:
        row = kd.program_id(0)
        index = indices[row]
        sources, outs = refs[: len(shapes)], refs[len(shapes) :]
        for (extent, columns), source, out in zip(shapes, sources, outs, strict=True):
            width = width_of(columns)
            there = (index >= 0) & (index < (source.shape[0] if opened else extent))
            if len(source.shape) == 1:
                out[row] = kd.load(source, index, mask=there)
                continue

            @kd.loop(0, kd.cdiv(columns, width))
            def _(number: Any, source: Any = source, out: Any = out, width: int = width, there: Any = there) -> None:
                part = kd.ds(number * width, width)
                x = kd.load(source, (index, part), mask=kd.broadcast_to(there, (width,)))
                out[row, part] = x

    made = kd.kernel(
        body,
        out_type=tuple(
            kd.ShapeDtypeStruct((rows,) if flat and number else (rows, columns), dtype)
            for number, ((_, columns), dtype) in enumerate(zip(shapes, dtypes, strict=True))
        ),
        grid=(rows,),
        shapes={0: (rows,)}
        | {
            first + n: (extent,) if flat and n == last else (extent, columns)
            for first, extent_of in ((1, 0), (2 + last, 1))
            for n, (extent, columns) in enumerate((rows, c) if extent_of else (e, c) for e, c in shapes)
        }
        if opened
        else None,
        name="grouped_gather",
    )
    return identified(made, rows, shapes, dtypes, flat)


@cache
def list_kernel(groups: Any, places: Any, each: int, like: int = 1) -> Any:
    """The kernel `(sizes or offsets, scatter) -> (heads, following)`: int32 (places,) and (rows,).

    For any number of rows it also takes an array of rank `like`, whose first extent is `places`.

    `heads[p]` is the first row whose `scatter` is one of the `each` numbers from p * each on, `following[i]` the next
    such row after row i; -1 if there is none. Rows of no group are in no list.
    """
    opened = is_open(groups.rows)

    def any_rows(given: Any, scatter: Any, _: Any, heads: Any, following: Any, bounds: Any, tails: Any) -> None:
        body(given, scatter, heads, following, bounds, tails)

    def body(given: Any, scatter: Any, heads: Any, following: Any, bounds: Any, tails: Any) -> None:
        g = groups.at_launch(scatter.shape[0])
        g.bound(given, bounds)
        first = kd.program_id(0) * PLACES
        tails[...] = kd.full((PLACES,), -1, kd.int32)
        start, end = bounds[0], bounds[g.count]

        @kd.loop(0, kd.cdiv(g.rows, CHUNK))
        def _(chunk: Any) -> None:
            number = kd.iota(kd.int32, CHUNK) + chunk * CHUNK
            place = kd.load(scatter, kd.ds(chunk * CHUNK, CHUNK), fill=-1)
            place = kd.where(place < 0, -1, kd.div(place, each))
            mine = (place >= first) & (place < first + PLACES) & (number >= start) & (number < end)
            key = kd.where(mine, number, g.rows)

            def append(row: Any) -> Any:
                own = kd.div(scatter[row], each) - first
                tail = tails[own]
                kd.store(heads, first + own, row, mask=tail < 0)
                kd.store(following, kd.maximum(tail, 0), row, mask=tail >= 0)
                tails[own] = row
                return kd.min(kd.where(key > row, key, g.rows))

            kd.while_loop(lambda row: row < g.rows, append, kd.min(key))

    made = kd.kernel(
        any_rows if opened else body,
        out_type=(
            kd.ShapeDtypeStruct((places,), kd.int32, init=-1),
            kd.ShapeDtypeStruct((groups.rows,), kd.int32, init=-1),
        ),
        scratch_types={"bounds": groups.scratch["bounds"], "tails": kd.SMEM((PLACES,), kd.int32)},
        grid=(kd.cdiv(places, PLACES),),
        shapes={1: (groups.rows,), 2: (places, *[None] * (like - 1)), 3: (places,), 4: (groups.rows,)}
        if opened
        else None,
        name="grouped_lists",
    )
    return identified(made, groups, places, each, like)


@cache
def combine_rows_kernel(rows: Any, columns: int, places: Any, dtype: Any, out_dtype: Any, weights: str) -> Any:
    """The kernel `(heads, following, rows[, scatter][, weights]) -> out` (places, columns): sums of rows, in float32
    for floats.

    `weights`: "rows" with one weight a row, "scatter" with one a number in `scatter`, or "".
    """
    width = width_of(columns)
    wide = kd.float32 if weights or (dtype.is_float and dtype.itemsize < 4) else dtype

    def body(heads: Any, following: Any, x: Any, *refs: Any) -> None:
        place, part = kd.program_id(0), kd.ds(kd.program_id(1) * width, width)
        *given, out = refs

        def add(carry: Any) -> Any:
            row, total = carry
            value = x[row, part].astype(wide)
            if weights:
                at = given[0][row] if weights == "scatter" else row
                value = value * given[-1][at]
            return following[row], total + value

        _, total = kd.while_loop(lambda carry: carry[0] >= 0, add, (heads[place], kd.zeros((width,), wide)))
        out[place, part] = total.astype(out_dtype)

    # the numbers in `scatter`, and their weights
    scattered: dict[int, Any] = {3: (rows,)} if weights else {}
    if weights == "scatter":
        scattered[4] = (kd.Dim("numbers"),)
    scattered[3 + len(scattered)] = (places, columns)
    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct((places, columns), out_dtype),
        grid=(places, kd.cdiv(columns, width)),
        shapes={0: (places,), 1: (rows,), 2: (rows, columns)} | scattered if is_open(rows) else None,
        name="grouped_combine",
    )
    return identified(made, rows, columns, places, dtype, out_dtype, weights)


@cache
def zeros_kernel(shape: tuple[int, ...], dtype: Any) -> Any:
    """The kernel `() -> zeros`."""

    def body(out: Any) -> None:
        del out

    return identified(
        kd.kernel(body, out_type=kd.ShapeDtypeStruct(shape, dtype, init=0), name="grouped_zeros"), shape, dtype
    )
