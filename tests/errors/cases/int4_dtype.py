import numpy as np

import kernel_dsl as kd

packed = kd.library.PackedInt4(np.zeros((64, 128), np.int8), np.ones((2, 64), np.float32), None, (256, 64), 128)
kd.library.matmul(np.ones((8, 256), np.float32), packed)
