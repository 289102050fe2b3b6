import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def kernel(x, out):
    def branch(depth):
        if depth == 0:
            return x[...]
        return kd.cond(x[0, 0] > depth, lambda: branch(depth - 1), lambda: x[...] * depth)

    out[...] = branch(200)


kernel(x)
