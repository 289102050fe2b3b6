import ml_dtypes
import numpy as np

import kernel_dsl as kd

q, cache = np.ones((1, 1, 4, 576), ml_dtypes.bfloat16), np.ones((2, 16, 512), ml_dtypes.bfloat16)
kd.library.mla_decode(q, cache, np.full(1, 8, np.int32), np.zeros((1, 2), np.int32), scale=0.1)
