import kernel_dsl as kd

mesh = kd.Mesh(("x",), (2,))


@kd.kernel(out_type=kd.ShapeDtypeStruct((8, 16), kd.float32), mesh=mesh, scratch_types=[kd.SMEM((8, 16), kd.float32)])
def body(x, out, tile):
    kd.async_copy(x, tile, device_id=1)


body.lower(kd.ShapeDtypeStruct((8, 16), kd.float32))
