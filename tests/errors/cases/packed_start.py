import kernel_dsl as kd
import ml_dtypes
import numpy as np

w = np.zeros((4, 8), ml_dtypes.int4)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 2), kd.float32), grid=(3,), interpret=True)
def kernel(w, out):
    out[...] = w[:, kd.ds(kd.program_id(0), 2)].astype(kd.float32)


kernel(w)
