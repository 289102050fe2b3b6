import kernel_dsl as kd
import numpy as np

x = np.ones(8, np.float32)


@kd.kernel(out_type=x)
def kernel(x, out):
    out[...] = kd.take_along_axis(x[...], [1, [2, 3]])


kernel(x)
