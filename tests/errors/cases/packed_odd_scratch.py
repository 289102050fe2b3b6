import kernel_dsl as kd

kd.SMEM((8, 7), kd.float4_e2m1fn)
