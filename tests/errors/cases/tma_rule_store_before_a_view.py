import kernel_dsl as kd
import numpy as np


@kd.kernel(out_type=kd.ShapeDtypeStruct((64, 32), kd.float32), scratch_types=[kd.SMEM((16, 32), kd.float32)])
def kernel(x, out, tile):
    tile[...] = x[...]
    kd.commit_smem()
    kd.copy_smem_to_gmem(tile, out.at[16:48].at[kd.ds(-8, 16)])
    kd.wait_smem_to_gmem(0)


kernel(np.ones((16, 32), np.float32))
