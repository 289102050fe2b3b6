import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((), kd.int32))
def kernel(x, out):
    out[...] = kd.argmax(x[...], axis=(0, 1))


kernel(x)
