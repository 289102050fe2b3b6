"""Kernels over rows in Pallas for Mosaic GPU, run in its GPU interpret mode: peers of the interpreter's benchmark."""

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


def by_rows(function: Callable[..., Any], x: Any, *vectors: Any) -> Callable[[], Any]:
    """A function that applies `function` to each row of float32 `x` (rows, columns) and the vectors (columns,)."""
    rows, columns = x.shape

    def body(*refs: Any) -> None:
        x_ref, *others, out_ref, tile, done = refs
        row = lax.axis_index("row")
        plgpu.copy_gmem_to_smem(x_ref.at[row], tile, done)
        plgpu.barrier_wait(done)
        tile[...] = function(tile[...], *(other[...] for other in others))
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(tile, out_ref.at[row])
        plgpu.wait_smem_to_gmem(0)

    kernel = plgpu.kernel(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32),
        grid=(rows,),
        grid_names=("row",),
        scratch_shapes=[plgpu.SMEM((columns,), jnp.float32), plgpu.Barrier()],
        interpret=InterpretGPUParams(),
    )
    given = [jnp.asarray(a) for a in (x, *vectors)]
    return lambda: np.asarray(kernel(*given))


def softmax(x: Any) -> Callable[[], Any]:
    """A function that computes the softmax of each row."""

    def of(value: Any) -> Any:
        shifted = jnp.exp(value - jnp.max(value))
        return shifted / jnp.sum(shifted)

    return by_rows(of, x)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Callable[[], Any]:
    """A function that computes the layer norm of each row."""

    def of(value: Any, factor: Any, shift: Any) -> Any:
        centred = value - jnp.sum(value) / value.shape[0]
        return centred * lax.rsqrt(jnp.sum(centred * centred) / value.shape[0] + eps) * factor + shift

    return by_rows(of, x, weight, bias)


def add(x: Any, y: Any) -> Callable[[], Any]:
    """A function that adds float32 vectors in blocks of 1024."""

    def body(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
        part = pl.ds(lax.axis_index("block") * 1024, 1024)
        out_ref[part] = x_ref[part] + y_ref[part]

    kernel = plgpu.kernel(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32),
        grid=(x.shape[0] // 1024,),
        grid_names=("block",),
        interpret=InterpretGPUParams(),
    )
    u, v = jnp.asarray(x), jnp.asarray(y)
    return lambda: np.asarray(kernel(u, v))
