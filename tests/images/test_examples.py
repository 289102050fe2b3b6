"""The kernels that MLX's documentation is built on, in Metal Shading Language, against float64 NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.metal import metal_kernel

pytestmark = pytest.mark.usefixtures("compiler")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


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


# --- bilinear sampling, `align_corners=False`, zeros outside ------------------------------------------

FORWARD = """
    uint elem = thread_position_in_grid.x;
    int H = x_shape[1];
    int W = x_shape[2];
    int C = x_shape[3];
    int gH = grid_shape[1];
    int gW = grid_shape[2];

    int w_stride = C;
    int h_stride = W * w_stride;
    int b_stride = H * h_stride;

    uint pixel = elem / C * 2;
    float ix = ((grid[pixel] + 1) * W - 1) / 2;
    float iy = ((grid[pixel + 1] + 1) * H - 1) / 2;

    int left = floor(ix);
    int top = floor(iy);
    int right = left + 1;
    int bottom = top + 1;

    T nw = (right - ix) * (bottom - iy);
    T ne = (ix - left) * (bottom - iy);
    T sw = (right - ix) * (iy - top);
    T se = (ix - left) * (iy - top);

    int base = elem / C / gH / gW * b_stride + elem % C;
    bool in_left = left >= 0 && left < W;
    bool in_right = right >= 0 && right < W;
    bool in_top = top >= 0 && top < H;
    bool in_bottom = bottom >= 0 && bottom < H;

    // As is usual in such kernels, loads come first, and whether they were in the image is asked afterwards.
    T v_nw = x[base + top * h_stride + left * w_stride];
    T v_ne = x[base + top * h_stride + right * w_stride];
    T v_sw = x[base + bottom * h_stride + left * w_stride];
    T v_se = x[base + bottom * h_stride + right * w_stride];
    v_nw = in_top && in_left ? v_nw : 0;
    v_ne = in_top && in_right ? v_ne : 0;
    v_sw = in_bottom && in_left ? v_sw : 0;
    v_se = in_bottom && in_right ? v_se : 0;

    out[elem] = nw * v_nw + ne * v_ne + sw * v_sw + se * v_se;
"""

BACKWARD = """
    uint elem = thread_position_in_grid.x;
    int H = x_shape[1];
    int W = x_shape[2];
    int C = x_shape[3];
    int padded = ceildiv(C, threads_per_simdgroup) * threads_per_simdgroup;
    int gH = grid_shape[1];
    int gW = grid_shape[2];

    int w_stride = C;
    int h_stride = W * w_stride;
    int b_stride = H * h_stride;

    uint pixel = elem / padded * 2;
    float ix = ((grid[pixel] + 1) * W - 1) / 2;
    float iy = ((grid[pixel + 1] + 1) * H - 1) / 2;
    int left = floor(ix);
    int top = floor(iy);
    int right = left + 1;
    int bottom = top + 1;

    T nw = (right - ix) * (bottom - iy);
    T ne = (ix - left) * (bottom - iy);
    T sw = (right - ix) * (iy - top);
    T se = (ix - left) * (iy - top);

    int channel = elem % padded;
    int base = elem / padded / gH / gW * b_stride + channel;
    T gix = T(0);
    T giy = T(0);
    if (channel < C) {
        T cot = cotangent[elem / padded * C + channel];
        if (top >= 0 && top < H) {
            if (left >= 0 && left < W) {
                int at = base + top * h_stride + left * w_stride;
                atomic_fetch_add_explicit(&x_grad[at], nw * cot, memory_order_relaxed);
                gix -= x[at] * (bottom - iy) * cot;
                giy -= x[at] * (right - ix) * cot;
            }
            if (right >= 0 && right < W) {
                int at = base + top * h_stride + right * w_stride;
                atomic_fetch_add_explicit(&x_grad[at], ne * cot, memory_order_relaxed);
                gix += x[at] * (bottom - iy) * cot;
                giy -= x[at] * (ix - left) * cot;
            }
        }
        if (bottom >= 0 && bottom < H) {
            if (left >= 0 && left < W) {
                int at = base + bottom * h_stride + left * w_stride;
                atomic_fetch_add_explicit(&x_grad[at], sw * cot, memory_order_relaxed);
                gix -= x[at] * (iy - top) * cot;
                giy += x[at] * (right - ix) * cot;
            }
            if (right >= 0 && right < W) {
                int at = base + bottom * h_stride + right * w_stride;
                atomic_fetch_add_explicit(&x_grad[at], se * cot, memory_order_relaxed);
                gix += x[at] * (iy - top) * cot;
                giy += x[at] * (ix - left) * cot;
            }
        }
    }

    T gix_mult = W / 2;
    T giy_mult = H / 2;
    gix = simd_sum(gix);
    giy = simd_sum(giy);
    if (thread_index_in_simdgroup == 0) {
        atomic_fetch_add_explicit(&grid_grad[pixel], gix * gix_mult, memory_order_relaxed);
        atomic_fetch_add_explicit(&grid_grad[pixel + 1], giy * giy_mult, memory_order_relaxed);
    }
"""


def corners(x, grid):
    """For each grid point: its four neighbours as (row, column, in the image, weight, d weight / d ix, d / d iy)."""
    _, height, width, _ = x.shape
    ix = ((grid[..., 0] + 1) * width - 1) / 2
    iy = ((grid[..., 1] + 1) * height - 1) / 2
    left, top = np.floor(ix), np.floor(iy)
    for row, wy, dy in ((top, top + 1 - iy, -1), (top + 1, iy - top, 1)):
        for column, wx, dx in ((left, left + 1 - ix, -1), (left + 1, ix - left, 1)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            at = (
                np.clip(row, 0, height - 1).astype(int),
                np.clip(column, 0, width - 1).astype(int),
            )
            yield at, inside, wx * wy, dx * wy, dy * wx


def sample(x, grid):
    out = np.zeros((*grid.shape[:3], x.shape[3]))
    batch = np.arange(x.shape[0])[:, None, None]
    for (row, column), inside, weight, _, _ in corners(x, grid):
        out += (weight * inside)[..., None] * x[batch, row, column]
    return out


def sample_gradients(x, grid, cotangent):
    """Of sum(sample(x, grid) * cotangent), with MLX's integer halves of the image's extents."""
    x_grad, grid_grad = np.zeros(x.shape), np.zeros(grid.shape)
    batch = np.broadcast_to(np.arange(x.shape[0])[:, None, None], grid.shape[:3])
    for (row, column), inside, weight, by_x, by_y in corners(x, grid):
        np.add.at(x_grad, (batch, row, column), (weight * inside)[..., None] * cotangent)
        value = (x[batch, row, column] * cotangent).sum(-1) * inside
        grid_grad[..., 0] += by_x * value * (x.shape[2] // 2)
        grid_grad[..., 1] += by_y * value * (x.shape[1] // 2)
    return x_grad, grid_grad


@pytest.mark.parametrize(("shape", "points"), [((2, 5, 7, 3), (4, 3)), ((1, 8, 8, 64), (3, 5))])
def test_grid_sample(rng, interpret, shape, points):
    x = rng.standard_normal(shape).astype(np.float32)
    grid = rng.uniform(-1.3, 1.3, (shape[0], *points, 2)).astype(np.float32)
    out_shape = (*grid.shape[:3], shape[3])
    k = metal_kernel("grid_sample", ["x", "grid"], ["out"], FORWARD)
    (out,) = k(
        inputs=[x, grid],
        template=[("T", x.dtype)],
        output_shapes=[out_shape],
        output_dtypes=[x.dtype],
        grid=(int(np.prod(out_shape)), 1, 1),
        threadgroup=(256, 1, 1),
        interpret=interpret,
    )
    np.testing.assert_allclose(out, sample(x.astype(np.float64), grid.astype(np.float64)), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("shape", "points"), [((2, 6, 8, 3), (4, 3)), ((1, 8, 8, 40), (2, 3))])
def test_grid_sample_backward(rng, interpret, shape, points):
    x = rng.standard_normal(shape).astype(np.float32)
    grid = rng.uniform(-1.3, 1.3, (shape[0], *points, 2)).astype(np.float32)
    cotangent = rng.standard_normal((*grid.shape[:3], shape[3])).astype(np.float32)
    k = metal_kernel(
        "grid_sample_backward",
        ["x", "grid", "cotangent"],
        ["x_grad", "grid_grad"],
        BACKWARD,
        atomic_outputs=True,
    )
    padded = -(-shape[3] // 32) * 32
    x_grad, grid_grad = k(
        inputs=[x, grid, cotangent],
        template=[("T", x.dtype)],
        output_shapes=[x.shape, grid.shape],
        output_dtypes=[x.dtype, x.dtype],
        grid=(grid.size // 2 * padded, 1, 1),
        threadgroup=(256, 1, 1),
        init_value=0,
        interpret=interpret,
    )
    exact = sample_gradients(*(v.astype(np.float64) for v in (x, grid, cotangent)))
    np.testing.assert_allclose(x_grad, exact[0], rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(grid_grad, exact[1], rtol=1e-4, atol=2e-3)
