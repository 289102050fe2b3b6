import kernel_dsl as kd

kd.Dim("M", min=65, max=127, multiple_of=64)
