import kernel_dsl as kd
import numpy as np

x = np.ones((256, 64), np.float32)


@kd.kernel(out_type=lambda x: x)
def kernel(x, out):
    def step(index, x_tile, out_tile):
        out_tile[...] = x_tile[...] * 2

    kd.emit_pipeline(
        step,
        grid=(4,),
        in_specs=[kd.BlockSpec((32, 64), lambda i: (i, 0))],
        out_specs=[kd.BlockSpec((32, 64), lambda i: (i, 0))],
        max_concurrent_steps=2,
    )(x.at[:100], out.at[:100])


kernel(x)
