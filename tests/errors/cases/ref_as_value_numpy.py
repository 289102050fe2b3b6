import kernel_dsl as kd
import numpy as np

x = np.ones((64, 64), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((64, 64), kd.float32), scratch_types=[kd.ACC((64, 64))])
def kernel(x, out, scratch):
    out[...] = np.exp(x)


kernel(x)
