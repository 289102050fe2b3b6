import kernel_dsl as kd

M = kd.Dim("M")
kd.ShapeDtypeStruct((abs(M - 3),), kd.float32)
