"""Softmax along the last axis, three ways: many rows a warpgroup, one row a warpgroup, one row over several.

Reading a row once and writing it once is all the memory traffic there has to be, so a row stays in registers between
the load and the store. What differs is how many lanes share it: a short row leaves room for others beside it, a long one
needs more lanes than a warpgroup has.

Run it: `python examples/01_softmax.py`. Without a GPU the kernels run in the PTX interpreter.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd


def rows_kernel(rows: int) -> Any:
    """`rows` rows a warpgroup: the value is a (rows, columns) block, reduced along its last axis."""

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
    """One row over several warpgroups: each keeps a part, and they exchange their maximum and their sum.

    A long row of 16-bit elements stays as it came, two to a register; its exponentials are computed twice rather than
    kept, once for the sum and once for the result, so that two rows fit a multiprocessor and one is loaded while the
    other is computed. The optimization barriers keep the compiler from holding the row in float32 all the same.
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
        value = kd.load(x, (row, part), fill=-np.inf)  # past the row's end: -inf
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
    # the hardware's exponential is good to 2 ulp of float32: far below what a 16-bit result shows
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
