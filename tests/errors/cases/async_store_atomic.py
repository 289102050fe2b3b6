import kernel_dsl as kd
import numpy as np

x = np.ones(64, np.int32)


@kd.kernel(out_type=x, scratch_types=[kd.SMEM((64,), kd.int32), kd.Barrier()], cluster=(2,), cluster_names=("c",))
def kernel(x, out, sums, ready):
    kd.async_store_smem(x[...], sums, ready, cluster_dim="c", cluster_idx=0, atomic="max")


kernel(x)
