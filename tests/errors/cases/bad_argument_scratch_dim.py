import kernel_dsl as kd
import numpy as np

M = kd.Dim("M")


@kd.kernel(out_type=kd.ShapeDtypeStruct((M,), kd.float32), shapes={"x": (M,)})
def kernel(x, out):
    kd.run_scoped(lambda rows: None, kd.GMEM((x.shape[0],), kd.float32))


kernel(np.ones(4, np.float32), interpret=True)
