import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.int8, init=1000))
def kernel(x, out):
    out[0] = 1


kernel(x)
