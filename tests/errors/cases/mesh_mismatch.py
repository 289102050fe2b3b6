import kernel_dsl as kd
import numpy as np

mesh = kd.Mesh(("x",), (2,))
xs = [np.ones(128, np.float32), np.ones(128, np.float32)]


@kd.kernel(out_type=kd.ShapeDtypeStruct((128,), kd.float32), mesh=mesh, interpret=True)
def kernel(x, out):
    out[...] = kd.remote_ref(x, 0)[...]


kernel([xs[0]])
