import kernel_dsl as kd
import numpy as np

M = kd.Dim("M", max=64)


@kd.kernel(out_type=lambda x, y: x, grid=(M,), shapes={"x": (M, 8), "y": (M,)})
def kernel(x, y, out):
    out[kd.program_id(0)] = x[kd.program_id(0)] + y[kd.program_id(0)]


kernel(np.ones((65, 8), np.float32), np.ones(65, np.float32), interpret=True)
