import kernel_dsl as kd

with kd.fma_contraction():
    pass
