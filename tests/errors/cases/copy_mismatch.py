import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32), scratch_types=[kd.SMEM((8, 8), kd.float32), kd.Barrier()])
def kernel(x, out, s, b):
    kd.copy_gmem_to_smem(x, s, b)
    kd.barrier_wait(b)
    out[...] = s[...]


kernel(x)
