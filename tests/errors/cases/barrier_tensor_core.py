import kernel_dsl as kd

kd.ClusterBarrier(collective_axes=("c",), orders_tensor_core=True)
