import kernel_dsl as kd

kd.Mesh(("x", "y"), (2,))
