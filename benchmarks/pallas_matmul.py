"""A matmul in Pallas for Mosaic GPU, run in its GPU interpret mode: a peer of the interpreter's benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

TILE, STEP = 128, 64


def matmul(a: Any, b: Any) -> Callable[[], Any]:
    """A function that multiplies float16 `a` (M, K) and `b` (K, N)."""
    M, K = a.shape
    N = b.shape[1]
    transforms = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))

    def body(a_ref: Any, b_ref: Any, out_ref: Any, a_smem: Any, b_smem: Any, o_smem: Any, ready: Any) -> None:
        m, n = jax.lax.axis_index("m"), jax.lax.axis_index("n")
        rows, columns = pl.ds(m * TILE, TILE), pl.ds(n * TILE, TILE)

        def product(acc: Any) -> Any:
            def step(k: Any, _: Any) -> None:
                plgpu.copy_gmem_to_smem(a_ref.at[rows, pl.ds(k * STEP, STEP)], a_smem, ready)
                plgpu.copy_gmem_to_smem(b_ref.at[pl.ds(k * STEP, STEP), columns], b_smem, ready)
                plgpu.barrier_wait(ready)
                plgpu.wgmma(acc, a_smem, b_smem)
                plgpu.wgmma_wait(0)

            jax.lax.fori_loop(0, K // STEP, step, None)
            return acc[...]

        o_smem[...] = pl.run_scoped(product, plgpu.ACC((TILE, TILE), jnp.float32)).astype(jnp.float16)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_smem, out_ref.at[rows, columns])
        plgpu.wait_smem_to_gmem(0)

    kernel = plgpu.kernel(
        body,
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float16),
        grid=(M // TILE, N // TILE),
        grid_names=("m", "n"),
        scratch_shapes=[
            plgpu.SMEM((TILE, STEP), jnp.float16, transforms=transforms),
            plgpu.SMEM((STEP, TILE), jnp.float16, transforms=transforms),
            plgpu.SMEM((TILE, TILE), jnp.float16, transforms=transforms),
            plgpu.Barrier(num_arrivals=2),
        ],
        interpret=InterpretGPUParams(),
    )
    x, y = jnp.asarray(a), jnp.asarray(b)
    return lambda: np.asarray(kernel(x, y))
