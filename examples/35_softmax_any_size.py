"""One softmax for matrices of every size: compiled once for any number of rows and columns.

The body never converts an extent to a Python int. The grid gives its rows. It reads a row as a slice of a size of its
own, `widest`: elements past the end of the row are masked, and `fill=-inf` gives them no weight. So the extents are
arguments of the launch, and the code does not depend on them. The signature has one fact about the columns, the size of
vectors: rows of a multiple of 4 float32 start at multiples of 16 bytes, and others do not. `kernel.specialisations()`
lists the compiled kernels.

Run it: `python -m examples.35_softmax_any_size`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kernel_dsl as kd


@functools.cache
def softmax_kernel(widest: int = 4096) -> Any:
    """Softmax of rows of up to `widest` columns, a row a warpgroup."""

    @kd.kernel(
        out_type=lambda x: x,
        grid=lambda x: (x.shape[0], kd.cdiv(x.shape[1], widest)),
        grid_names=("row", "part"),
        name=f"softmax_up_to_{widest}",
    )
    def softmax(x: Any, out: Any) -> None:
        row = (kd.axis_index("row"), kd.ds(kd.axis_index("part") * widest, widest))  # the only part: part 0
        value = kd.load(x, row, fill=-np.inf).astype(kd.float32)
        powers = kd.exp(value - kd.max(value))
        out[row] = (powers / kd.sum(powers)).astype(x.dtype)

    return softmax


def softmax(x: Any, **options: Any) -> Any:
    """Softmax along the last axis of a 2-D array of up to 8192 columns."""
    widest = next((w for w in (1024, 4096, 8192) if x.shape[1] <= w), None)
    if widest is None:
        raise ValueError(f"rows of {x.shape[1]} columns are longer than 8192")
    return softmax_kernel(widest)(x, **options)


def main() -> None:
    """Compare many sizes with float64, and count the kernels that were compiled for them."""
    rng = np.random.default_rng(0)
    kernel = softmax_kernel(1024)
    sizes = [(1, 4), (7, 100), (3, 1000), (20, 36), (2, 1024), (5, 8), (6, 512)]
    for shape in sizes:
        x = rng.standard_normal(shape).astype(np.float32)
        powers = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
        error = np.max(np.abs(kernel(x) - powers / powers.sum(-1, keepdims=True)))
        assert error < 1e-6, (shape, error)
    compiled = kernel.specialisations()
    print(f"softmax of {len(sizes)} sizes: compiled {len(compiled)} time(s)")
    assert len(compiled) == 1, compiled


if __name__ == "__main__":
    main()
