import kernel_dsl as kd


@kd.kernel(out_type=kd.ShapeDtypeStruct((4,), kd.float32))
async def kernel(x, out):
    out[...] = x[...]
