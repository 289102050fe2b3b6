import kernel_dsl as kd
import numpy as np


@kd.kernel(out_type=kd.ShapeDtypeStruct((8, 8), kd.float32))
def kernel(x, out):
    out[...] = kd.dot(x[...], x[...].T, acc=kd.zeros((8, 16), kd.float32))


kernel(np.ones((8, 16), np.float32), interpret=True)
