"""A matrix product for GPUs before Hopper, by cp.async and mma.sync, with the same functions.

`copy_gmem_to_smem` without a barrier is one cp.async group; `wait_gmem_to_smem(n)` waits until at most n are in flight.
`kd.dot` of values selects mma.sync and the layouts of its fragments.

Run it: `python examples/13_matmul_sm80.py`. Without a GPU the kernel runs in the PTX interpreter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

M, N, K, STAGES = 64, 64, 32, 3


@kd.kernel(
    out_type=lambda a, b: kd.ShapeDtypeStruct((a.shape[0], b.shape[1]), kd.float32),
    grid=lambda a, b: (kd.cdiv(a.shape[0], M), kd.cdiv(b.shape[1], N)),
    grid_names=("m", "n"),
    scratch_types=lambda a, b: [
        kd.SMEM((STAGES, M, K), a.dtype, transforms=(kd.TilingTransform((8, K)), kd.SwizzleTransform(64))),
        kd.SMEM((STAGES, K, N), b.dtype, transforms=(kd.TilingTransform((8, N)), kd.SwizzleTransform(128))),
    ],
)
def matmul(a: Any, b: Any, out: Any, a_smem: Any, b_smem: Any) -> None:
    """out = a @ b, for 16-bit floats whose rows are multiples of 16 bytes."""
    rows, columns = kd.ds(kd.axis_index("m") * M, M), kd.ds(kd.axis_index("n") * N, N)
    steps = kd.cdiv(a.shape[1], K)

    def fetch(step: Any) -> None:
        slot = kd.rem(step, STAGES) if not isinstance(step, int) else step % STAGES
        depth = kd.ds(step * K, K)  # zeros past the end
        kd.copy_gmem_to_smem(a.at[rows, depth], a_smem.at[slot])
        kd.copy_gmem_to_smem(b.at[depth, columns], b_smem.at[slot])

    for step in range(STAGES - 1):
        fetch(step)

    @kd.loop(0, steps, init_carry=kd.zeros((M, N), kd.float32))
    def total(step: Any, acc: Any) -> Any:
        kd.wait_gmem_to_smem(2 * (STAGES - 2))
        slot = kd.rem(step, STAGES)
        x, y = a_smem[slot], b_smem[slot]
        fetch(step + STAGES - 1)
        return kd.dot(x, y, acc=acc)

    out[rows, columns] = total


def main() -> None:
    """Check against float64."""
    rng = np.random.default_rng(0)
    for m, n, k in [(64, 64, 128), (100, 72, 88)]:
        for dtype in (kd.bfloat16, kd.float16):
            a = rng.standard_normal((m, k)).astype(dtype.numpy)
            b = rng.standard_normal((k, n)).astype(dtype.numpy)
            expected = a.astype(np.float64) @ b.astype(np.float64)
            error = np.abs(matmul(a, b) - expected).max() / np.abs(expected).max()
            assert "mma.sync" in matmul.lower(a, b, target="sm_80").ptx
            print(f"{m} x {n} x {k} {dtype}: worst error {error:.1e}")
            assert error < 1e-5


if __name__ == "__main__":
    main()
