from dataclasses import dataclass

import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@dataclass(frozen=True)
class Config:
    rows: int


@kd.tune([Config(1 << 15), Config(1 << 16)])
def double(config):
    @kd.kernel(
        out_type=lambda x: kd.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=[kd.SMEM((config.rows, 8), kd.float32)],
    )
    def body(x, out, tile):
        tile[0:4] = x[...]
        out[...] = tile[0:4]

    return body


double(x)
