import kernel_dsl as kd
import numpy as np


class Group:
    def rank(self):
        return 0

    def size(self):
        return 2

    def exchange(self, value):
        raise ConnectionError("rank 1 has ended")


kd.library.all_reduce(np.ones(128, np.float32), Group())
