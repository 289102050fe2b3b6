"""ldmatrix: fragments loaded from SMEM, swizzled or padded, straight and transposed, of elements of 1, 2 and 4 bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

from .helpers import random, relative, tiles

pytestmark = [pytest.mark.mma_sync]

bf16, f32 = kd.bfloat16, kd.float32


def loaded(shape: tuple[int, int], dtype: Any, layout: Any, transforms: tuple[Any, ...], transposed: bool) -> Any:
    """A kernel that takes a matrix through SMEM, where it lies straight or transposed, to a value in a layout."""
    held = shape[::-1] if transposed else shape

    def body(x: Any, out: Any, smem: Any) -> None:
        smem[...] = (x.T if transposed else x)[...]
        out[...] = kd.load(smem.T if transposed else smem, layout=layout)

    smem = kd.SMEM(held, dtype, transforms=transforms)
    return kd.kernel(body, out_type=kd.ShapeDtypeStruct(shape, dtype), scratch_types=[smem])


# shape, dtype, layout, swizzle or 0, transposed, form of the instruction (empty: it does not apply)
CASES = [
    ((64, 64), bf16, kd.Layout.WGMMA, 128, False, "x4"),
    ((64, 24), bf16, kd.Layout.WGMMA, 0, False, "x2"),
    ((64, 64), bf16, kd.Layout.WGMMA, 128, True, "x4.trans"),
    ((128, 24), kd.float16, kd.Layout.WGMMA, 64, True, "x4.trans"),
    ((64, 128), bf16, kd.Layout.WGMMA_TRANSPOSED, 128, False, "x4.trans"),
    ((64, 64), kd.int8, kd.Layout.WGMMA_8BIT, 64, False, "x4"),
    ((64, 64), kd.int8, kd.Layout.WGMMA_8BIT, 64, True, ""),
    ((64, 32), f32, kd.Layout.WGMMA_TF32, 128, False, "x4"),
    ((64, 32), f32, kd.Layout.WGMMA_TF32, 128, True, ""),
    ((64, 32), f32, kd.Layout.WGMMA, 128, False, ""),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.sampled(3)
def test_fragments(case: Any, interpret: Any, rng: Any) -> None:
    shape, dtype, layout, swizzle, transposed, form = case
    kernel = loaded(shape, dtype, layout, tiles(dtype, swizzle) if swizzle else (), transposed)
    x = random(rng, shape, dtype)
    for target in ("sm_80", "sm_90a"):
        text = kernel.lower(x, target=target).ptx
        assert (f"ldmatrix.sync.aligned.m8n8.{form}.shared" in text) if form else ("ldmatrix.sync" not in text)
    assert np.array_equal(kernel(x, interpret=interpret), x)


@pytest.mark.parametrize("dtype", [bf16, kd.int8, kd.float8_e4m3fn, f32], ids=str)
@pytest.mark.parametrize(("ta", "tb"), [(False, True), (False, False), (True, True), (True, False)])
@pytest.mark.sampled(20)
def test_operands_of_mma(dtype: Any, ta: bool, tb: bool, interpret: Any, rng: Any) -> None:
    """Warps share operands: those that multiply the same rows load the same fragments. Rows are padded by 16 bytes."""
    M, N, K = 64, 32, 64
    pad = 16 // dtype.itemsize
    total = kd.int32 if dtype.is_integer else f32
    a_shape, b_shape = ((K, M) if ta else (M, K)), ((N, K) if tb else (K, N))

    @kd.kernel(
        out_type=kd.ShapeDtypeStruct((M, N), total),
        scratch_types=[kd.SMEM((2, rows, columns + pad), dtype) for rows, columns in (a_shape, b_shape)],
    )
    def kernel(a: Any, b: Any, out: Any, a_smem: Any, b_smem: Any) -> None:
        left, right = a_smem.at[1, :, : a_shape[1]], b_smem.at[1, :, : b_shape[1]]
        left[...] = a[...]
        right[...] = b[...]
        step = 32 // dtype.itemsize
        acc = kd.zeros((M, N), total)
        for k in range(0, K, step):
            part = slice(k, k + step)
            x = left.T.at[:, part] if ta else left.at[:, part]
            y = right.T.at[part] if tb else right.at[part]
            acc = kd.mma(acc, x[...], y[...])
        out[...] = acc

    a, b = random(rng, a_shape, dtype), random(rng, b_shape, dtype)
    text = kernel.lower(a, b, target="sm_90a").ptx
    straight = (not ta) + tb
    assert ("m8n8.x4.shared" in text or "m8n8.x2.shared" in text) == bool(straight)
    assert ("trans.shared" in text) == (dtype == bf16 and straight < 2)
    expected = (a.T if ta else a).astype(np.float64) @ (b.T if tb else b).astype(np.float64)
    assert relative(kernel(a, b, interpret=interpret), expected) < (1e-3 if dtype == f32 else 1e-6)


def test_a_moving_start(interpret: Any, rng: Any) -> None:
    """Where rows start is known at run time only, and not all parts are loaded."""

    def body(x: Any, out: Any, smem: Any) -> None:
        smem[...] = x[...]

        @kd.loop(0, 2)
        def _(i: Any) -> None:
            part = kd.ds(i * 64, 64)
            out[part, :] = kd.load(smem.at[part, 64:], layout=kd.Layout.WGMMA)

    smem = kd.SMEM((128, 128), bf16, transforms=tiles(bf16))
    kernel = kd.kernel(body, out_type=kd.ShapeDtypeStruct((128, 64), bf16), scratch_types=[smem])
    x = random(rng, (128, 128), bf16)
    assert "ldmatrix.sync" in kernel.lower(x).ptx
    assert np.array_equal(kernel(x, interpret=interpret), x[:, 64:])


def test_what_is_masked_goes_another_way(interpret: Any, rng: Any) -> None:
    def body(x: Any, out: Any, smem: Any) -> None:
        smem[...] = x[...]
        mask = kd.load(x, layout=kd.Layout.WGMMA) > 0
        out[...] = kd.load(smem, mask=mask, layout=kd.Layout.WGMMA)

    spec = kd.ShapeDtypeStruct((64, 64), bf16)
    kernel = kd.kernel(body, out_type=spec, scratch_types=[kd.SMEM((64, 64), bf16)])
    x = random(rng, (64, 64), bf16)
    assert "ldmatrix.sync" not in kernel.lower(x).ptx
    assert np.array_equal(kernel(x, interpret=interpret), np.maximum(x, 0))
