import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32), shapes={"x": (kd.Dim("M"), 8)})
def kernel(x, out):
    half = x.shape[0] // 2
    out[...] = x[:half] + x[half:]


kernel(x)
