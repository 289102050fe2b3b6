import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((8,), kd.float32))
def kernel(x, y, out):
    out[...] = x[...] + y[...]


kd.vmap(kernel, (0, 0))(x, x[:3])
