"""Norms and RoPE of the library against float64, and what they refuse."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadCallArgument, BadCallValue, LibraryDType, LibraryShape
from kernel_dsl.library import norms

bf16, f16, f32 = (kd.ShapeDtypeStruct((), t).dtype.numpy for t in (kd.bfloat16, kd.float16, kd.float32))
BOUND = {2: 4e-3, 4: 1e-6}
RNG = np.random.default_rng(0)
SHAPES = [(5, 200), (300,), (2, 3, 129), (0, 64), (300, 33), (3, 1)]


def exact(x: Any, weight: Any, bias: Any) -> Any:
    wide, w = x.astype(np.float64), weight.astype(np.float64)
    if bias is None:
        return wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * w
    wide = wide - wide.mean(-1, keepdims=True)
    return wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * w + bias.astype(np.float64)


def exact_gradients(x: Any, weight: Any, dy: Any, centred: bool) -> list[Any]:
    wide, g = x.astype(np.float64), dy.astype(np.float64)
    if centred:
        wide = wide - wide.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
    normal, wanted = wide * scale, g * weight.astype(np.float64)
    dx = wanted - normal * (wanted * normal).mean(-1, keepdims=True)
    dx = (dx - wanted.mean(-1, keepdims=True) if centred else dx) * scale
    columns = x.shape[-1]
    sums = [(g * normal).reshape(-1, columns).sum(0), g.reshape(-1, columns).sum(0)]
    return [dx, *sums[: 1 + centred]]


def close(found: Any, wanted: Any, itemsize: int = 4, factor: float = 1.0) -> None:
    assert found.shape == wanted.shape
    if found.size:
        error = np.abs(found.astype(np.float64) - wanted).max()
        assert error <= factor * BOUND[itemsize] * max(1.0, np.abs(wanted).max())


def draw(dtype: Any, *shape: int) -> Any:
    return (RNG.standard_normal(shape) + 1).astype(dtype)


@pytest.fixture(params=[4096, 128], ids=["whole rows", "parts of rows"])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rows that a block holds, and rows that it reads in parts."""
    made = norms.norm_kernel, norms.gradients_kernel
    monkeypatch.setattr(norms, "WIDTH", request.param)
    for function in made:
        function.cache_clear()
    yield request.param
    for function in made:
        function.cache_clear()


@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
@pytest.mark.sampled(2)
def test_norms(width: int, dtype: Any) -> None:
    for shape in SHAPES:
        x, weight, bias = draw(dtype, *shape), draw(dtype, shape[-1]), draw(np.float32, shape[-1])
        for found, wanted in (
            (kd.library.rms_norm(x, weight, interpret=True), exact(x, weight, None)),
            (kd.library.layer_norm(x, weight, bias, interpret=True), exact(x, weight, bias)),
        ):
            assert found.dtype == dtype
            close(found, wanted, dtype.itemsize, 4)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.sampled(4)
def test_gradients(width: int, centred: bool) -> None:
    for shape in SHAPES:
        x, weight, dy = draw(f32, *shape), draw(f32, shape[-1]), draw(f32, *shape)
        x, dy = (a.reshape(-1, shape[-1]) for a in (x, dy))
        made = norms.gradients_kernel(norms.Norm("norm", centred, 1e-5))(x, weight, dy, interpret=True)
        wanted = exact_gradients(x, weight, dy, centred)
        close(made[0], wanted[0], factor=8)
        for found, total in zip(made[1:], wanted[1:], strict=True):
            close(norms.column_sums(kd.float32)(found, interpret=True), total, factor=8)


def test_one_compile_for_any_rows() -> None:
    norm = norms.Norm("rows", True, 1e-5)
    turn = import_module("kernel_dsl.library.rotary")
    kernels = [
        norms.norm_kernel(norm),
        norms.gradients_kernel(norm),
        turn.rope_kernel((4, 3, 3)),
        turn.gradient_kernel((4, 3, 3)),
    ]
    angles = draw(f32, 6, 12)
    for rows in (3, 5, 300):
        x, weight, heads = draw(f32, rows, 48), draw(f32, 48), draw(f32, rows, 10, 24)
        places = np.zeros(rows, np.int32)
        kernels[0](x, weight, weight, interpret=True)
        kernels[1](x, weight, x, interpret=True)
        parts = kernels[2](heads, places, angles, angles, interpret=True)
        kernels[3](*parts, places, angles, angles, interpret=True)
    assert [len(kernel.specialisations()) for kernel in kernels] == [1] * 4


@pytest.mark.parametrize("columns", [2048, 4096, 8192])
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.sampled(60, "machine code")
def test_without_spills(columns: int, centred: bool) -> None:
    pytest.importorskip("nvidia.cu13", reason="needs ptxas")
    norm, x = norms.Norm("norm", centred, 1e-5), kd.ShapeDtypeStruct((64, columns), kd.bfloat16)
    parameters = [kd.ShapeDtypeStruct((columns,), kd.bfloat16)] * (1 + centred)
    for stages in (
        norms.norm_kernel(norm).lower(x, *parameters, target="sm_90a"),
        norms.gradients_kernel(norm).lower(x, parameters[0], x, target="sm_90a"),
    ):
        assert stages.compile().resources.spills == 0


def turned(x: Any, positions: Any, cos: Any, sin: Any) -> Any:
    """0 where a position has no angles."""
    c, s = (np.pad(t.astype(np.float64), ((0, 9), (0, 0)))[positions][..., None, :] for t in (cos, sin))
    a, b = np.split(x.astype(np.float64), 2, -1)
    return np.concatenate((a * c - b * s, b * c + a * s), -1)


def test_rope() -> None:
    angle = np.arange(30)[:, None] * np.linspace(1, 0.1, 12)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    for dtype, leading in ((f32, (6,)), (bf16, (2, 3)), (f16, ()), (f32, (0,))):
        x = draw(dtype, *leading, 7, 24)
        positions = RNG.integers(0, 33, leading).astype(np.int32) if leading else np.array(5, np.int32)
        wanted = turned(x, positions, cos, sin)
        close(kd.library.rope(x, positions, cos, sin, interpret=True), wanted, dtype.itemsize, 4)
        q, k, v = kd.library.rope(x, positions, cos, sin, heads=(3, 2), interpret=True)
        close(q, wanted[..., :3, :], dtype.itemsize, 4)
        close(k, wanted[..., 3:5, :], dtype.itemsize, 4)
        np.testing.assert_array_equal(v, x[..., 5:, :])


def test_many_heads_and_strides() -> None:
    """More pairs than a block holds at a time; arrays that are transposed."""
    cos, sin = (np.asfortranarray(draw(f32, 4, 64)) for _ in range(2))
    x, positions = draw(f32, 2, 128, 70).transpose(0, 2, 1), np.array([3, 1], np.int32)
    close(kd.library.rope(x, positions, cos, sin, interpret=True), turned(x, positions, cos, sin), factor=8)
    rows, weight = draw(f32, 40, 9).T, draw(f32, 80)[::2]
    close(kd.library.rms_norm(rows, weight, interpret=True), exact(rows, weight, None), factor=4)
    out = np.empty((9, 40), np.float32)
    assert kd.library.rms_norm(rows, weight, eps=0, out=out, interpret=True) is out


X, W = draw(f32, 4, 8), draw(f32, 8)
PLACES, ANGLES = np.zeros(4, np.int32), draw(f32, 5, 4)
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: kd.library.rms_norm(3, W), BadCallArgument, "x is an int"),
    (lambda: kd.library.rms_norm(X, W[:7]), LibraryShape, r"weight is \(7,\) for x of \(4, 8\)"),
    (lambda: kd.library.layer_norm(X, W, X), LibraryShape, r"bias is \(4, 8\)"),
    (lambda: kd.library.rms_norm(X.astype(np.int32), W), LibraryDType, "x is int32"),
    (lambda: kd.library.rms_norm(X[:, :0], W[:0]), LibraryShape, r"x is \(4, 0\)"),
    (lambda: kd.library.rms_norm(X, W, eps=-1.0), BadCallValue, "eps=-1.0"),
    (lambda: kd.library.rms_norm(X, W, eps="1"), BadCallValue, "eps='1'"),
    (lambda: kd.library.rope(X, PLACES, ANGLES, ANGLES), LibraryShape, r"positions is \(4,\) for x of \(4, 8\)"),
    (lambda: kd.library.rope(X[:, None, :7], PLACES, ANGLES, ANGLES), LibraryShape, r"x is \(4, 1, 7\)"),
    (lambda: kd.library.rope(X[:, None], PLACES, ANGLES, X), LibraryShape, r"sin is \(4, 8\)"),
    (lambda: kd.library.rope(X[:, None], W[:4], ANGLES, ANGLES), LibraryDType, "positions is float32"),
    (lambda: kd.library.rope(X[:, None], PLACES, ANGLES, ANGLES, heads=(1, 1)), LibraryShape, r"heads=\(1, 1\)"),
    (lambda: kd.library.rope(X[:, None], PLACES, ANGLES, ANGLES, heads=3), BadCallValue, "heads=3"),
]


@pytest.mark.parametrize(("call", "kind", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_refused(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
