import kernel_dsl as kd

kd.bench(abs, -1, peers={"abs": abs})
