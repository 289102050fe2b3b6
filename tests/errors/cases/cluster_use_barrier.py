import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32), cluster=(2,), cluster_names=("c",), scratch_types=[kd.ClusterBarrier(collective_axes=())])
def kernel(x, out, b):
    out[...] = x[...]


kernel(x)
