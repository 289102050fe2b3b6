import kernel_dsl as kd
import ml_dtypes
import numpy as np

w = np.zeros((4, 8), ml_dtypes.int4)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4,), kd.float32), interpret=True)
def kernel(w, out):
    out[...] = w[:, 3].astype(kd.float32)


kernel(w)
