import kernel_dsl as kd
import numpy as np

x = np.ones((32, 64), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((16, 64), kd.float32), scratch_types=[kd.SMEM((16, 64), kd.float32), kd.Barrier()])
def kernel(x, rows, out, tile, done):
    part = kd.make_tensor_descriptor(x, (None, None), (0, rows))
    kd.copy_gmem_to_smem(part.at[0:16], tile, done)
    kd.barrier_wait(done)


kernel(x, 5)
