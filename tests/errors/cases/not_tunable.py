from dataclasses import dataclass

import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@dataclass(frozen=True)
class Config:
    rows: int


@kd.tune([Config(2), Config(4)])
def double(config):
    @kd.kernel(out_type=lambda x: kd.ShapeDtypeStruct(x.shape, x.dtype))
    def body(x, out):
        out[...] = x[...] * config.rows

    return None


double(x)
