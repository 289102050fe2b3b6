"""Grouped products, cross-entropy and convolutions of any rows: right by float64, and the bits of kernels for these sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd

from .counting import none_before

Array = np.ndarray[Any, Any]
bf16 = ml_dtypes.bfloat16
ROWS = (128, 80, 264, 40)
IMAGES = ((2, 16, 16), (3, 16, 16), (4, 16, 16), (1, 16, 16))
GROUPS, DEPTH, COLUMNS = 5, 64, 72
Made = Callable[[np.random.Generator, Any, Any], tuple[Any, Any]]  # (result, what it is by float64) of a size


def numbers(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def sizes_of(rng: np.random.Generator, rows: int) -> Array:
    """Groups of a part of the rows, one of them empty."""
    return rng.multinomial(rows - rows // 7, [0.3, 0, 0.3, 0.2, 0.2]).astype(np.int32)


def product(a: Array, b: Array, sizes: Array) -> Array:
    out, ends = np.zeros((len(a), b.shape[2])), np.cumsum(sizes)
    for group, (start, end) in enumerate(zip(ends - sizes, ends, strict=True)):
        out[start:end] = a[start:end].astype(float) @ b[group].astype(float)
    return out


def grouped(dtype: Any, rng: np.random.Generator, rows: int, device: Any) -> tuple[Any, Any]:
    a, b, sizes = numbers(rng, dtype, rows, DEPTH), numbers(rng, dtype, GROUPS, DEPTH, COLUMNS), sizes_of(rng, rows)
    return device(kd.library.grouped_matmul, a, b, sizes), product(a, b, sizes)


def experts(rng: np.random.Generator, rows: int, device: Any) -> tuple[Any, Any]:
    """Gathered rows whose products are added up at their places."""
    a, b = numbers(rng, bf16, rows // 2, DEPTH), numbers(rng, bf16, GROUPS, DEPTH, COLUMNS)
    sizes, indices = sizes_of(rng, rows), rng.integers(0, rows // 2, rows).astype(np.int32)
    scatter, weights = rng.permutation(rows).astype(np.int32), numbers(rng, np.float32, rows // 2, 2)
    more = {"indices": indices, "scatter": scatter, "weights": weights}
    terms = product(a[indices], b, sizes).astype(bf16).astype(float) * weights.reshape(-1)[scatter, None]
    want = np.zeros((rows // 2, COLUMNS))
    np.add.at(want, scatter[: sizes.sum()] // 2, terms[: sizes.sum()])
    return device(kd.library.grouped_matmul, a, b, sizes, **more), want


def weights(dtype: Any, rng: np.random.Generator, rows: int, device: Any) -> tuple[Any, Any]:
    a, dout, sizes = numbers(rng, dtype, rows, DEPTH), numbers(rng, dtype, rows, COLUMNS), sizes_of(rng, rows)
    ends = np.cumsum(sizes)
    parts = [slice(end - n, end) for n, end in zip(sizes, ends, strict=True)]
    want = np.stack([a[part].astype(float).T @ dout[part].astype(float) for part in parts])
    return device(kd.library.grouped_matmul_wgrad, a, dout, sizes), want


def summed(rng: np.random.Generator, rows: int, device: Any) -> tuple[Any, Any]:
    """The gradient of a weight: a product over rows."""
    x, dout = numbers(rng, bf16, rows, 128), numbers(rng, bf16, rows, DEPTH)
    return device(kd.library.matmul, x.T, dout, out_dtype="float32"), x.astype(float).T @ dout.astype(float)


def entropy(rng: np.random.Generator, rows: int, device: Any) -> tuple[Any, Any]:
    x, weight = numbers(rng, bf16, rows, DEPTH), numbers(rng, bf16, 200, DEPTH)
    targets = rng.integers(0, 200, rows).astype(np.int32)
    logits = x.astype(float) @ weight.astype(float).T
    top = logits.max(axis=1)
    want = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top - logits[np.arange(rows), targets]
    return device(kd.library.linear_cross_entropy, x, weight, targets, reduction="none"), want


def convolved(dtype: Any, kind: str, rng: np.random.Generator, sizes: Any, device: Any) -> tuple[Any, Any]:
    x, w = numbers(rng, dtype, *sizes, 64), numbers(rng, dtype, 64, 3, 3, 64)
    dout = numbers(rng, dtype, *sizes, 64)
    padded = np.pad(x.astype(float), ((0, 0), (1, 1), (1, 1), (0, 0)))
    around = np.pad(dout.astype(float), ((0, 0), (1, 1), (1, 1), (0, 0)))
    _, height, width = sizes
    taps = [(r, s) for r in range(3) for s in range(3)]

    def seen(images: Array, r: int, s: int) -> Array:
        return images[:, r : r + height, s : s + width]

    if kind == "forward":
        want = sum(np.einsum("nhwc,fc->nhwf", seen(padded, r, s), w[:, r, s].astype(float)) for r, s in taps)
        return device(kd.library.conv2d, x, w, padding=1), want
    if kind == "dgrad":
        want = sum(np.einsum("nhwf,fc->nhwc", seen(around, 2 - r, 2 - s), w[:, r, s].astype(float)) for r, s in taps)
        return device(kd.library.conv2d_dgrad, dout, w, x.shape, padding=1), want
    each = [np.einsum("nhwc,nhwf->fc", seen(padded, r, s), dout.astype(float)) for r, s in taps]
    return device(kd.library.conv2d_wgrad, x, dout, 3, padding=1), np.stack(each, axis=1).reshape(64, 3, 3, 64)


def case(function: Any, *given: Any) -> Made:
    return lambda rng, size, device: function(*given, rng, size, device)


CASES: dict[str, tuple[Made, Any]] = {
    "grouped": (case(grouped, bf16), ROWS),
    "grouped float32": (case(grouped, np.float32), ROWS),
    "experts": (experts, ROWS),
    "weights": (case(weights, bf16), ROWS),
    "weights float32": (case(weights, np.float32), ROWS),
    "summed": (summed, (256, 512, 384, 640)),
    "entropy": (entropy, (300, 400, 500, 600)),
}
CASES |= {f"{kind} {name}": (case(convolved, dtype, kind), IMAGES)
          for kind in ("forward", "dgrad", "wgrad") for name, dtype in (("bf16", bf16), ("float32", np.float32))}  # fmt: skip


def interpreted(function: Any, *args: Any, **how: Any) -> Array:
    return np.asarray(function(*args, interpret=True, **how))


def fresh(function: Any, *args: Any, **how: Any) -> Array:
    """By a function that keeps no plans of other calls."""
    own = function if not hasattr(function, "_plans") else type(function)()
    return interpreted(own, *args, **how)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_third_size_compiles_nothing(name: str, traces: list[str]) -> None:
    """And gives the bits of the kernels for it alone."""
    made, sizes = CASES[name]
    later: list[list[str]] = []
    with none_before():
        for number, size in enumerate(sizes):
            traces.clear()
            got, want = made(np.random.default_rng(number), size, fresh)
            later.append(list(traces))
            np.testing.assert_allclose(got.astype(float), want, rtol=0.03, atol=0.03 * np.abs(want).max())
            with none_before():
                alone, _ = made(np.random.default_rng(number), size, fresh)
            assert got.tobytes() == alone.tobytes()
    assert later[2:] == [[], []], later


def on_gpu(function: Any, *args: Any, **how: Any) -> Array:
    own = function if not hasattr(function, "_plans") else type(function)()
    return np.asarray(own(*args, **how))


@pytest.mark.gpu
@pytest.mark.wgmma
@pytest.mark.parametrize("name", CASES)
def test_later_sizes_on_a_gpu(name: str) -> None:
    made, sizes = CASES[name]
    with none_before():
        for number, size in enumerate(sizes):
            got, want = made(np.random.default_rng(number), size, on_gpu)
            np.testing.assert_allclose(got.astype(float), want, rtol=0.03, atol=0.03 * np.abs(want).max())
