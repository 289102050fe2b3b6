import numpy as np

import kernel_dsl as kd

partials = np.zeros((2, 4, 3), np.float32)
kd.library.linear_cross_entropy_combine(partials, np.arange(3), label_smoothing=0.1)
