import numpy as np

import kernel_dsl as kd

kd.library.conv2d(np.ones((1, 8, 8, 8), np.float32), np.ones((4, 3, 3, 2), np.float32), groups=3)
