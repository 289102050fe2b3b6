"""kd.library.pack_mxfp4, and products with weights of 4-bit floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import MatmulConfig, PackedMxfp4
from tests.hopper.helpers import random, relative

from .packed_reference import VALUES
from .packed_reference import mxfp4_numbers as numbers
from .products import PLACES, place

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f16, f32 = kd.bfloat16, kd.float16, kd.float32
Spec = kd.ShapeDtypeStruct


@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
@pytest.mark.parametrize("shape", [(64, 64), (200, 70), (1, 1), (33, 130)], ids=str)
@pytest.mark.sampled(84)
def test_packing(dtype: Any, shape: Any, interpret: Any, rng: Any) -> None:
    """The scale is that of the standard, each number the nearest one, and unpacked as it is told."""
    w = place(random(rng, shape, dtype), str(rng.choice(PLACES)))
    w[:, 0] = 0
    w[: shape[0] // 2] *= dtype.numpy.type(0.01)
    packed = kd.library.pack_mxfp4(w, interpret=interpret)
    wide, exact = w.astype(np.float64), numbers(packed)
    for first in range(0, shape[0], 32):
        part = wide[first : first + 32]
        most = np.abs(part).max(0)
        scale = np.where(most > 0, 2.0 ** (np.floor(np.log2(np.where(most > 0, most, 1))) - 2), 1.0)
        nearest = np.abs(np.abs(part / scale)[..., None] - VALUES).min(-1)
        own = exact[first : first + 32]
        assert np.allclose(np.abs(part - own) / scale, nearest, atol=1e-6)
        assert (packed.scales[first // 32][most > 0] == (np.log2(scale) + 127)[most > 0]).all()
    got = packed.unpacked(dtype, interpret=interpret)
    assert (got.astype(np.float64) == exact.astype(dtype.numpy).astype(np.float64)).all() and packed.shape == shape


def test_ties_and_ends() -> None:
    """Halfway between two: the even one. Above 6: 6. The least and the greatest scales."""
    w = np.zeros((32, 3), np.float32)
    w[:14, 0] = [4, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -5, 7.5, -7.9, 6]
    w[:2, 1], w[:2, 2] = [1e-45, -3e-39], [3e38, -1e38]
    packed = kd.library.pack_mxfp4(w, interpret=True)
    expected = [4, 0, 1, 1, 2, 2, 4, 4, 0, -1, -4, 6, -6, 6]
    got = packed.unpacked(f32, interpret=True)
    np.testing.assert_array_equal(got[:14, 0], expected)
    assert packed.scales[0, 1] == 0 and (got.astype(np.float64) == numbers(packed)).all()
    assert abs(got[0, 2] / w[0, 2] - 1) < 0.25
    codes = PackedMxfp4(packed.data, np.full_like(packed.scales, 255), None, packed.shape, 32)
    assert np.isnan(codes.unpacked(f32, interpret=True)).all()


def product(seed: int, interpret: Any, shape: Any = None, config: Any = None) -> None:
    """A random product, against float64 and b as it is rounded to the dtype of a."""
    rng = np.random.default_rng(seed)
    M, N, K = shape or (int(rng.choice((1, 16, 65))), int(rng.choice((16, 33, 64, 144))), int(rng.choice((1, 40, 200))))
    dtype = (bf16, f16)[rng.integers(2)]
    packed = kd.library.pack_mxfp4(random(rng, (K, N), f32), interpret=interpret)
    b = numbers(packed).astype(dtype.numpy).astype(np.float64)
    a = place(random(rng, (M, K), dtype), str(rng.choice(PLACES)))
    bias = random(rng, (N,), f32)
    options: dict[str, Any] = {} if config is None else {"config": config}
    got = kd.library.matmul(a, packed, bias=bias, out_dtype=f32, interpret=interpret, **options)
    assert relative(got.astype(np.float64), a.astype(np.float64) @ b + bias) < 1e-5, f"{seed} {dtype} {(M, N, K)}"


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
def test_all_codes_and_scales(dtype: Any) -> None:
    """Every number times every power of two, as a product of one takes it: rounded to the dtype of a, and NaN for 255."""
    K, N = 64, 256
    data = np.zeros((N, 32), np.uint8)
    for row in range(16):  # code `row` of the first 32 rows, and of those of the other half
        for half in range(2):
            place = half * 16 + row % 8 * 2 + row // 16
            data[:, place] |= np.uint8(row << (4 if row % 16 >= 8 else 0))
    scales = np.broadcast_to(np.arange(N, dtype=np.uint8), (2, N)).copy()
    most = 127 + (13 if dtype == f16 else 125)  # beyond, 6 times that is infinite, and no number beside the zeros of a
    scales = np.where(scales == 255, scales, np.minimum(scales, most))
    packed = PackedMxfp4(data.view(np.int8), scales, None, (K, N), 32)
    with np.errstate(over="ignore"):
        expected = numbers(packed).astype(dtype.numpy).astype(np.float64)
    a = np.eye(K, dtype=dtype.numpy)
    got = kd.library.matmul(
        a, packed, out_dtype=f32, config=MatmulConfig(64, 64, 64, 2, 1, epilogue_n=32, swapped=True)
    )
    np.testing.assert_array_equal(got[:, :255], expected[:, :255])
    assert np.isnan(got[:, 255]).all()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.sampled(84)
def test_random_products(seed: int, interpret: Any) -> None:
    product(seed, interpret)


@pytest.mark.parametrize(
    "config", [MatmulConfig(64, 64, 64, 3, 1, epilogue_n=32), MatmulConfig(128, 128, 64, 2, 2, epilogue_n=32)]
)
@pytest.mark.sampled(30)
def test_configs(config: Any, interpret: Any) -> None:
    product(3, interpret, (150, 208, 200), config)


@pytest.mark.parametrize("shape", [(16, 16384, 8192), (4096, 4096, 4096)], ids=str)
@pytest.mark.sampled(60, "machine code")
def test_no_spills(shape: Any) -> None:
    M, N, K = shape
    b = PackedMxfp4(Spec((N, K // 2), kd.int8), Spec((K // 32, N), kd.uint8), None, (K, N), 32)
    stages = kd.library.matmul.lower(Spec((M, K), bf16), b, target="sm_90a")
    made = stages.compile()
    assert stages.name == "matmul" and made.resources.spills == 0
    assert not [r for r in made.remarks if "C75" in r.text], made.remarks


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(16, 4096, 2048), (300, 1040, 777), (2048, 2048, 2048)], ids=str)
def test_real_sizes(shape: Any) -> None:
    for seed in range(3):
        product(seed, False, shape)


W = np.ones((64, 16), np.float32)


@pytest.mark.parametrize(
    "case", [(W[0], "w is an ndarray of shape"), ([1], "w is a list"), (W.astype(np.int8), "w is int8"), (W[:0], r"w is \(0, 16\)")],
    ids=lambda case: case[1],
)  # fmt: skip
def test_what_is_refused(case: Any) -> None:
    with pytest.raises((kd.errors.BadCallArgument, kd.errors.BadCallValue), match=case[1]):
        kd.library.pack_mxfp4(case[0], interpret=True)
