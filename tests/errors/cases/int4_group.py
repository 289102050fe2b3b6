import numpy as np

import kernel_dsl as kd

kd.library.pack_int4(np.ones((256, 64), np.float32), group=100)
