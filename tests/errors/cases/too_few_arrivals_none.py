import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32), scratch_types=[kd.Barrier()])
def kernel(x, out, ready):
    kd.barrier_wait(ready)
    out[...] = x[...]


kernel.lower(x).compile()
