import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


kept = []


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def first(x, out):
    kept.append(x)
    out[...] = 0.0


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def second(x, out):
    out[...] = kept[0][...]


first.lower(x)
second(x)
