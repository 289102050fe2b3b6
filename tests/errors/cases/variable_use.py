import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32), grid=lambda x: (kd.Variable("n", 1, 8),))
def kernel(x, out):
    out[...] = x[...]


kernel(x)
