import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


nest = [x]
nest.append(nest)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def kernel(nest, out):
    out[...] = nest[0][...]


kernel(nest)
