import numpy as np

import kernel_dsl as kd

kd.library.pack_mxfp4(np.ones((256, 64), np.int8))
