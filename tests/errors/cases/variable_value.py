import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


kd.Variable("n", 8, 1)
