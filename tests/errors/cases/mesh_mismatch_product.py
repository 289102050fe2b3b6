import numpy as np

import kernel_dsl as kd

x = kd.symmetric.empty((128, 64), kd.float16, kd.Mesh(("x",), (2,)), interpret=True)
w = [np.zeros((64, 64), np.float16) for _ in range(2)]
kd.library.all_gather_matmul(x, w, kd.Mesh(("y",), (2,)), interpret=True)
