import kernel_dsl as kd
import numpy as np

x = np.ones((32, 64), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((16, 64), kd.float32), scratch_types=[kd.SMEM((16, 64), kd.float32), kd.Barrier()])
def kernel(x, rows, out, tile, done):
    part = kd.make_tensor_descriptor(x, (rows, None), slots=0)


kernel(x, 5)
