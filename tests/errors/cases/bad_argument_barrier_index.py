import kernel_dsl as kd
import numpy as np

x = np.ones((64, 64), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((64, 64), kd.float32), scratch_types=[kd.Barrier(num_barriers=2)])
def kernel(x, out, scratch):
    kd.barrier_wait(scratch[1])


kernel(x)
