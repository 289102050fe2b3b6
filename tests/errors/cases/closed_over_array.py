import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


torch = __import__("torch")
t = torch.ones(4, 8)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def kernel(x, out):
    out[...] = x[...] + t


kernel(x)
