import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4096, 4096), kd.float32), grid=(4096,))
def kernel(x, out):
    out[...] = x[...] * 2.0


kernel.lower(kd.ShapeDtypeStruct((4096, 4096), kd.float32))
