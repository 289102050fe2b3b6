import kernel_dsl as kd
import numpy as np

x = np.ones(8, np.float32)


@kd.kernel(out_type=x, grid=(2,), grid_names=("i",))
def kernel(x, out):
    @kd.dynamic_scheduling_loop("i")
    def _(info):
        return x[...]



kernel(x)
