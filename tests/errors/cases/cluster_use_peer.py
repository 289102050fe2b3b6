import kernel_dsl as kd
import numpy as np

x = np.ones((16, 32), np.float32)


@kd.kernel(
    out_type=kd.ShapeDtypeStruct((16, 32), kd.float32),
    scratch_types=[kd.SMEM((16, 32), kd.float32), kd.Barrier()],
    cluster=(2,),
    cluster_names=("c",),
)
def kernel(x, out, tile, ready):
    kd.copy_gmem_to_smem(x, kd.cluster_ref(tile, {"c": 1}), ready)


kernel(x)
