import kernel_dsl as kd
import numpy as np

x = np.ones((64, 64), np.float32)


@kd.kernel(out_type=x, scratch_types=[kd.Barrier(num_barriers=4)])
def kernel(x, out, ready):
    kd.barrier_wait(ready.at[1:3])


kernel(x)
