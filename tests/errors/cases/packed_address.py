import kernel_dsl as kd
import ml_dtypes
import numpy as np

w = np.zeros((4, 8), ml_dtypes.uint4)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32), interpret=True)
def kernel(w, out):
    out[...] = kd.inline_ptx("ld.global.f32 $0, [$1];", w, out_type=kd.float32)


kernel(w)
