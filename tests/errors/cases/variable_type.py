import kernel_dsl as kd
import numpy as np


@kd.kernel(out_type=lambda x, n: x)
def scale(x, n, out):
    out[...] = x[...] * n


with kd.Graph() as g:
    scale(np.ones(8, np.float32), kd.Variable("n", 1, 8))
g(n=1.5)
