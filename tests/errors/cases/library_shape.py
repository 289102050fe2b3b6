import numpy as np

import kernel_dsl as kd

a, b = np.ones((16, 32), np.float16), np.ones((64, 16), np.float16)
kd.library.matmul(a, b)
