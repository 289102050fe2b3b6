import numpy as np

import kernel_dsl as kd

mesh = kd.Mesh(("x",), (2,))
x = [np.zeros((128, 64), np.float16), np.zeros((256, 64), np.float16)]
w = [np.zeros((64, 64), np.float16) for _ in range(2)]
kd.library.all_gather_matmul(x, w, mesh, interpret=True)
