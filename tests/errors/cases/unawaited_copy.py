import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=lambda x: x, scratch_types=[kd.SMEM((4, 8), kd.float32), kd.Barrier()])
def kernel(x, out, tile, ready):
    out[...] = x[...]
    kd.copy_gmem_to_smem(x, tile, ready)


kernel.lower(x).ptx
