"""int8 weights times bfloat16 activations: the kernel widens the weights in registers before the tensor cores read
them.

wgmma takes its first operand from registers. So the kernel loads the int8 tile from SMEM in the layout of that operand,
converts it there, and multiplies. The weights take half the bytes of a bfloat16 matrix, and need no separate pass.

Run it: `python examples/14_mixed_matmul.py`. Without a GPU the kernel runs in the PTX interpreter.
"""

from __future__ import annotations

import numpy as np

import kernel_dsl as kd


def main() -> None:
    """Check against float64."""
    rng = np.random.default_rng(0)
    for rows, columns, depth, transposed in [(128, 128, 256, False), (200, 136, 80, True)]:
        a = rng.integers(-128, 128, (rows, depth), np.int8)
        b = rng.standard_normal((columns, depth) if transposed else (depth, columns)).astype(kd.bfloat16.numpy)
        b = b.T if transposed else b
        got = kd.library.matmul(a, b)
        expected = a.astype(np.float64) @ b.astype(np.float64)
        error = np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max()
        print(f"int8 {rows} x {depth} times bfloat16 {depth} x {columns}: worst error {error:.1e}")
        assert got.dtype == kd.bfloat16 and error < 5e-3
        assert kd.library.matmul.lower(a, b).name == "matmul"


if __name__ == "__main__":
    main()
