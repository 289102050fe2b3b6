import kernel_dsl as kd
import numpy as np


@kd.kernel(out_type=kd.ShapeDtypeStruct((8,), kd.float32))
def kernel(n, out):
    out[...] = kd.fori_loop(0, n, lambda i, total: total + 1.0, kd.zeros((8,)), unroll=True)


kernel(np.int32(4))
