import kernel_dsl as kd
import numpy as np

x = np.ones(8, np.float32)


@kd.kernel(out_type=x)
def kernel(x, out):
    out[...] = kd.random.bits(3, (8,), offset=-4)


kernel(x)
