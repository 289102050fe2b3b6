import kernel_dsl as kd
import numpy as np


@kd.kernel(out_type=lambda x: x)
def doubled(x, out):
    out[...] = x[...] * 2


@kd.kernel(out_type=lambda x: x)
def kernel(x, out):
    out[...] = doubled(x[...]) + 1


kernel(np.ones((4, 8), np.float32))
