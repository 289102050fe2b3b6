import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32), scratch_types=[kd.SMEM((256, 256), kd.float32), kd.SMEM((8, 8), kd.float32)])
def kernel(x, out, a, b):
    out[...] = x[...]


kernel(x)
