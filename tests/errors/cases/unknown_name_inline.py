import kernel_dsl as kd


@kd.inline
def double(x):
    return x * 2
