import kernel_dsl as kd
import numpy as np

x = np.zeros(256, np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((256,), kd.float32))
def kernel(x, out):
    out[...] = kd.inline_ptx("add.f32 $0[0], $1[0], $1[9];", x[...], out_type=kd.float32)


kernel(x)
