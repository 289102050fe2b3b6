import kernel_dsl as kd

kd.Layout.WGMMA.of((64, 128)).reduce(2)
