"""The transpose of a matrix of 16- or 32-bit elements of any shape, through SMEM and without bank conflicts.

GMEM is fast for accesses to neighbours. So the load and the store both move 16 bytes a lane, and eight lanes (four for
the store of 16-bit elements) access whole sectors of one row. In between, the block lies in a tile of SMEM. Each row of
the tile has one additional 32-bit word. SMEM has 32 banks of one word, so the next row lies one bank further:

- for the stores to SMEM, lane (c, r) writes the words of its vector in turn, to banks 4 c + r, with c < 8 and r < 4:
  these are 32 different banks;
- for the loads, lane (r, c) reads elements down a column. For 32 bits their banks are 4 r + c with r < 8 and c < 4. For
  16 bits they are 8 r + c / 2 with r < 4 and c < 8, and lanes that read the two halves of a word share its bank.

A `kd.Layout` at the load says which lane holds which elements. Run it: `python examples/04_transpose.py`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd


def layout_in(rows: int, columns: int, vector: int) -> Any:
    """A (rows, columns) block: eight lanes of `vector` elements along a row, four rows a warp, then the next warps."""
    lanes = ((1, vector), (1, 2 * vector), (1, 4 * vector), (0, 1), (0, 2))
    regs = ((0, rows // 16, 16), (1, columns // (8 * vector), 8 * vector), (1, vector, 1))
    return kd.Layout(2, regs, lanes, ((0, 4), (0, 8)))


def layout_out(columns: int, rows: int, vector: int) -> Any:
    """A (columns, rows) block of the transpose: 32 / vector lanes along each row, `vector` rows a warp."""
    if vector == 4:
        lanes = ((1, 4), (1, 8), (1, 16), (0, 1), (0, 2))
    else:
        lanes = ((1, 8), (1, 16), (0, 1), (0, 2), (0, 4))
    regs = ((0, columns // (4 * vector), 4 * vector), (1, rows // 32, 32), (1, vector, 1))
    return kd.Layout(2, regs, lanes, ((0, vector), (0, 2 * vector)))


@functools.cache
def transpose_kernel(itemsize: int, rows: int = 64, columns: int = 64) -> Any:
    """The kernel for tiles of this shape, with one warpgroup a tile. `rows` and `columns` are multiples of 64."""
    vector = 16 // itemsize
    padding = 4 // itemsize  # one word

    @kd.kernel(
        out_type=lambda x: kd.ShapeDtypeStruct((x.shape[1], x.shape[0]), x.dtype),
        # blocks that run together write neighbours in the result: this was measured to be faster than reading neighbours
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
