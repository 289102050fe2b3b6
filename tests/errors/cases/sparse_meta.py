import numpy as np

import kernel_dsl as kd


@kd.kernel(
    out_type=kd.ShapeDtypeStruct((64, 64), kd.float32),
    scratch_types=[kd.SMEM((64, 32), kd.bfloat16), kd.SMEM((64, 64), kd.bfloat16), kd.ACC((64, 64))],
)
def product(meta, out, a, b, acc):
    kd.wgmma(acc, a, b, sparse_meta=meta[...])
    out[...] = acc[...]


product(np.zeros((64, 4), np.uint32))
