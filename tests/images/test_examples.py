"""The kernels that MLX's documentation is built on, in Metal Shading Language, against float64 NumPy."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from kernel_dsl.runtime.custom.metal.metal import metal_kernel

pytestmark = pytest.mark.usefixtures("compiler")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def check_exp(k, a, interpret):
    (out,) = k(
        inputs=[a],
        template=[("T", np.float32)],
        grid=(a.size, 1, 1),
        threadgroup=(256, 1, 1),
        output_shapes=[a.shape],
        output_dtypes=[a.dtype],
        interpret=interpret,
    )
    np.testing.assert_allclose(out, np.exp(a.astype(np.float64)).astype(np.float16), rtol=1e-3)


def test_exp(rng, interpret):
    a = rng.standard_normal((4, 16)).astype(np.float16)
    k = metal_kernel(
        name="elementwise_exp",
        input_names=["inp"],
        output_names=["out"],
        source="""
            uint elem = thread_position_in_grid.x;
            T tmp = inp[elem];
            out[elem] = metal::exp(tmp);
        """,
    )
    check_exp(k, a, interpret)


def test_strided_exp(rng, interpret):
    a = rng.standard_normal((8, 16)).astype(np.float16)[::2]
    k = metal_kernel(
        name="strided_exp",
        input_names=["inp"],
        output_names=["out"],
        source="""
            uint elem = thread_position_in_grid.x;
            uint loc = elem_to_loc(elem, inp_shape, inp_strides, inp_ndim);
            T tmp = inp[loc];
            out[elem] = metal::exp(tmp);
        """,
        ensure_row_contiguous=False,
    )
    check_exp(k, a, interpret)


EXAMPLE = importlib.import_module("examples.20_metal_grid_sample")


def arrays(rng, shape, points):
    x = rng.standard_normal(shape).astype(np.float32)
    grid = rng.uniform(-1.3, 1.3, (shape[0], *points, 2)).astype(np.float32)
    cotangent = rng.standard_normal((*grid.shape[:3], shape[3])).astype(np.float32)
    return (x, grid, cotangent), [a.astype(np.float64) for a in (x, grid, cotangent)]


@pytest.mark.parametrize(("shape", "points"), [((2, 5, 7, 3), (4, 3)), ((1, 8, 8, 64), (3, 5))])
def test_grid_sample(rng, interpret, shape, points):
    (x, grid, _), wide = arrays(rng, shape, points)
    out = EXAMPLE.grid_sample(x, grid, interpret)
    np.testing.assert_allclose(out, EXAMPLE.sample(*wide[:2]), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("shape", "points"), [((2, 6, 8, 3), (4, 3)), ((1, 8, 8, 40), (2, 3))])
def test_grid_sample_backward(rng, interpret, shape, points):
    given, wide = arrays(rng, shape, points)
    x_grad, grid_grad = EXAMPLE.grid_sample_backward(*given, interpret)
    exact = EXAMPLE.sample_gradients(*wide)
    np.testing.assert_allclose(x_grad, exact[0], rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(grid_grad, exact[1], rtol=1e-4, atol=2e-3)
