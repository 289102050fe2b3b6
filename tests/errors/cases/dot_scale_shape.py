import kernel_dsl as kd
import numpy as np

x = np.ones((16, 256), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((16, 16), kd.float32))
def kernel(x, out):
    a, b = x[...], x[...].T
    out[...] = kd.dot(a, b, a_scale=kd.ones((16, 3)))


kernel(x)
