import kernel_dsl as kd

kd.InterpretParams(ignore=("races",))
