"""Kernels with Dims over random shapes, bit by bit beside kernels that are compiled for each: one compile for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernel_dsl as kd
from kernel_dsl.runtime.devices import driver

Spec = kd.ShapeDtypeStruct
M, K = kd.Dim("M", max=200), kd.Dim("K", max=4096, multiple_of=8)


def normalised(x: Any, y: Any, out: Any) -> None:
    """Tiles of 4 rows, in a loop over parts of 16 columns: x / its length's square + y, and a mean that needs K."""
    rows = kd.ds(kd.program_id(0) * 4, 4)
    parts = kd.cdiv(x.shape[1], 16)

    def step(i: Any, total: Any) -> Any:
        return total + (x[rows, kd.ds(i * 16, 16)] ** 2).sum(1)

    scale = kd.fori_loop(0, parts, step, kd.zeros((4,), kd.float32)) / x.shape[1] + y[rows]

    @kd.loop(0, parts)
    def _(i: Any) -> None:
        part = kd.ds(i * 16, 16)
        out[rows, part] = x[rows, part] * scale[:, None] + x.shape[0]


def make(dims: bool) -> Any:
    return kd.kernel(
        normalised,
        out_type=lambda x, y: x,
        grid=lambda x, y: (kd.cdiv(x.shape[0], 4),),
        shapes={"x": (M, K), "y": (M,), "out": (M, K)} if dims else None,
    )


ONE = make(True)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**16))
def test_dims_give_what_ints_give(rows: int, eights: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 8 * eights)).astype(np.float32)
    y = rng.standard_normal(rows).astype(np.float32)
    found = ONE(x, y, interpret=True)
    np.testing.assert_array_equal(found, make(False)(x, y, interpret=True))
    scale = (x.astype(np.float64) ** 2).mean(1) + y
    np.testing.assert_allclose(found, x * scale[:, None] + rows, rtol=1e-4, atol=1e-4)
    assert len(ONE.specialisations()) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not driver.available(), reason="no GPU")
def test_dims_on_a_gpu() -> None:
    """Many shapes by one compile, with TMA and without; wrong calls are refused before a launch."""
    from .test_dims import product

    kernel = make(True)
    rng = np.random.default_rng(0)
    for rows, eights in ((1, 1), (7, 3), (200, 512), (33, 65)):
        x = rng.standard_normal((rows, 8 * eights)).astype(np.float32)
        y = rng.standard_normal(rows).astype(np.float32)
        np.testing.assert_array_equal(kernel(x, y), make(False)(x, y))
    assert len(kernel.specialisations()) == 1
    for shapes, error in (
        (((201, 8), (201,)), "from 1 to 200"),
        (((4, 12), (4,)), "multiple of 8"),
        (((4, 8), (5,)), "M is 4"),
    ):
        with pytest.raises(kd.Error, match=error):
            kernel(*(np.ones(shape, np.float32) for shape in shapes))
    m, k, n = kd.Dim("M"), kd.Dim("K", multiple_of=64), kd.Dim("N", multiple_of=64)
    multiply, exact = product(True, m, k, n), product(True, 0, 0, 0, dims=False)
    for rows, depth, columns in ((70, 128, 64), (1, 64, 192), (500, 1024, 256)):
        a = rng.standard_normal((rows, depth)).astype(np.float16)
        b = rng.standard_normal((depth, columns)).astype(np.float16)
        np.testing.assert_array_equal(multiply(a, b), exact(a, b))
    assert len(multiply.specialisations()) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not driver.available(), reason="no GPU")
def test_lengths_of_products_on_a_gpu() -> None:
    matmul = type(kd.library.matmul)()
    rng = np.random.default_rng(1)
    b = rng.standard_normal((1024, 2048)).astype(np.float16)
    for m in (300, 2000, 2001, 1999, 1777):
        a = rng.standard_normal((m, 1024)).astype(np.float16)
        want = a.astype(np.float32) @ b.astype(np.float32)
        np.testing.assert_allclose(matmul(a, b), want, rtol=2e-2, atol=0.5)
    assert len(matmul.specialisations()) <= 3
