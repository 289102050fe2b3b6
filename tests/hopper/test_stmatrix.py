"""stmatrix: fragments stored to SMEM in every swizzle, straight and transposed, of elements of 1, 2 and 4 bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

from .helpers import random, tiles

pytestmark = [pytest.mark.stmatrix, pytest.mark.tma]

bf16, f32 = kd.bfloat16, kd.float32


def stored(shape: tuple[int, int], dtype: Any, layout: Any, transforms: tuple[Any, ...], transposed: bool) -> Any:
    """A kernel that takes a value in a layout through SMEM, stored straight or transposed."""
    held = shape[::-1] if transposed else shape

    def body(x: Any, out: Any, smem: Any) -> None:
        place = smem.T if transposed else smem
        place[...] = kd.load(x, layout=layout)
        kd.commit_smem()
        kd.copy_smem_to_gmem(smem, out)
        kd.wait_smem_to_gmem(0)

    return kd.kernel(
        body, out_type=kd.ShapeDtypeStruct(held, dtype), scratch_types=[kd.SMEM(held, dtype, transforms=transforms)]
    )


# shape, dtype, layout, swizzle or 0, transposed, form of the instruction (empty: it does not apply)
CASES = [
    ((64, 64), bf16, kd.Layout.WGMMA, 128, False, "x4"),
    ((128, 64), bf16, kd.Layout.WGMMA, 128, False, "x4"),
    ((64, 128), bf16, kd.Layout.WGMMA, 128, False, "x4"),
    ((64, 192), bf16, kd.Layout.WGMMA, 64, False, "x4"),
    ((64, 32), bf16, kd.Layout.WGMMA, 32, False, "x4"),
    ((64, 24), bf16, kd.Layout.WGMMA, 0, False, "x2"),
    ((64, 8), bf16, kd.Layout.WGMMA, 0, False, "x2"),
    ((64, 64), bf16, kd.Layout.WGMMA, 128, True, "x4.trans"),
    ((128, 24), kd.float16, kd.Layout.WGMMA, 64, True, "x4.trans"),
    ((64, 128), bf16, kd.Layout.WGMMA_TRANSPOSED, 128, False, "x4.trans"),
    ((64, 64), kd.int8, kd.Layout.WGMMA_8BIT, 64, False, "x4"),
    ((64, 64), kd.int8, kd.Layout.WGMMA_8BIT, 64, True, ""),
    ((64, 32), f32, kd.Layout.WGMMA_TF32, 128, False, "x4"),
    ((64, 32), f32, kd.Layout.WGMMA, 128, False, ""),
    ((64, 64), bf16, kd.Layout.MMA_ACC, 128, False, "x4"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.sampled(3)
def test_fragments(case: Any, interpret: Any, rng: Any) -> None:
    shape, dtype, layout, swizzle, transposed, form = case
    kernel = stored(shape, dtype, layout, tiles(dtype, swizzle) if swizzle else (), transposed)
    x = random(rng, shape, dtype)
    text = kernel.lower(x, target="sm_90a").ptx
    assert (f"m8n8.{form}.shared" in text) if form else ("stmatrix.sync" not in text)
    assert np.array_equal(kernel(x, interpret=interpret), x.T if transposed else x)


def test_a_moving_start(interpret: Any, rng: Any) -> None:
    """Where rows start is known at run time only, and not all parts are stored."""

    def body(x: Any, out: Any, smem: Any) -> None:
        @kd.loop(0, 2)
        def _(i: Any) -> None:
            smem.at[kd.ds(i * 64, 64), 64:][...] = kd.load(x, (kd.ds(i * 64, 64), slice(None)), layout=kd.Layout.WGMMA)

        kd.commit_smem()
        kd.copy_smem_to_gmem(smem.at[:, 64:], out)
        kd.wait_smem_to_gmem(0)

    spec = kd.ShapeDtypeStruct((128, 64), bf16)
    smem = kd.SMEM((128, 128), bf16, transforms=tiles(bf16))
    kernel = kd.kernel(body, out_type=spec, scratch_types=[smem])
    x = random(rng, (128, 64), bf16)
    assert "stmatrix.sync" in kernel.lower(x, target="sm_90a").ptx
    assert np.array_equal(kernel(x, interpret=interpret), x)


def test_masked_values_go_another_way(interpret: Any, rng: Any) -> None:
    def body(x: Any, out: Any, smem: Any) -> None:
        value = kd.load(x, layout=kd.Layout.WGMMA)
        smem[...] = kd.zeros((64, 64), bf16)
        kd.store(smem, (slice(None), slice(None)), value, mask=value > 0)
        out[...] = smem[...]

    spec = kd.ShapeDtypeStruct((64, 64), bf16)
    kernel = kd.kernel(body, out_type=spec, scratch_types=[kd.SMEM((64, 64), bf16)])
    x = random(rng, (64, 64), bf16)
    assert "stmatrix.sync" not in kernel.lower(x, target="sm_90a").ptx
    assert np.array_equal(kernel(x, interpret=interpret), np.maximum(x, 0))
