import kernel_dsl as kd
import numpy as np


@kd.kernel(
    out_type=kd.ShapeDtypeStruct((64, 32), kd.float32),
    scratch_types=[kd.SMEM((64, 32), kd.float32), kd.Barrier()],
    cluster=(2,),
    cluster_names=("pair",),
)
def kernel(x, start, out, tile, ready):
    kd.copy_gmem_to_smem(x.at[:, kd.ds(start, 32)], tile, ready, collective_axes="pair")
    kd.barrier_wait(ready)
    out[...] = tile[...]


kernel(np.ones((64, 64), np.float32), 4)
