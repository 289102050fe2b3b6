import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


h = np.ones((64, 64), kd.bfloat16.numpy)


@kd.kernel(out_type=kd.ShapeDtypeStruct((64, 64), kd.float32), scratch_types=[kd.SMEM((64, 64), kd.bfloat16, transforms=(kd.SwizzleTransform(100),))])
def kernel(h, out, s):
    out[...] = h[...].astype(kd.float32)


kernel(h)
