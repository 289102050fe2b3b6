import kernel_dsl as kd
import numpy as np

x = np.ones((16, 64), np.float16)


@kd.kernel(out_type=kd.ShapeDtypeStruct((16, 16), kd.float32))
def kernel(x, out):
    a, b = x[...], x[...].T
    out[...] = kd.dot(a, b, precision="tf32x3")


kernel(x)
