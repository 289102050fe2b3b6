import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def kernel(a, b, out):
    out[...] = (a[...] + b[...]).astype(kd.float32)


kernel(x.astype(np.uint64), x.astype(np.int32))
