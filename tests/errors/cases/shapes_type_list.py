import kernel_dsl as kd


@kd.kernel(out_type=lambda x: x, shapes=[(64,)])
def kernel(x, out):
    out[...] = x[...]
