import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 7), kd.float32), scratch_types=[kd.SMEM((4, 4), kd.float32), kd.Barrier()])
def kernel(x, out, s, b):
    kd.copy_gmem_to_smem(x.at[:, :4], s, b)
    kd.barrier_wait(b)
    out[:, :4] = s[...]


kernel(np.ones((4, 7), np.float32))
