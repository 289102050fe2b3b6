import kernel_dsl as kd
import numpy as np


@kd.kernel(out_type=kd.ShapeDtypeStruct((64,), kd.float32), scratch_types=[kd.Barrier()])
def kernel(x, out, ready):
    kd.barrier_wait(ready)
    out[...] = x[...]


kernel(np.ones(64, np.float32))
