import kernel_dsl as kd


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 5), kd.uint4))
def kernel(out):
    out[...] = 1


kernel()
