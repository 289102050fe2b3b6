import kernel_dsl as kd
import numpy as np

M, N = kd.Dim("M"), kd.Dim("N", max=64)


@kd.kernel(out_type=kd.ShapeDtypeStruct((N,), kd.float32), shapes={"x": (M, 8)})
def kernel(x, out):
    out[kd.ds(0, 8)] = x[0]


kernel(np.ones((4, 8), np.float32), interpret=True)
