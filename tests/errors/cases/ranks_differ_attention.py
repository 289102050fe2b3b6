import numpy as np

import kernel_dsl as kd

mesh = kd.Mesh(("x",), (2,))
q = [np.zeros((1, 1, 128, 64), np.float16) for _ in range(2)]
k = [q[0], np.zeros((1, 1, 64, 64), np.float16)]
kd.library.ring_attention(q, k, k, mesh, interpret=True)
