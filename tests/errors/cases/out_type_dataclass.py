from dataclasses import dataclass

import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


@dataclass
class Outputs:
    y: kd.ShapeDtypeStruct


@kd.kernel(out_type=Outputs(kd.ShapeDtypeStruct((4, 8), kd.float32)))
def kernel(x, out):
    out.y[...] = x[...]


kernel(x)
