import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def kernel(x, out):
    def step(index, x_tile, out_tile):
        out_tile[...] = x_tile[...] * 2

    kd.emit_pipeline(
        step,
        grid=(1,),
        in_specs=[kd.BlockSpec((4, 8), lambda i: (i, 0), collective_axes="c")],
        out_specs=[kd.BlockSpec((4, 8), lambda i: (i, 0))],
        max_concurrent_steps=2,
    )(x, out)


kernel(x)
