import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.int8))
def kernel(n, out):
    out[...] = n[...] + 300


kernel(x.astype(np.int8))
