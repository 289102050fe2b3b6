import kernel_dsl as kd
import numpy as np

M = kd.Dim("M")


@kd.kernel(out_type=kd.ShapeDtypeStruct((8,), kd.float32), shapes={"x": (M, 8)})
def kernel(x, out):
    out[...] = x.reshape(-1)[kd.ds(8, 8)]


kernel(np.ones((4, 8), np.float32), interpret=True)
