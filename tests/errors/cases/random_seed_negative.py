import kernel_dsl as kd
import numpy as np

x = np.ones(8, np.float32)


@kd.kernel(out_type=x)
def kernel(x, out):
    out[...] = kd.random.uniform(-1, (8,))


kernel(x)
