"""Cholesky factors of many 32 x 32 matrices, one matrix a warp, without SMEM and barriers.

The body is the algorithm of a textbook on whole values: take a column, divide it by the root of its pivot, and subtract
its outer product. One line makes it fast, the layout of the load: each warp has a matrix, each lane a row, each
register a column. All later operations keep this layout. `kernel.lower(...).notes` lists the operations that move
elements between lanes: the columns that also serve as rows move by shuffles within the warp. Nothing goes through SMEM,
which would take barriers.

Run it: `python -m examples.33_cholesky`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

SIDE, WARPS = 32, 4
ROW_A_LANE = kd.Layout(
    3,
    ((2, SIDE, 1),),  # registers: all columns
    tuple((1, 1 << bit) for bit in range(5)),  # lanes: the 32 rows
    ((0, 1), (0, 2)),  # warps: the 4 matrices
)


@kd.kernel(out_type=lambda a: a, grid=lambda a: (kd.cdiv(a.shape[0], WARPS),), grid_names=("block",))
def cholesky(a: Any, out: Any) -> None:
    """(batch, 32, 32) float32, positive definite: lower triangles L with L @ L.T = a, zeros above."""
    mine = kd.ds(kd.axis_index("block") * WARPS, WARPS)
    rest = kd.load(a, (mine,), layout=ROW_A_LANE)
    i = kd.arange(SIDE)
    for k in range(SIDE):
        column = kd.sum(kd.where(i == k, rest, 0.0), axis=-1)
        pivot = kd.sum(kd.where(i == k, column, 0.0), axis=-1, keepdims=True)
        column = kd.where(i >= k, column * kd.rsqrt(pivot), 0.0)
        below = kd.where(i > k, column[..., None] * column[..., None, :], 0.0)
        rest = kd.where(i == k, column[..., None], rest - below)
    out[mine] = kd.where(i[:, None] >= i, rest, 0.0)


def main() -> None:
    """Compare with NumPy in float64, and check that the PTX has no barrier."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, SIDE, SIDE))
    a = (x @ x.transpose(0, 2, 1) + SIDE * np.eye(SIDE)).astype(np.float32)
    stages = cholesky.lower(a)
    assert all("shuffles" in note.text and "barrier" not in note.text for note in stages.notes)
    assert "bar.sync" not in stages.ptx and "st.shared" not in stages.ptx
    error = np.max(np.abs(cholesky(a) - np.linalg.cholesky(a.astype(np.float64))))
    print(f"Cholesky of {len(a)} matrices: worst error {error:.1e}, 0 barriers")
    assert error < 1e-5


if __name__ == "__main__":
    main()
