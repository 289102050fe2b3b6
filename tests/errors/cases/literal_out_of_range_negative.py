import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.uint8))
def kernel(n, out):
    out[...] = n[...] - (-1)


kernel(x.astype(np.uint8))
