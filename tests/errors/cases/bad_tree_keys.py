import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def kernel(nest, out):
    out[...] = nest["a"][...]


kernel({"a": x, 1: x})
