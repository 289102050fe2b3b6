import kernel_dsl as kd
import numpy as np


@kd.kernel(out_type=kd.ShapeDtypeStruct((), kd.float32))
def kernel(x, out):
    out[...] = x.mean()


kernel(np.ones((4, 8), np.float32))
