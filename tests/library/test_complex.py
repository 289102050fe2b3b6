"""Products of complex64, which are real ones of twice the depth and twice the columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.hopper.helpers import random, relative

from .products import place

f32, c64 = kd.float32, np.complex64
SHAPES = [(17, 9, 33), (64, 40, 24), (1, 1, 1), (3, 4, 0), (0, 3, 4), (3, 0, 4)]


def numbers(rng: Any, *shape: int) -> Any:
    return (random(rng, shape, f32) + 1j * random(rng, shape, f32)).astype(c64)


def worst(got: Any, expected: Any) -> float:
    assert got.dtype == c64 and got.shape == expected.shape
    return relative(got.view(np.float32), expected.astype(np.complex128).view(np.float64)) if got.size else 0.0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("out", [None, "plain", "turned", "strided", "backwards"])
@pytest.mark.parametrize("left", ["plain", "turned", "strided"])
@pytest.mark.parametrize("right", ["plain", "turned", "backwards"])
@pytest.mark.sampled(90)
def test_places(shape: Any, out: str | None, left: str, right: str, rng: Any) -> None:
    """Operands and results in any strides."""
    M, N, K = shape
    a, b = place(numbers(rng, M, K), left), place(numbers(rng, K, N), right)
    into = None if out is None else place(np.full((M, N), 7j, c64), out)
    got = kd.library.matmul(a, b, out=into, interpret=True)
    assert into is None or got is into
    assert worst(np.ascontiguousarray(got), a.astype(np.complex128) @ b) < 1e-6


@pytest.mark.parametrize(("precision", "bound"), [(None, 1e-6), ("highest", 1e-6), ("tf32x3", 1e-6), ("tf32", 2e-3)])
def test_precision_and_batches(precision: Any, bound: float, rng: Any) -> None:
    a, b = numbers(rng, 2, 1, 5, 7), numbers(rng, 3, 7, 6)
    got = kd.library.matmul(a, b, precision=precision, interpret=True)
    assert worst(got, a.astype(np.complex128) @ b) < bound


def test_steps(rng: Any) -> None:
    a, b, bias, c, residual = (numbers(rng, *shape) for shape in ((5, 7), (7, 6), (6,), (5, 6), (1, 6)))
    options: dict[str, Any] = {"bias": bias, "c": c, "residual": residual, "out_dtype": kd.complex64}
    got = kd.library.matmul(a, b, scale=2.0, out_scale=np.float32(0.5), interpret=True, **options)
    assert worst(got, (2 * (a.astype(np.complex128) @ b) + bias + c + residual) / 2) < 1e-6
    specs = kd.ShapeDtypeStruct((512, 256), kd.complex64), kd.ShapeDtypeStruct((256, 128), kd.complex64)
    assert "wgmma" in kd.library.matmul.lower(*specs, precision="tf32", target="sm_90a").ptx


A, B = np.ones((5, 7), c64), np.ones((7, 6), c64)
REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    (A, B.real, {}, "b is float32"),
    (A.real, B, {}, "a is float32"),
    (A, B.astype(np.complex128), {}, "complex128"),
    (A, B[1:], {}, r"a is \(5, 7\) and b is \(6, 6\)"),
    (A[0], B, {}, "a is an ndarray of shape"),
    (A, B, {"out_dtype": f32}, "out_dtype is float32"),
    (A, B, {"out": np.ones((5, 6), np.float32)}, "out is float32"),
    (A, B, {"out": np.ones((6, 5), c64)}, r"out is \(6, 5\)"),
    (A, B, {"activation": kd.abs}, "activation for complex64"),
    (A, B, {"gated": "glu"}, "gated for complex64"),
    (A, B, {"absmax": True}, "absmax for complex64"),
    (A, B, {"a_scale": 2.0}, "a_scale for complex64"),
    (A, B, {"dropout": (0.5, 1)}, "dropout for complex64"),
    (A, B, {"bias": np.ones(6, np.float32)}, "bias is no array of complex64"),
    (A, B, {"bias": np.ones(12, c64)[::2]}, r"bias is \(6,\)"),
    (A, B, {"c": np.ones((5, 1), c64)}, r"c is \(5, 1\)"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c[-1])
def test_refused(case: Any) -> None:
    a, b, options, words = case
    with pytest.raises(kd.Error, match=words):
        kd.library.matmul(a, b, interpret=True, **options)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)], ids=str)
def test_additions_without_elements(shape: Any) -> None:
    """Whatever their strides are."""
    a, b = np.ones((shape[0], 4), c64), np.ones((4, shape[1]), c64)
    for strides in ((8, 8), (16, 16), (0, 0)):
        added = np.lib.stride_tricks.as_strided(np.zeros(1, c64), shape, strides)
        options = {"c": added, "residual": added} | ({"bias": added[0]} if shape[0] else {})
        assert kd.library.matmul(a, b, interpret=True, **options).shape == shape


def test_gradients_under_torch() -> None:
    """Of tensors as they lie, and of lazily conjugated ones, which are numbers like others."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    a, b, bias, g = (torch.randn(*s, dtype=torch.complex64) for s in ((9, 5), (9, 6), (6,), (5, 6)))
    for turn in (lambda x: x.mT, lambda x: x.mH):
        for right in (lambda x: x, lambda x: x.conj()):
            given = [x.clone().requires_grad_() for x in (a, b, bias)]
            wanted = [x.clone().requires_grad_() for x in (a, b, bias)]
            x, y, z = given
            made = kd.library.matmul(turn(x), right(y), bias=z, scale=0.5, interpret=True)
            x, y, z = wanted
            expected = 0.5 * (turn(x) @ right(y)) + z
            made.backward(g)
            expected.backward(g)
            pairs = [(made, expected), *((x.grad, y.grad) for x, y in zip(given, wanted, strict=True))]
            assert all((x - y).abs().max() <= 1e-5 * y.abs().max() for x, y in pairs)
    out = torch.zeros(5, 6, dtype=torch.complex64)
    with pytest.raises(ValueError, match="out is lazily conjugated"):
        kd.library.matmul(a.mT, b, out=out.conj(), interpret=True)


@pytest.mark.gpu
@pytest.mark.tma
@pytest.mark.wgmma
@pytest.mark.parametrize("shape", [(1000, 1016, 1032), (333, 777, 999)], ids=str)
@pytest.mark.parametrize("precision", [None, "tf32x3"])
def test_on_a_gpu(shape: Any, precision: Any, rng: Any) -> None:
    M, N, K = shape
    a, b = place(numbers(rng, M, K), "turned"), numbers(rng, K, N)
    out = place(np.zeros((M, N), c64), "turned")
    expected = a.astype(np.complex128) @ b
    assert worst(kd.library.matmul(a, b, precision=precision, interpret=False), expected) < 3e-6
    kd.library.matmul(a, b, precision=precision, out=out, interpret=False)
    assert worst(np.ascontiguousarray(out), expected) < 3e-6
