import kernel_dsl as kd
import numpy as np

mesh = kd.Mesh(("x",), (2,))
xs = [np.ones(128, np.float32), np.ones(128, np.float32)]


@kd.kernel(out_type=kd.ShapeDtypeStruct((128,), kd.float32), mesh=mesh)
def kernel(x, out):
    out[...] = kd.multimem_load_reduce(x, collective_axes="x", reduction_op="add")


kernel(xs, interpret=kd.InterpretParams(mapped=((0,), (1,))))
