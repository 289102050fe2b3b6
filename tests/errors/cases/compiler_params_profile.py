import kernel_dsl as kd

kd.CompilerParams(profile_space=16)
