"""z = x + y for vectors of any length: the first kernel to read.

Each block adds `BLOCK` elements. The last block's slice may end outside the array. There, loads give 0 and stores do
nothing.

Run it: `python examples/02_vector_add.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

BLOCK = 1024


@kd.kernel(
    out_type=lambda x, y: x,
    grid=lambda x, y: (kd.cdiv(x.shape[0], BLOCK),),
    grid_names=("block",),
)
def vector_add(x: Any, y: Any, z: Any) -> None:
    """Add one block's slice."""
    part = kd.ds(kd.axis_index("block") * BLOCK, BLOCK)
    z[part] = x[part] + y[part]


def main() -> None:
    """Check lengths around the block's against NumPy."""
    rng = np.random.default_rng(0)
    for length in (0, 1, 1023, 1024, 1025, 100_003):
        x = rng.standard_normal(length).astype(np.float32)
        y = rng.standard_normal(length).astype(np.float32)
        assert np.array_equal(vector_add(x, y), x + y)
        print(f"vector_add of {length} elements: exact")


if __name__ == "__main__":
    main()
