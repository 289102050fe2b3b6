import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


kept = []


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def first(x, out):
    kept.append(x[...])
    out[...] = x[...]


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def second(x, out):
    out[...] = x[...] + kept[0]


first.lower(x)
second(x)
