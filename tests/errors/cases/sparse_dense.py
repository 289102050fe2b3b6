import numpy as np

import kernel_dsl as kd

kd.library.sparse_matmul(np.ones((64, 64), np.float16), np.ones((64, 64), np.float16))
