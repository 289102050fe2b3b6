import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


kd.find_swizzle(20)
