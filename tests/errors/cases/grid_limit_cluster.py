import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32), cluster=(2,), cluster_names=("c",), compiler_params=kd.CompilerParams(target="sm_80"))
def kernel(x, out):
    out[...] = x[...]


kernel.lower(x).ptx
