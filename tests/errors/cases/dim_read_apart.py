import kernel_dsl as kd
import numpy as np

M = kd.Dim("M", max=4096)


@kd.kernel(out_type=kd.ShapeDtypeStruct((8,), kd.float32), shapes={"x": (M, 8)})
def kernel(x, out):
    out[...] = x[0]

    @kd.loop(1, M)
    def _(i):
        out[...] += x[i]


kernel(np.ones((4, 8), np.float32), interpret=True)
