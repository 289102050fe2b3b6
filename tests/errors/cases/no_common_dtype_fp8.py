import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def kernel(a, b, out):
    out[...] = a[...] + b[...]


kernel(np.zeros((4, 8), kd.float8_e4m3fn.numpy), np.zeros((4, 8), kd.float8_e5m2.numpy))
