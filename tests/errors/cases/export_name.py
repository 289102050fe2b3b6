import kernel_dsl as kd


@kd.kernel(out_type=kd.ShapeDtypeStruct((4, 4), kd.float32))
def kernel(out):
    out[...] = 0.0


kernel.lower().export("my kernel", c=True)
