import kernel_dsl as kd


@kd.kernel(
    out_type=kd.ShapeDtypeStruct((64, 64), kd.float32),
    scratch_types=[kd.ACC((64, 64)), kd.ACC((64, 64))],
)
def kernel(out, acc, other):
    kd.fori_loop(0, 4, lambda i, carry: other, acc)
    out[...] = acc[...]


kernel()
