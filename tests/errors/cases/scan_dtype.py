import kernel_dsl as kd
import numpy as np

x = np.ones(8, np.float32)


@kd.kernel(out_type=x)
def kernel(x, out):
    out[...] = kd.associative_scan(lambda a, b: (a + b).astype(kd.float64), x[...])


kernel(x)
