import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((3, 8), kd.float32))
def kernel(x, out):
    out[...] = x[...]


buffer = np.full((4, 8), -1, np.float32)
kernel(buffer[:3], out=buffer[1:])
