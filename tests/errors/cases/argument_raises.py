import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


class Size:
    def __index__(self):
        raise RuntimeError("not known yet")


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def kernel(x, out):
    out[...] = kd.reshape(x[...], Size(), 8)


kernel(x)
