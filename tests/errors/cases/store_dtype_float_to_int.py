import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4,), kd.int32))
def kernel(out):
    out[...] = 1.5


kernel()
