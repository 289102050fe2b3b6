import kernel_dsl as kd
import numpy as np

x = np.ones((16, 32), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((16, 32), kd.float32))
def kernel(x, out):
    tile = kd.run_scoped(lambda tile: tile, kd.SMEM((16, 32), kd.float32))
    tile[...] = x[...]
    out[...] = tile[...]


kernel(x)
