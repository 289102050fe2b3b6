"""A matrix product with a warpgroup that only loads, while the others only multiply.

`emit_pipeline_warp_specialized` gives the loads to the last warpgroup, moves registers from it to the others, and runs
the body in each compute warpgroup; here each of these owns half of the tile's rows. `compute_context` wraps the work of
these warpgroups before and after the loop: here an accumulator and the epilogue.

Run it: `python examples/11_matmul_warp_specialized.py`. Without a GPU the kernel runs in the PTX interpreter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

M, N, K, CONSUMERS = 128, 256, 64, 2
ROWS = M // CONSUMERS
TILE = (kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))


@kd.kernel(
    out_type=lambda a, b: kd.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype),
    grid=lambda a, b: (kd.cdiv(a.shape[0], M), kd.cdiv(b.shape[1], N)),
    grid_names=("m", "n"),
    num_threads=CONSUMERS + 1,
    thread_name="wg",
    scratch_types=lambda a, b: [kd.SMEM((CONSUMERS, ROWS, 64), a.dtype, transforms=TILE)],
)
def matmul(a: Any, b: Any, out: Any, tile: Any) -> None:
    """out = a @ b, for 16-bit floats."""
    m, n, wg = kd.axis_index("m"), kd.axis_index("n"), kd.axis_index("wg")
    mine = kd.ds(wg * ROWS, ROWS)
    accumulators: list[Any] = []

    def multiply(index: Any, a_block: Any, b_block: Any, carry: Any) -> Any:
        kd.wgmma(accumulators[0], a_block.at[mine], b_block)
        kd.wgmma_wait(1)
        return carry

    def compute(pipeline: Any) -> None:
        def run(acc: Any) -> None:
            accumulators.append(acc)
            pipeline(0)
            value = acc[...]
            for part in range(0, N, 64):
                kd.wait_smem_to_gmem(0, wait_read_only=True)
                tile[wg] = value[:, part : part + 64].astype(out.dtype)
                kd.commit_smem()
                kd.copy_smem_to_gmem(tile.at[wg], out.at[kd.ds(m * M + wg * ROWS, ROWS), kd.ds(n * N + part, 64)])
            kd.wait_smem_to_gmem(0)

        kd.run_scoped(run, kd.ACC((ROWS, N)))

    kd.emit_pipeline_warp_specialized(
        multiply,
        grid=(kd.cdiv(a.shape[1], K),),
        memory_registers=40,
        in_specs=[
            kd.BlockSpec((M, K), lambda k: (m, k), transforms=TILE, delay_release=1),
            kd.BlockSpec((K, N), lambda k: (k, n), transforms=TILE, delay_release=1),
        ],
        max_concurrent_steps=4,
        wg_axis="wg",
        num_compute_wgs=CONSUMERS,
        compute_context=compute,
    )(a, b)


def main() -> None:
    """Check against float64."""
    rng = np.random.default_rng(0)
    for rows, columns, depth in [(128, 256, 256), (200, 136, 72)]:
        a = rng.standard_normal((rows, depth)).astype(kd.bfloat16.numpy)
        b = rng.standard_normal((depth, columns)).astype(kd.bfloat16.numpy)
        expected = a.astype(np.float64) @ b.astype(np.float64)
        error = np.abs(matmul(a, b).astype(np.float64) - expected).max() / np.abs(expected).max()
        print(f"{rows} x {columns} x {depth}: worst error {error:.1e}")
        assert error < 5e-3


if __name__ == "__main__":
    main()
