import kernel_dsl as kd

mesh = kd.Mesh(("x",), (2,))


@kd.kernel(out_type=kd.ShapeDtypeStruct((8, 16), kd.float32), mesh=mesh)
def body(x, out):
    kd.async_copy(x, out, device_id=2)


body.lower(kd.ShapeDtypeStruct((8, 16), kd.float32))
