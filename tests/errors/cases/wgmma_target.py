import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


h = np.ones((64, 64), kd.bfloat16.numpy)


@kd.kernel(out_type=kd.ShapeDtypeStruct((64, 64), kd.float32), scratch_types=[kd.SMEM((64, 64), kd.bfloat16, transforms=(kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))), kd.SMEM((64, 64), kd.bfloat16, transforms=(kd.TilingTransform((8, 64)), kd.SwizzleTransform(128))), kd.ACC((64, 64))])
def kernel(h, out, a, b, acc):
    a[...] = h[...]
    b[...] = h[...]
    kd.commit_smem()
    kd.wgmma(acc, a, b)
    out[...] = acc[...]


kernel.lower(h, target="sm_100a").ptx
