from dataclasses import dataclass

import kernel_dsl as kd
import numpy as np
from tests.tuning.fake import gpu

x = np.ones((4, 8), np.float32)


@dataclass(frozen=True)
class Config:
    rows: int


def double(config):
    @kd.kernel(out_type=lambda x: kd.ShapeDtypeStruct(x.shape, x.dtype), name=f"double_{config.rows}")
    def body(x, out):
        out[...] = x[...] * config.rows

    return body


tuned = kd.tune([Config(2), Config(4)])(double)

# what a GPU found, played
with gpu(results=lambda name: x * (2 if name == "double_2" else 4)):
    tuned.tune(x)
