import kernel_dsl as kd
import numpy as np

x = np.ones(8, np.float32)


@kd.kernel(out_type=x, grid=(2,), grid_names=("i",))
def kernel(x, out):
    out[...] = x[...] + kd.axis_index(("i", "j"))


kernel(x)
