import kernel_dsl as kd

mesh = kd.Mesh(("x",), (2,))


@kd.kernel(
    out_type=kd.ShapeDtypeStruct((8, 16), kd.float32),
    mesh=mesh,
    scratch_types=[kd.SMEM((8, 16), kd.float32), kd.Barrier()],
)
def body(x, out, tile, ready):
    kd.copy_gmem_to_smem(kd.remote_ref(tile, 1), tile, ready)


body.lower(kd.ShapeDtypeStruct((8, 16), kd.float32))
