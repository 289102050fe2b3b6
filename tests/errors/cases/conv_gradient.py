import numpy as np

import kernel_dsl as kd

kd.library.conv2d_wgrad(np.ones((1, 8, 8, 8), np.float32), np.ones((1, 8, 8, 4), np.float32), 3)
