import kernel_dsl as kd

kd.SMEM((8, 8), kd.float32, per_block=True)
