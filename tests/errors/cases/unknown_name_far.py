import kernel_dsl as kd
import numpy as np


@kd.kernel(out_type=lambda x: x)
def kernel(x, out):
    out[...] = x.zzyzx


kernel(np.ones((4, 8), np.float32), interpret=True)
