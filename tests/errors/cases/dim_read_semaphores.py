import kernel_dsl as kd
import numpy as np

M = kd.Dim("M")


@kd.kernel(
    out_type=kd.ShapeDtypeStruct((M,), kd.float32),
    shapes={"x": (M,)},
    scratch_types={"tiles": kd.SemaphoreType.REGULAR((kd.cdiv(M, 64),))},
)
def kernel(x, out, tiles):
    out[0] = x[0]


kernel(np.ones(4, np.float32), interpret=True)
