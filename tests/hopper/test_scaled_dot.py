"""kd.dot with scales by blocks of K, and of float32 in three products of tf32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

from .helpers import random, relative

pytestmark = [pytest.mark.wgmma]

f32, e4m3, s8 = kd.float32, kd.float8_e4m3fn, kd.int8


def spread(scale: Any, extents: tuple[int, int], units: tuple[int, int]) -> Any:
    """Each scale over its block, in float64."""
    full = np.asarray(scale, np.float64)
    for axis, (n, unit) in enumerate(zip(extents, units, strict=True)):
        full = np.repeat(full, unit, axis=axis)[(slice(None),) * axis + (slice(n),)]
    return np.broadcast_to(full, extents)


@pytest.mark.parametrize("square", [False, True], ids=["columns", "blocks"])
@pytest.mark.parametrize("where", ["values", "smem"])
@pytest.mark.parametrize(
    ("dtype", "shape"), [(e4m3, (64, 160, 256)), (s8, (64, 32, 128)), (kd.bfloat16, (48, 24, 200))]
)
@pytest.mark.sampled(68)
def test_block_scales(dtype: Any, shape: Any, where: str, square: bool, interpret: Any, rng: Any) -> None:
    M, N, K = shape
    runs = -(-K // 128)
    a, b = random(rng, (M, K), dtype), random(rng, (K, N), dtype)
    sa = rng.uniform(0.5, 2, (M, runs)).astype(np.float32)
    sb = rng.uniform(0.5, 2, (runs, -(-N // 128) if square else N)).astype(np.float32)
    c = rng.standard_normal((M, N)).astype(np.float32)
    scratch = [kd.SMEM((M, K), dtype), kd.SMEM((K, N), dtype)] if where == "smem" else []

    @kd.kernel(out_type=kd.ShapeDtypeStruct((M, N), f32), scratch_types=scratch)
    def kernel(a: Any, b: Any, sa: Any, sb: Any, c: Any, out: Any, *tiles: Any) -> None:
        for tile, side in zip(tiles, (a, b), strict=False):
            tile[...] = side[...]
        left, right = tiles or (a[...], b[...])
        scales = (sa[...], sb[...]) if where == "values" else (sa, sb)
        out[...] = kd.dot(left, right, acc=c[...], a_scale=scales[0], b_scale=scales[1])

    x = a.astype(np.float64) * spread(sa, (M, K), (1, 128))
    y = b.astype(np.float64) * spread(sb, (K, N), (128, 128 if square else 1))
    # of fp8 products Hopper's tensor cores keep 14 bits or so
    bound = 1e-3 if interpret is False and dtype == e4m3 else 2e-6
    assert relative(kernel(a, b, sa, sb, c, interpret=interpret), c + x @ y) < bound


TRANSFORMS = (kd.TilingTransform((8, 128)), kd.SwizzleTransform(128))  # of e4m3


@pytest.mark.parametrize("where", ["values", "gmem", "smem"])
@pytest.mark.parametrize(
    ("dtype", "shape", "runs"),
    [(e4m3, (64, 32, 128), (32, 32)), (kd.bfloat16, (16, 24, 72), (16, 64)), (e4m3, (64, 16, 256), (64, 128))],
    ids=str,
)
@pytest.mark.sampled(12)
def test_scales_of_short_parts(dtype: Any, shape: Any, runs: Any, where: str, interpret: Any, rng: Any) -> None:
    """32 of K as in MX formats, 16 as in NVFP4, and sides of different parts; factors are powers of two."""
    M, N, K = shape
    a, b = random(rng, (M, K), dtype), random(rng, (K, N), dtype)
    sa = (2.0 ** rng.integers(-3, 4, (M, -(-K // runs[0])))).astype(kd.float8_e8m0fnu.numpy)
    sb = (2.0 ** rng.integers(-3, 4, (-(-K // runs[1]), N))).astype(np.float32)
    order = TRANSFORMS if dtype == e4m3 else ()
    scratch = [kd.SMEM((M, K), dtype, transforms=order), kd.SMEM((K, N), dtype)] if where == "smem" else []

    @kd.kernel(out_type=kd.ShapeDtypeStruct((M, N), f32), scratch_types=scratch)
    def kernel(a: Any, b: Any, sa: Any, sb: Any, out: Any, *tiles: Any) -> None:
        for tile, side in zip(tiles, (a, b), strict=False):
            tile[...] = side[...]
        left, right = tiles or ((a[...], b[...]) if where == "values" else (a, b))
        out[...] = kd.dot(left, right, a_scale=sa, b_scale=sb)

    x = a.astype(np.float64) * spread(sa, (M, K), (1, runs[0]))
    y = b.astype(np.float64) * spread(sb, (K, N), (runs[1], 1))
    bound = 1e-3 if interpret is False and dtype == e4m3 else 2e-6
    assert relative(kernel(a, b, sa, sb, interpret=interpret), x @ y) < bound


@pytest.mark.parametrize("side", ["rows", "all", "a", "b"])
def test_scales_of_rows_and_columns(side: str, rng: Any) -> None:
    M, N, K = 32, 40, 160
    a, b = random(rng, (M, K), s8), random(rng, (K, N), s8)
    shapes = {"rows": ((M,), (1, N)), "all": ((), ()), "a": ((M, 1), None), "b": (None, (N,))}[side]
    given = [None if s is None else rng.uniform(0.5, 2, s).astype(np.float32) for s in shapes]

    @kd.kernel(out_type=kd.ShapeDtypeStruct((M, N), f32), interpret=True)
    def kernel(a: Any, b: Any, *rest: Any) -> None:
        *scales, out = rest
        own = [None if s is None else scales.pop(0) for s in shapes]
        out[...] = kd.dot(a, b, a_scale=own[0], b_scale=own[1])

    exact = a.astype(np.float64) @ b.astype(np.float64)
    sa, sb = (np.float64(1) if s is None else s.astype(np.float64) for s in given)
    exact = exact * (sa[:, None] if sa.ndim == 1 else sa) * sb
    assert relative(kernel(a, b, *(s for s in given if s is not None)), exact) < 1e-6


@pytest.mark.parametrize("shape", [(16, 24, 72), (32, 16, 300), (2, 16, 8, 40)], ids=str)
@pytest.mark.sampled(12)
def test_three_products_are_as_good_as_float32(shape: Any, interpret: Any, rng: Any) -> None:
    *batch, M, N, K = shape
    a, b = random(rng, (*batch, M, K), f32), random(rng, (*batch, K, N), f32)
    c = random(rng, (*batch, M, N), f32)

    @kd.kernel(out_type=[kd.ShapeDtypeStruct((*batch, M, N), f32)] * 2)
    def kernel(a: Any, b: Any, c: Any, out: Any, rough: Any) -> None:
        out[...] = kd.dot(a[...], b[...], acc=c[...], precision="tf32x3")
        rough[...] = kd.dot(a[...], b[...], acc=c[...], precision="tf32")

    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    fine, rough = kernel(a, b, c, interpret=interpret)
    assert relative(fine, exact) < 1e-6 and relative(rough, exact) > 1e-5
