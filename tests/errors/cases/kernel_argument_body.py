import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


kd.kernel(3, out_type=kd.ShapeDtypeStruct((4,), kd.float32))
