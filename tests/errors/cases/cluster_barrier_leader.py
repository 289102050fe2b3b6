import kernel_dsl as kd
import numpy as np

x = np.zeros((64, 64), np.float32)


@kd.kernel(
    out_type=kd.ShapeDtypeStruct((64, 64), kd.float32),
    scratch_types=[kd.SMEM((64, 64), kd.float32), kd.ClusterBarrier(collective_axes=("c",), leader_tracked=True)],
    cluster=(2,),
    cluster_names=("c",),
)
def kernel(x, out, tile, barrier):
    kd.copy_gmem_to_smem(x, tile, barrier)


kernel(x)
