import numpy as np

import kernel_dsl as kd

q, k = np.ones((1, 4, 1, 64), np.float32), np.ones((1, 2, 64, 64), np.float32)
kd.library.decode_attention(q, k, k, np.full(1, 64, np.int32))
