import kernel_dsl as kd
import numpy as np


@kd.kernel(
    out_type=kd.ShapeDtypeStruct((16, 32), kd.float32),
    scratch_types=[kd.SMEM((16, 32), kd.float32), kd.Barrier()],
)
def kernel(x, first, row, out, tile, ready):
    rows = x.at[kd.ds(first, 64)]
    kd.copy_gmem_to_smem(rows.at[kd.ds(row, 16)], tile, ready)
    kd.barrier_wait(ready)
    out[...] = tile[...]


kernel(np.ones((256, 32), np.float32), 3, 60)
