import kernel_dsl as kd


@kd.kernel(out_type=kd.ShapeDtypeStruct((64, 64), kd.int32))
def kernel(out):
    out[...] = kd.broadcasted_iota(kd.int32, (64, 64), 0, layout="WGMMA")


kernel()
