import kernel_dsl as kd
import numpy as np

x = np.ones((16, 32), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((16, 32), kd.float32), num_threads=2, thread_name="wg")
def kernel(x, out):
    def step(index, x_tile, out_tile, *released):
        out_tile[...] = x_tile[...] * 2

    block = kd.BlockSpec((8, 32), lambda i: (i, 0), delay_release=1)
    kd.emit_pipeline_warp_specialized(
        step,
        grid=(2,),
        memory_registers=40,
        in_specs=[block],
        out_specs=[block],
        wg_axis="wg",
        num_compute_wgs=1,
    )(x, out)


kernel(x)
