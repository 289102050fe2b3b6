import kernel_dsl as kd

kd.BlockSpec((kd.Element(8, padding=(1, -1)),), lambda i: (i,))
