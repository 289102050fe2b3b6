import numpy as np

import kernel_dsl as kd

M = kd.Dim("M")


@kd.kernel(out_type=kd.ShapeDtypeStruct((M,), kd.float32), grid=(8 // (M - 3),), shapes={"x": (M,)})
def kernel(x, out):
    out[kd.program_id(0)] = x[kd.program_id(0)]


kernel(np.ones(3, np.float32))
