import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def kernel(x, out):
    kd.fori_loop(0, x[0, 0], lambda i, c: c, 0)


kernel(x)
