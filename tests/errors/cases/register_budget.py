import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32), num_threads=4, thread_name="wg")
def kernel(x, out):
    kd.set_max_registers(240, action="increase")
    out[...] = x[...]


kernel(x)
