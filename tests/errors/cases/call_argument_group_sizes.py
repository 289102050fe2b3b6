import numpy as np

import kernel_dsl as kd

a, b = np.ones((16, 32), np.float16), np.ones((3, 32, 24), np.float16)
kd.library.grouped_matmul(a, b, [4, 5, 6], interpret=True)
