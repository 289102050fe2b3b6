import kernel_dsl as kd

kd.Dim("M", min=100, max=64)
