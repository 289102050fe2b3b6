import kernel_dsl as kd
import numpy as np

M = kd.Dim("M")


@kd.kernel(out_type=kd.ShapeDtypeStruct((8,), kd.float32), shapes={"x": (M, 8)})
def kernel(x, out):
    out[...] = x[0] / M


kernel(np.ones((4, 8), np.float32), interpret=True)
