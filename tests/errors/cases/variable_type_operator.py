import kernel_dsl as kd

n = kd.Variable("n", 1, 8)
half = n / 2
