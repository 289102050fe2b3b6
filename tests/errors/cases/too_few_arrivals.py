import kernel_dsl as kd
import numpy as np


@kd.kernel(out_type=kd.ShapeDtypeStruct((64,), kd.float32), scratch_types=[kd.Barrier(num_arrivals=8)])
def kernel(x, out, ready):
    kd.barrier_arrive(ready)
    kd.barrier_wait(ready)
    out[...] = x[...]


kernel(np.ones(64, np.float32))
