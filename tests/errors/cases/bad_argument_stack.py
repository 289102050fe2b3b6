import kernel_dsl as kd
import numpy as np


@kd.kernel(out_type=lambda x: kd.ShapeDtypeStruct((2, 8), kd.float32))
def kernel(x, out):
    out[...] = kd.stack([x[0], x[...]])


kernel(np.ones((4, 8), np.float32), interpret=True)
