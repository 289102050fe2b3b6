import kernel_dsl as kd
import numpy as np

M = kd.Dim("M")


@kd.kernel(
    out_type=lambda x: x, shapes={"x": (M,)}, scratch_types=lambda x: [kd.RefUnion(kd.SMEM(x.shape, kd.float32))]
)
def kernel(x, out, union):
    out[0] = x[0]


kernel(np.ones(4, np.float32), interpret=True)
