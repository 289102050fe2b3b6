import kernel_dsl as kd
import numpy as np

x = np.ones(8, np.float32)


@kd.kernel(out_type=x, grid=(2**20, 2**11), grid_names=("i", "j"))
def kernel(x, out):
    @kd.dynamic_scheduling_loop(("i", "j"))
    def _(info):
        out[...] = x[...]



kernel(x)
