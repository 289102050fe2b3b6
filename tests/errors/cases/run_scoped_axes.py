import kernel_dsl as kd
import numpy as np

x = np.ones((16, 32), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((16, 32), kd.float32), num_threads=2, thread_name="wg")
def kernel(x, out):
    kd.run_scoped(lambda tile: None, kd.SMEM((16, 32), kd.float32), collective_axes="warps")


kernel(x)
