import kernel_dsl as kd
import numpy as np

x = np.zeros((8, 32), np.float32)


@kd.kernel(
    out_type=kd.ShapeDtypeStruct((), kd.float32),
    scratch_types=[kd.SMEM((8, 32), kd.float32, transforms=[kd.TilingTransform((8, 32)), kd.SwizzleTransform(128)])],
)
def kernel(x, out, tile):
    tile[...] = x[...]
    out[...] = kd.inline_ptx("ld.shared.f32 $0, [$1];", tile, out_type=kd.float32)


kernel(x)
