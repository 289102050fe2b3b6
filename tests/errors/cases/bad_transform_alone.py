import kernel_dsl as kd

kd.SMEM((64, 64), kd.bfloat16, transforms=kd.SwizzleTransform(128))
