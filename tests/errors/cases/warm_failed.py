import os

import kernel_dsl as kd


@kd.kernel(out_type=lambda x: x)
def kernel(x, out):
    os._exit(7)


kd.warm([(kernel, kd.ShapeDtypeStruct((8,), kd.float32))])
