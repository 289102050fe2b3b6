import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.complex64))
def kernel(z, out):
    out[...] = z[...] + z[...]


kernel(x.astype(np.complex64))
