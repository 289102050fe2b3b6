"""A matrix product with loads in flight: one warpgroup, a software pipeline, wgmma, and a store by TMA.

`emit_pipeline` loads the next blocks of A and B while the tensor cores multiply the present ones. `delay_release=1`
lets one product stay in flight: the pipeline overwrites a block only after the product that follows its own was issued.

Run it: `python examples/10_matmul_pipelined.py`. Without a GPU the kernel runs in the PTX interpreter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

M, N, K = 128, 128, 64  # of a tile
TILE = (kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))


@kd.kernel(
    out_type=lambda a, b: kd.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype),
    grid=lambda a, b: (kd.cdiv(a.shape[0], M), kd.cdiv(b.shape[1], N)),
    grid_names=("m", "n"),
    scratch_types=lambda a, b: {"acc": kd.ACC((M, N)), "tile": kd.SMEM((M, N), a.dtype, transforms=TILE)},
)
def matmul(a: Any, b: Any, out: Any, *, acc: Any, tile: Any) -> None:
    """out = a @ b, for 16-bit floats."""
    m, n = kd.axis_index("m"), kd.axis_index("n")

    def multiply(index: Any, a_block: Any, b_block: Any) -> None:
        kd.wgmma(acc, a_block, b_block)
        kd.wgmma_wait(1)

    kd.emit_pipeline(
        multiply,
        grid=(kd.cdiv(a.shape[1], K),),
        in_specs=[
            kd.BlockSpec((M, K), lambda k: (m, k), transforms=TILE, delay_release=1),
            kd.BlockSpec((K, N), lambda k: (k, n), transforms=TILE, delay_release=1),
        ],
        max_concurrent_steps=4,
    )(a, b)
    tile[...] = acc[...].astype(out.dtype)
    kd.commit_smem()
    kd.copy_smem_to_gmem(tile, out.at[kd.ds(m * M, M), kd.ds(n * N, N)])
    kd.wait_smem_to_gmem(0)


def main() -> None:
    """Check against float64."""
    rng = np.random.default_rng(0)
    for shape in [(128, 128, 256), (200, 136, 72)]:
        rows, columns, depth = shape
        for dtype in (kd.bfloat16, kd.float16):
            a = rng.standard_normal((rows, depth)).astype(dtype.numpy)
            b = rng.standard_normal((depth, columns)).astype(dtype.numpy)
            expected = a.astype(np.float64) @ b.astype(np.float64)
            error = np.abs(matmul(a, b).astype(np.float64) - expected).max() / np.abs(expected).max()
            print(f"{rows} x {columns} x {depth} {dtype}: worst error {error:.1e}")
            assert error < 5e-3


if __name__ == "__main__":
    main()
