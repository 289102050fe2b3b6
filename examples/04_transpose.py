"""The transpose of a matrix of 16- or 32-bit elements, any shape, through SMEM and without bank conflicts.

GMEM wants neighbours: both the load and the store move 16 bytes a lane, and eight lanes (four for 16-bit elements on
the way out) cover whole sectors of one row. The turn happens in between, in a tile of SMEM whose rows are one 32-bit
word longer than they need be. SMEM has 32 banks, a word each, so a row further down lies one bank further on:

- on the way in, lane (c, r) writes the words of its vector in turn, to banks 4 c + r, with c < 8 and r < 4: 32 banks;
- on the way out, lane (r, c) reads elements down a column. In 32 bits their banks are 4 r + c with r < 8 and c < 4; in
  16 bits they are 8 r + c / 2 with r < 4 and c < 8, and lanes that read the two halves of a word share its bank.

Which lanes hold what is a `kd.Layout`, named at the load. Run it: `python examples/04_transpose.py`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd


def layout_in(rows: int, columns: int, vector: int) -> Any:
    """A (rows, columns) block: eight lanes of `vector` elements along a row, four rows a warp, warps further down."""
    lanes = ((1, vector), (1, 2 * vector), (1, 4 * vector), (0, 1), (0, 2))
    regs = ((0, rows // 16, 16), (1, columns // (8 * vector), 8 * vector), (1, vector, 1))
    return kd.Layout(2, regs, lanes, ((0, 4), (0, 8)))


def layout_out(columns: int, rows: int, vector: int) -> Any:
    """A (columns, rows) block of the transpose: 32 / vector lanes along a row of it, `vector` rows a warp."""
    if vector == 4:
        lanes = ((1, 4), (1, 8), (1, 16), (0, 1), (0, 2))
    else:
        lanes = ((1, 8), (1, 16), (0, 1), (0, 2), (0, 4))
    regs = ((0, columns // (4 * vector), 4 * vector), (1, rows // 32, 32), (1, vector, 1))
    return kd.Layout(2, regs, lanes, ((0, vector), (0, 2 * vector)))


@functools.cache
def transpose_kernel(itemsize: int, rows: int = 64, columns: int = 64) -> Any:
    """The kernel for tiles of this shape, by a warpgroup each. `rows` and `columns`: multiples of 64."""
    vector = 16 // itemsize
    padding = 4 // itemsize  # one word

    @kd.kernel(
        out_type=lambda x: kd.ShapeDtypeStruct((x.shape[1], x.shape[0]), x.dtype),
        # the last axis runs fastest: neighbours write one stretch of the result, which measured faster than reading one
        grid=lambda x: (kd.cdiv(x.shape[1], columns), kd.cdiv(x.shape[0], rows)),
        grid_names=("column", "row"),
        scratch_types=lambda x: {"tile": kd.SMEM((rows, columns + padding), x.dtype)},
        name=f"transpose_{rows}x{columns}",
    )
    def transpose(x: Any, out: Any, *, tile: Any) -> None:
        down = kd.ds(kd.axis_index("row") * rows, rows)
        across = kd.ds(kd.axis_index("column") * columns, columns)
        tile[:, :columns] = kd.load(x, (down, across), layout=layout_in(rows, columns, vector))
        out[across, down] = kd.load(tile.at[:, :columns].T, layout=layout_out(columns, rows, vector))

    return transpose


def transpose(x: Any, **options: Any) -> Any:
    """The transpose of a 2-D array of 16- or 32-bit elements."""
    return transpose_kernel(x.dtype.itemsize)(x, **options)


def main() -> None:
    """Check shapes around the tile's against NumPy: a transpose is exact."""
    rng = np.random.default_rng(0)
    for shape in [(64, 64), (1, 7), (65, 130), (200, 96), (0, 5)]:
        for dtype in [np.dtype(np.float32), np.dtype(np.int32), kd.bfloat16.numpy, np.dtype(np.float16)]:
            x = (rng.standard_normal(shape) * 100).astype(dtype)
            assert np.array_equal(transpose(x), x.T)
        print(f"transpose of {shape}: exact")


if __name__ == "__main__":
    main()
