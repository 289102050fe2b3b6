import kernel_dsl as kd
import numpy as np

x = np.ones((16, 32), np.int32)


@kd.kernel(
    out_type=kd.ShapeDtypeStruct((16, 32), kd.int32),
    scratch_types=[kd.SMEM((16, 32), kd.int32), kd.Barrier()],
)
def kernel(x, out, tile, ready):
    kd.copy_gmem_to_smem(x, tile, ready, oob_mode=kd.OOBFillMode.NANS)
    kd.barrier_wait(ready)
    out[...] = tile[...]


kernel(x)
