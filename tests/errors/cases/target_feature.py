import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4,), kd.float32, init=0), compiler_params=kd.CompilerParams(target="sm_80"))
def kernel(out):
    kd.atomic_add(out.at[0], 1.0, scope="cluster")


kernel()
