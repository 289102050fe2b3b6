import kernel_dsl as kd

kd.Dim("M", min=None)
