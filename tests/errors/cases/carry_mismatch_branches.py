import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def kernel(x, out):
    def double(v):
        return v * 2

    def halve(v):
        return v[0]

    out[...] = kd.cond(x[0, 0] > 0, double, halve, x[...])


kernel(x)
