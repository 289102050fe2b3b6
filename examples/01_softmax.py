"""Softmax along the last axis by three kernels: many rows a warpgroup, one row a warpgroup, several warpgroups a row.

Each kernel reads a row once and writes it once; between the load and the store, the row stays in registers. The kernels
differ in the number of lanes that share a row: several short rows fit a warpgroup, and a long row needs several
warpgroups.

Run it: `python examples/01_softmax.py`. Without a GPU the kernels run in the PTX interpreter.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd


def rows_kernel(rows: int) -> Any:
    """`rows` rows a warpgroup: the value is a (rows, columns) block, which is reduced along its last axis."""

    @kd.kernel(
        out_type=lambda x: x,
        grid=lambda x: (kd.cdiv(x.shape[0], rows),),
        grid_names=("block",),
        name=f"softmax_{rows}_rows",
    )
    def softmax(x: Any, out: Any) -> None:
        block = kd.ds(kd.axis_index("block") * rows, rows)  # rows past the end are masked
        value = x[block].astype(kd.float32)
        shifted = kd.exp(value - kd.max(value, axis=-1, keepdims=True))
        scale = 1.0 / kd.sum(shifted, axis=-1, keepdims=True)
        out[block] = (shifted * scale).astype(x.dtype)

    return softmax


def row_kernel(warpgroups: int, params: kd.CompilerParams | None = None) -> Any:
    """One row over several warpgroups: each holds a part of the row, and they exchange their maxima and sums.

    A row of 16-bit elements keeps its dtype in registers, two elements to a register. The kernel computes the
    exponentials twice, for the sum and for the result, and stores none. So two rows fit a multiprocessor, which loads
    one while it computes the other. The optimization barriers prevent the compiler from keeping the row in float32.
    """

    @kd.kernel(
        out_type=lambda x: x,
        grid=lambda x: (x.shape[0],),
        grid_names=("row",),
        num_threads=warpgroups,
        thread_name="wg",
        scratch_types={
            "maxima": kd.SMEM((warpgroups,), kd.float32),
            "sums": kd.SMEM((warpgroups,), kd.float32),
            "ready": kd.Barrier(num_arrivals=warpgroups),
        },
        compiler_params=params,
        name=f"softmax_{warpgroups}_warpgroups",
    )
    def softmax(x: Any, out: Any, *, maxima: Any, sums: Any, ready: Any) -> None:
        row, wg = kd.axis_index("row"), kd.axis_index("wg")
        width = kd.cdiv(x.shape[1], warpgroups * 8) * 8  # whole 16-byte vectors
        part = kd.ds(wg * width, width)
        value = kd.load(x, (row, part), fill=-np.inf)  # -inf past the row's end
        own_max = kd.max(value).astype(kd.float32)
        value = kd.optimization_barrier(value)
        maxima[wg] = own_max
        sums[wg] = kd.sum(kd.exp(value.astype(kd.float32) - own_max))
        kd.barrier_arrive_and_wait(ready)
        value = kd.optimization_barrier(value)
        row_max = kd.max(maxima[...])
        total = kd.sum(sums[...] * kd.exp(maxima[...] - row_max))
        out[row, part] = (kd.exp(value.astype(kd.float32) - row_max) * (1.0 / total)).astype(x.dtype)

    return softmax


@functools.cache
def softmax_for(columns: int, dtype: Any = kd.bfloat16) -> Any:
    """The kernel that suits rows of this length."""
    if columns <= 1024:
        return rows_kernel(max(1, 2048 // columns))
    if columns <= 8192:
        return rows_kernel(1)
    if dtype.itemsize > 2:
        return row_kernel(8)
    # the hardware's exponential has an error of 2 ulp of float32, which a 16-bit result does not show
    return row_kernel(min(8, max(2, kd.cdiv(columns, 16384))), kd.CompilerParams(approx_math=True, max_registers=112))


def softmax(x: Any, **options: Any) -> Any:
    """Softmax of a 2-D array along its last axis."""
    return softmax_for(x.shape[1], x.dtype)(x, **options)


def reference(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same in float64."""
    wide = x.astype(np.float64)
    shifted = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def main() -> None:
    """Check the three kernels against NumPy."""
    rng = np.random.default_rng(0)
    for shape in [(37, 100), (64, 128), (9, 4096), (5, 5000), (3, 16384)]:
        for dtype, tolerance in [(np.dtype(np.float32), 1e-6), (kd.bfloat16.numpy, 8e-3)]:
            x = rng.standard_normal(shape).astype(dtype)
            expected = reference(x)
            error = np.max(np.abs(softmax(x).astype(np.float64) - expected) / expected.max(-1, keepdims=True))
            print(f"softmax of {shape} {dtype.name}: worst error {error:.1e} of the row's largest")
            assert error < tolerance


if __name__ == "__main__":
    main()
