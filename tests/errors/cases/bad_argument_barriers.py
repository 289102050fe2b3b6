import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32), scratch_types=[kd.Barrier(num_barriers=2)])
def kernel(x, out, b):
    kd.barrier_arrive(b)


kernel(x)
