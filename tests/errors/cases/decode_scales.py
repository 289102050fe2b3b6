import numpy as np

import kernel_dsl as kd

q, k = np.ones((1, 4, 1, 64), np.float16), np.ones((1, 2, 512, 64)).astype(kd.float8_e4m3fn.numpy)
kd.library.decode_attention(q, k, k, np.full(1, 64, np.int32), k_scale=True)
