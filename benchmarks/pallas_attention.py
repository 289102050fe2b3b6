"""Attention in Pallas for Mosaic GPU, run in its GPU interpret mode: a peer of the interpreter's benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

ROWS, KEYS = 64, 64


def attention(q: Any, k: Any, v: Any) -> Callable[[], Any]:
    """A function that attends from float16 `q` (queries, dim) to `k` and `v` (keys, dim) of one head.

    Interpret mode (JAX 0.10) takes no transposed operand and no operand in registers, so keys are transposed before, and
    weights pass through SMEM.
    """
    queries, dim = q.shape
    keys = k.shape[0]
    transforms = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))

    def product(a: Any, b: Any, shape: tuple[int, int]) -> Any:
        def of(acc: Any) -> Any:
            plgpu.wgmma(acc, a, b)
            plgpu.wgmma_wait(0)
            return acc[...]

        return pl.run_scoped(of, plgpu.ACC(shape, jnp.float32))

    def body(*refs: Any) -> None:
        q_ref, k_ref, v_ref, out_ref, q_s, k_s, v_s, w_s, o_s, one, two = refs
        rows = pl.ds(lax.axis_index("block") * ROWS, ROWS)
        plgpu.copy_gmem_to_smem(q_ref.at[rows], q_s, one)
        plgpu.barrier_wait(one)

        def step(at: Any, carried: Any) -> Any:
            total, top, summed = carried
            part = pl.ds(at * KEYS, KEYS)
            plgpu.copy_gmem_to_smem(k_ref.at[:, part], k_s, two)
            plgpu.copy_gmem_to_smem(v_ref.at[part], v_s, two)
            plgpu.barrier_wait(two)
            scores = product(q_s, k_s, (ROWS, KEYS)) * (dim**-0.5)
            highest = jnp.maximum(top, jnp.max(scores, axis=1))
            weights = jnp.exp(scores - lax.broadcast_in_dim(highest, scores.shape, [0]))
            kept = jnp.exp(top - highest)
            total = total * lax.broadcast_in_dim(kept, total.shape, [0])
            w_s[...] = weights.astype(jnp.float16)
            plgpu.commit_smem()
            total += product(w_s, v_s, (ROWS, dim))
            return total, highest, summed * kept + jnp.sum(weights, axis=1)

        first = (
            jnp.zeros((ROWS, dim), jnp.float32),
            jnp.full((ROWS,), -jnp.inf, jnp.float32),
            jnp.zeros((ROWS,), jnp.float32),
        )
        total, _, summed = lax.fori_loop(0, keys // KEYS, step, first)
        o_s[...] = (total / lax.broadcast_in_dim(summed, total.shape, [0])).astype(jnp.float16)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(o_s, out_ref.at[rows])
        plgpu.wait_smem_to_gmem(0)

    shapes = ((ROWS, dim), (dim, KEYS), (KEYS, dim), (ROWS, KEYS), (ROWS, dim))
    tiles = [plgpu.SMEM(shape, jnp.float16, transforms=transforms) for shape in shapes]
    kernel = plgpu.kernel(
        body,
        out_shape=jax.ShapeDtypeStruct((queries, dim), jnp.float16),
        grid=(queries // ROWS,),
        grid_names=("block",),
        scratch_shapes=[*tiles, plgpu.Barrier(), plgpu.Barrier(num_arrivals=2)],
        interpret=InterpretGPUParams(),
    )
    given = [jnp.asarray(a) for a in (q, k.T, v)]
    return lambda: np.asarray(kernel(*given))
