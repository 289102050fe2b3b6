import kernel_dsl as kd
import numpy as np

x = np.ones((4, 8), np.float32)


kept = []


def one_block_a_row(x):
    kept.append(x.shape[0])
    return (x.shape[0],)


@kd.kernel(out_type=lambda x: x, grid=one_block_a_row)
def rows(x, out):
    i = kd.program_id(0)
    out[i] = x[i]


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 8), kd.float32))
def sums(x, out):
    symbol = next(n for n in kept if not isinstance(n, int))
    out[...] = kd.full((symbol, 8), 1.0)


rows.lower(x)
sums(x)
