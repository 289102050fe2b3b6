import kernel_dsl as kd
import numpy as np

x = np.ones((16, 32), np.float32)


@kd.kernel(
    out_type=kd.ShapeDtypeStruct((16, 32), kd.float32),
    scratch_types=[kd.SMEM((2, 16, 32), kd.float32), kd.Barrier()],
)
def kernel(x, out, tiles, ready):
    kd.copy_gmem_to_smem(x, tiles.at[0], ready)
    kd.copy_gmem_to_smem(x, tiles.at[1], ready)
    kd.barrier_wait(ready)
    out[...] = tiles[0] + tiles[1]


kernel.lower(x).ptx  # noqa: B018
