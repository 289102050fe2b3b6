import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32), scratch_types=[kd.ACC((60, 8))])
def kernel(x, out, acc):
    out[...] = x[...]


kernel(x)
