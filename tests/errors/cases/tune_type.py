from dataclasses import dataclass

import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@dataclass(frozen=True)
class Config:
    rows: int


@kd.tune([Config(2), Config(4)], key=8)
def double(config):
    @kd.kernel(out_type=lambda x: kd.ShapeDtypeStruct(x.shape, x.dtype), grid=(4 // config.rows,))
    def body(x, out):
        rows = kd.ds(kd.program_id(0) * config.rows, config.rows)
        out[rows] = x[rows] * 2

    return body


double(x)
