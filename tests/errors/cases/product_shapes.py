import kernel_dsl as kd
import numpy as np


@kd.kernel(out_type=kd.ShapeDtypeStruct((8, 8), kd.float32))
def kernel(x, out):
    out[...] = x[...] @ x[...]


kernel(np.ones((8, 16), np.float32), interpret=True)
