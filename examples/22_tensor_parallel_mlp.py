"""A tensor-parallel MLP: each GPU has a slice of the hidden layer, and sends tiles while it multiplies others.

The MLP is y = gelu(x @ w1) @ w2. Each GPU has some rows of x, and the columns of w1 and rows of w2 of its slice. The
first product gathers the rows of x while it multiplies. The second product sends each sum to the GPU that owns its
rows. So there are two kernels with products, and one between them.

Without two GPUs, it runs on two virtual ones. Run it: `python examples/22_tensor_parallel_mlp.py`, or with one process
for each GPU: `torchrun --nproc-per-node 2 examples/22_tensor_parallel_mlp.py`.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import kernel_dsl as kd

DEVICES, ROWS, WIDTH, HIDDEN = 2, 128, 64, 128  # rows and hidden units of a GPU
mesh = kd.Mesh(("x",), (DEVICES,))


@kd.kernel(
    out_type=lambda h: kd.ShapeDtypeStruct(h.shape, kd.bfloat16),
    grid=(DEVICES * ROWS,),
    grid_names=("row",),
    mesh=mesh,
)
def gelu(h: Any, out: Any) -> None:
    row = kd.axis_index("row")
    x = h[row].astype(kd.float32)
    out[row] = (0.5 * x * (1.0 + kd.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))).astype(kd.bfloat16)


def mlp(x: Any, w1: Any, w2: Any) -> Any:
    hidden = gelu(kd.library.all_gather_matmul(x, w1, mesh, timeout=10))
    return kd.library.matmul_reduce_scatter(hidden, w2, mesh, timeout=10)


def main() -> None:
    rng = np.random.default_rng(0)

    def random(rows: int, columns: int) -> list[np.ndarray]:
        return [(rng.standard_normal((rows, columns)) / rows**0.5).astype(kd.bfloat16.numpy) for _ in range(DEVICES)]

    x, w1, w2 = random(ROWS, WIDTH), random(WIDTH, HIDDEN), random(HIDDEN, WIDTH)
    wide = [np.concatenate([a.astype(np.float64) for a in arrays], axis) for arrays, axis in ((x, 0), (w1, 1), (w2, 0))]
    h = wide[0] @ wide[1]
    want = 0.5 * h * (1.0 + np.tanh(0.7978845608 * (h + 0.044715 * h**3))) @ wide[2]
    if "RANK" in os.environ:  # under torchrun this process has one GPU, and passes its own arrays
        from one_rank import one_rank, to_numpy

        with one_rank() as (rank, placed):
            made = mlp(*(placed(a[rank]) for a in (x, w1, w2)))
            results = {rank: to_numpy(made, kd.bfloat16.numpy)}
    else:
        results = dict(enumerate(mlp(x, w1, w2)))
    for device, got in results.items():
        error = np.abs(got.astype(np.float64) - np.split(want, DEVICES)[device]).max() / np.abs(want).max()
        print(f"device {device}: largest error {error:.1e} of the largest element")
        assert error < 2e-2


if __name__ == "__main__":
    main()
